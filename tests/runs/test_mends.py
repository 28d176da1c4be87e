"""The commands that build failed and missing dates again."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest

from pipeline.runs.gaps import gaps_between, usual_steps
from pipeline.runs.mends import MAX_MENDS, MAX_RUNS, mends_of

NOW = datetime(2026, 11, 29, 7, 30, tzinfo=UTC)


def days(first: str, count: int, weekdays: range = range(7)) -> list[str]:
    """Return dates from `first` on, on some days of the week."""
    all_days = (date.fromisoformat(first) + timedelta(days=number) for number in range(count))
    return [str(day) for day in all_days if day.weekday() in weekdays]


def spans(published: list[str], failed: list[str], names: list[str]) -> list[tuple[str, str]]:
    """Return the first and the last date of each command. The step is that of the published dates."""
    steps = usual_steps(published)
    mends = mends_of(failed, gaps_between(sorted(names), steps), steps, lambda first, last: f"{first} {last}", NOW)
    assert [each.command for each in mends] == [f"{each.first} {each.last}" for each in mends]
    return [(each.first, each.last) for each in mends]


WEEKDAYS = days("2026-01-05", 26, range(5))
MONTHS = ["2025-11-01", "2025-12-01", "2026-03-01"]
QUARTERS = [f"2026-01-01T{hour:02d}:{minute:02d}" for hour in range(3) for minute in (0, 15, 30, 45)]


@pytest.mark.parametrize(
    ("published", "failed", "expected"),
    [
        # No command runs a Saturday or a Sunday: neither for a failed nor for a missing Friday and Monday.
        (WEEKDAYS, ["2026-01-09", "2026-01-12"], [("2026-01-09", "2026-01-09"), ("2026-01-12", "2026-01-12")]),
        (
            [each for each in WEEKDAYS if each not in ("2026-01-09", "2026-01-12")],
            [],
            [("2026-01-09", "2026-01-09"), ("2026-01-12", "2026-01-12")],
        ),
        (WEEKDAYS, ["2026-01-08", "2026-01-09"], [("2026-01-08", "2026-01-09")]),
        # The run of one day makes a month.
        (MONTHS, [], [("2026-01-01", "2026-01-01"), ("2026-02-01", "2026-02-01")]),
        (QUARTERS, ["2026-01-01T00:15", "2026-01-01T01:00"], [("2026-01-01T00:15", "2026-01-01T01:00")]),
        (
            QUARTERS,
            ["2026-01-01T00:15", "2026-01-01T02:00"],
            [(f"2026-01-01T{each}",) * 2 for each in ("00:15", "02:00")],
        ),
        (QUARTERS, ["2026-01-01", "2026-01-01T00:15"], [("2026-01-01", "2026-01-01"), ("2026-01-01T00:15",) * 2]),
        # A missing day before the hours of a source needs a run of this day.
        (
            [*days("2026-01-05", 3), "2026-01-09", "2026-01-10T00:00", "2026-01-10T01:00", "2026-01-10T02:00"],
            [],
            [("2026-01-08", "2026-01-08")],
        ),
        # `make backfill` refuses today, and this hour.
        (days("2026-11-20", 5), ["2026-11-28", "2026-11-29"], [("2026-11-25", "2026-11-28")]),
        (
            ["2026-11-29T00:00", "2026-11-29T01:00"],
            ["2026-11-29T06:00", "2026-11-29T07:00"],
            [("2026-11-29T02:00", "2026-11-29T06:00")],
        ),
        (["2026-11-27", "2026-11-28", "2026-12-05"], [], []),
    ],
)
def test_a_command_runs_only_dates_that_need_it(
    published: list[str], failed: list[str], expected: list[tuple[str, str]]
):
    assert spans(published, failed, [*published, *failed]) == expected


def test_a_command_has_as_many_runs_as_a_backfill_may_have():
    dates = days("2020-01-01", 2500)
    published = [*dates[:14], dates[-1]]
    found = spans(published, [], published)
    lengths = [(date.fromisoformat(last) - date.fromisoformat(first)).days + 1 for first, last in found]
    assert (sum(lengths), max(lengths)) == (2485, MAX_RUNS)
    assert (found[0][0], found[-1][1]) == (dates[14], dates[-2])
    assert all(date.fromisoformat(last) < date.fromisoformat(first) for (_, last), (first, _) in pairwise(found))


def test_a_command_of_minutes_counts_each_run():
    names = ["2026-01-01T00:00", "2026-01-01T00:15", "2026-01-01T00:30", "2026-01-31T00:00"]
    for first, last in spans(names, [], names):
        assert datetime.fromisoformat(last) - datetime.fromisoformat(first) < timedelta(hours=MAX_RUNS // 4)


@pytest.mark.parametrize(
    "names",
    [
        ["0001-01-01T00:00", "0001-01-01T00:01", "0001-01-01T00:02", "2026-01-01T00:00"],
        ["0001-01-01T00:00", "0001-01-01T06:00", "0001-01-01T12:00", "2026-01-01T00:00"],
        ["0001-01-01", "0001-01-02", "0001-01-03", "2026-01-01"],
    ],
)
def test_a_gap_of_centuries_has_the_newest_commands(names: list[str]):
    found = spans(names, [], names)
    assert len(found) <= MAX_MENDS
    assert found[-1][1][:10] == "2025-12-31"
