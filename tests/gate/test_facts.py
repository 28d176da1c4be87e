"""Facts that are planned before an example is read."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.gate.facts import is_other_source


@pytest.mark.parametrize(
    ("before", "source", "is_other"),
    [
        ("/data/2026-11-27/sales.csv", "/data/2026-11-28/sales.csv", False),
        ("/data/20261127T06/sales.csv", "/data/20261128T07/sales.csv", False),
        ("/data/year=2026/month=11/day=27", "/data/year=2026/month=12/day=01", False),
        ("/team1/sales.csv", "/team2/sales.csv", True),
        ("/a/sales.csv", "/b/sales.csv", True),
    ],
)
def test_dates_of_one_source_are_no_other_source(before: str, source: str, is_other: bool):
    version: Any = SimpleNamespace(source={"uri": before})
    assert is_other_source(source, version) is is_other
