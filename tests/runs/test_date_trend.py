"""Whether the data of a dataset gets worse over its dates."""

from collections.abc import Sequence

import pytest

from pipeline.runs.date_trend import Date, p_of_rise, trend_words


def dates(examples: Sequence[int], rejected: Sequence[int], drift: Sequence[float] = ()) -> list[Date]:
    drifts: Sequence[float | None] = drift or [None] * len(examples)
    return [Date(*each) for each in zip(examples, rejected, drifts, strict=True)]


@pytest.mark.parametrize(
    ("values", "p"),
    [
        # By hand: 10 rises of 10 pairs, variance 16.67, so 9 / 4.08 = 2.20 standard deviations.
        ([1, 2, 3, 4, 5], 0.0137),
        ([5, 4, 3, 2, 1], 0.9965),
        ([1, 1, 1, 1, 1], 1.0),
        # By hand: 13 rises of 15 pairs, two of which are ties, variance 26.33.
        ([0, 0, 1, 1, 2, 4], 0.0097),
    ],
)
def test_the_probability_of_a_rise_by_chance(values: Sequence[float], p: float) -> None:
    assert p_of_rise(values) == pytest.approx(p, abs=5e-5)


def test_a_dataset_that_gets_worse_is_named_with_its_numbers() -> None:
    words = trend_words(dates([16, 16, 14, 14, 12, 8], [0, 0, 2, 2, 4, 8]), "images")
    assert words == (
        "It is getting worse: over the last 6 dates, the share of rejected images rises from 0% to 50% (p = 0.0097) "
        "and the number of images falls from 16 to 8 (p = 0.0097)."
    )
    drifting = trend_words(dates([9] * 6, [0] * 6, [0.01, 0.02, 0.05, 0.08, 0.1, 0.3]), "rows")
    assert "over the last 6 dates, the drift rises from 0.01 to 0.30 (p = 0.0043)." in drifting


def test_a_change_that_chance_explains_is_no_trend() -> None:
    words = trend_words(dates([16, 12, 16, 15, 16], [0, 4, 0, 1, 0]), "images")
    assert words == (
        "It shows no trend beyond chance: over the last 5 dates, the share of rejected images was 0% to 25%, "
        "last 0%; the number of images was 12 to 16, last 16."
    )


def test_only_the_newest_dates_count_and_few_dates_are_no_trend() -> None:
    rising = dates([10] * 40, [*range(10), *[0] * 30])
    assert "over the last 30 dates, the share of rejected images was 0%" in trend_words(rising, "images")
    assert trend_words(rising[:4], "images") == "A trend over the dates needs 5 published dates."
