"""The charts of the documentation are drawn from the results of a benchmark."""

from pathlib import Path

import pytest

from docs.charts import CHARTS, rate

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.mark.parametrize("name", sorted(CHARTS))
def test_a_chart_is_up_to_date(name: str):
    assert (IMAGES / f"{name}.svg").read_text("utf-8") == CHARTS[name](), "run: python -m docs.charts"


def test_a_rate_is_computed_from_the_median_round():
    assert rate({"images": 1000, "work_s": [2.0, 1.0, 4.0]}) == 500
