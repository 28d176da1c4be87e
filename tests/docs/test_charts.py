"""The chart of the README is drawn from the results of a benchmark."""

from pathlib import Path

from docs.charts import input_rates, rate

CHART = Path(__file__).parents[2] / "docs" / "images" / "input-rates.svg"


def test_the_chart_is_up_to_date():
    assert CHART.read_text("utf-8") == input_rates(), "run: python -m docs.charts"


def test_a_rate_is_computed_from_the_median_round():
    assert rate({"images": 1000, "work_s": [2.0, 1.0, 4.0]}) == 500
