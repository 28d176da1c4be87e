"""The file of what kept images cost."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluation.estimates import Estimate
from pipeline.runs.files import CACHES
from pipeline.runs.measured_caches import MeasuredCaches, load_caches, save_caches

MEASURED = MeasuredCaches(write_us=100.0, read_cpu_us=Estimate(200.0, 190.0, 210.0), read_us=150.0, fill_us=3.0)


def test_what_was_measured_is_read_again(tmp_path: Path):
    save_caches(tmp_path, MEASURED)
    assert load_caches(tmp_path) == MEASURED


@pytest.mark.parametrize(
    "damage",
    [
        *({"fill_us": value} for value in (0, -1, "inf", "nan", None, "many", [])),
        *({"read_cpu_us": value} for value in (1, [1, 1], [0, 1, 1], None)),
    ],
)
def test_a_damaged_file_says_nothing(tmp_path: Path, damage: dict[str, Any]):
    (tmp_path / CACHES).write_text(json.dumps({**asdict(MEASURED), **damage}))
    assert load_caches(tmp_path) is None


@pytest.mark.parametrize("content", [None, "[]", "{}", "{"])
def test_a_file_without_values_says_nothing(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / CACHES).write_text(content)
    assert load_caches(tmp_path) is None
