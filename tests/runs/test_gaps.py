"""The usual step between dates, and the dates that are missing."""

from datetime import UTC, date, datetime, timedelta

import pytest

from pipeline.runs.gaps import gap_until, gaps_between, missing_days, usual_steps


def days(first: str, count: int, weekdays: range = range(7)) -> list[str]:
    """Return dates from `first` on, on some days of the week."""
    all_days = (date.fromisoformat(first) + timedelta(days=number) for number in range(count))
    return [str(day) for day in all_days if day.weekday() in weekdays]


def without(dates: list[str], *missing: str) -> list[str]:
    return [each for each in dates if each not in missing]


WEEKDAYS = days("2026-01-05", 26, range(5))
HOURS = [f"2026-01-{day:02d}T{hour:02d}:00" for day in (1, 2) for hour in range(24)]


@pytest.mark.parametrize(
    ("dates", "step", "gaps"),
    [
        ([], None, []),
        (["2026-01-01"], None, []),
        (days("2026-01-01", 3), "day", []),
        (without(days("2026-01-01", 5), "2026-01-03"), "day", [("2026-01-03", "2026-01-03", 1)]),
        (
            without(days("2026-02-26", 8), "2026-02-28", "2026-03-01", "2026-03-04"),
            "day",
            [("2026-02-28", "2026-03-01", 2), ("2026-03-04", "2026-03-04", 1)],
        ),
        (["2026-01-01", "2026-01-09"], "8 days", []),
        (["2026-01-05", "2026-01-12", "2026-01-26"], "7 days", [("2026-01-19", "2026-01-19", 1)]),
        (WEEKDAYS, "day, some days of the week off", []),
        (
            without(WEEKDAYS, "2026-01-09", "2026-01-12", "2026-01-21"),
            "day, some days of the week off",
            [("2026-01-09", "2026-01-12", 2), ("2026-01-21", "2026-01-21", 1)],
        ),
        # In less than two weeks, a weekend may be missing by chance.
        (days("2026-01-05", 9, range(5)), "day", [("2026-01-10", "2026-01-11", 2)]),
        (["2025-11-01", "2025-12-01", "2026-03-01"], "month", [("2026-01-01", "2026-02-01", 2)]),
        (["2023-01-01", "2024-01-01", "2026-01-01"], "12 months", [("2025-01-01", "2025-01-01", 1)]),
        (HOURS, "hour", []),
        (
            without(HOURS, "2026-01-01T23:00", "2026-01-02T00:00", "2026-01-02T05:00"),
            "hour",
            [("2026-01-01T23:00", "2026-01-02T00:00", 2), ("2026-01-02T05:00", "2026-01-02T05:00", 1)],
        ),
        (
            ["2026-01-01T00:00", "2026-01-01T00:15", "2026-01-01T00:40"],
            "15 minutes",
            [("2026-01-01T00:30", "2026-01-01T00:30", 1)],
        ),
        # `0 */2 * * *` in Berlin, on the night in which summer time ends.
        ([f"2026-10-2{each}:00" for each in ("4T18", "4T20", "4T22", "5T01", "5T03", "5T05")], "2 hours", []),
        # `0 */6 * * *` in Berlin, on the nights in which summer time begins, and ends.
        ([f"2026-03-2{each}:00" for each in ("8T11", "8T17", "8T23", "9T04", "9T10")], "6 hours", []),
        (
            [f"2026-10-2{each}:00" for each in ("4T16", "4T22", "5T11", "5T17")],
            "6 hours",
            [("2026-10-25T04:00", "2026-10-25T04:00", 1)],
        ),
        # A source of days that became one of hours.
        (
            without([*days("2025-12-01", 30), *HOURS], "2025-12-03", "2026-01-01T05:00"),
            "hour",
            [("2025-12-03", "2025-12-03", 1), ("2026-01-01T05:00", "2026-01-01T05:00", 1)],
        ),
    ],
)  # fmt: skip
def test_gaps_follow_from_the_usual_step(dates: list[str], step: str | None, gaps: list[tuple[str, str, int]]):
    steps = usual_steps(dates)
    found = steps.of(dates[-1]) if dates else None
    assert (found and str(found)) == step
    assert [(each.first, each.last, each.dates) for each in gaps_between(dates, steps)] == gaps


def test_a_gap_of_centuries_between_minutes_is_found_at_once():
    dates = ["0001-01-01T00:00", "0001-01-01T00:01", "0001-01-01T00:02", "2026-01-01T00:00"]
    [gap] = gaps_between(dates, usual_steps(dates))
    assert (gap.first, gap.last, gap.dates) == ("0001-01-01T00:03", "2025-12-31T23:59", 1_065_047_037)


@pytest.mark.parametrize(
    ("dates", "gap"),
    [
        (["2026-02-27"], None),
        (["2026-02-26", "2026-02-27"], ("2026-02-28", "2026-03-03", 4)),
        (["2026-02-26", "2026-02-27", "2026-02-28", "2026-03-03"], None),
        (["2026-03-08", "2026-03-09"], None),
        (days("2026-02-02", 19, range(5)), ("2026-02-23", "2026-03-03", 7)),
        # The week from 2 March is not over.
        (["2026-02-09", "2026-02-16"], ("2026-02-23", "2026-02-23", 1)),
        (["2025-11-01", "2025-12-01"], ("2026-01-01", "2026-02-01", 2)),
        # Neither the year 2026 nor its first quarter is over.
        (["2024-01-01", "2025-01-01"], None),
        (["2023-01-01", "2024-01-01"], ("2025-01-01", "2025-01-01", 1)),
        (["2025-07-01", "2025-10-01"], None),
        (["2025-04-01", "2025-07-01"], ("2025-10-01", "2025-10-01", 1)),
        (["2025-11-01T08:00", "2025-12-01T08:00"], ("2026-01-01T08:00", "2026-02-01T08:00", 2)),
        (["2026-03-04T03:00", "2026-03-04T04:00"], ("2026-03-04T05:00", "2026-03-04T06:00", 2)),
        (["2026-03-01", "2026-03-02", "2026-03-04T05:00", "2026-03-04T06:00"], None),
        (["2026-03-04T06:30", "2026-03-04T06:45"], ("2026-03-04T07:00", "2026-03-04T07:15", 2)),
    ],
)
def test_only_dates_that_are_over_are_missing_at_the_end(dates: list[str], gap: tuple[str, str, int] | None):
    found = gap_until(datetime(2026, 3, 4, 7, 31, tzinfo=UTC), dates[-1], usual_steps(dates))
    assert (found and (found.first, found.last, found.dates)) == gap


def test_a_month_is_over_at_the_time_of_its_dates():
    dates = ["2025-12-01T08:00", "2026-01-01T08:00"]
    assert gap_until(datetime(2026, 3, 1, 7, tzinfo=UTC), dates[-1], usual_steps(dates)) is None


@pytest.mark.parametrize(
    ("dates", "missing"),
    [
        (without(days("2026-01-01", 6), "2026-01-03", "2026-01-04"), ["2026-01-03", "2026-01-04"]),
        (without(WEEKDAYS, "2026-01-09", "2026-01-12"), ["2026-01-09", "2026-01-12"]),
        (["2025-11-01", "2025-12-01", "2026-03-01"], ["2026-01-01", "2026-02-01"]),
        (["2026-01-05", "2026-01-12", "2026-02-02"], ["2026-01-19", "2026-01-26"]),
        (without(HOURS, "2026-01-01T23:00", "2026-01-02T00:00"), ["2026-01-01", "2026-01-02"]),
    ],
)
def test_missing_days_are_those_on_which_a_date_is_expected(dates: list[str], missing: list[str]):
    steps = usual_steps(dates)
    found = [(gap, step) for gap in gaps_between(dates, steps) if (step := steps.of(gap.first))]
    assert [day for gap, step in found for day in missing_days(gap, step)] == missing
