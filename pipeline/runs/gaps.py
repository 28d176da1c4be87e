"""The dates that are missing between the first and the last date of a dataset name, by the usual step between them."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import ceil

from pipeline.config.data_date import has_no_time, zone_from

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
WEEKS = timedelta(days=14)
"""If the dates span this time, a day of the week without any date counts as a day off."""


@dataclass(frozen=True)
class Gap:
    """Missing dates that follow each other."""

    first: str
    last: str
    dates: int
    """Number of missing dates, from `first` to `last`."""


@dataclass(frozen=True)
class Step:
    """The usual step between two dates: a number of months, or a time."""

    months: int
    time: timedelta
    """The step if `months` is 0."""
    days_off: frozenset[int] = frozenset()
    """Days of the week, from Monday, 0. Only a step of a day has them."""

    def __str__(self) -> str:
        if self.months:
            return "month" if self.months == 1 else f"{self.months} months"
        hours, days = self.time.total_seconds() / 3600, self.time.days
        if self.time == DAY:
            return "day, some days of the week off" if self.days_off else "day"
        if self.time % DAY == timedelta(0):
            return f"{days} days"
        return "hour" if hours == 1 else f"{hours:g} hours" if hours > 1 else f"{hours * 60:g} minutes"

    def missing(self, before: datetime, after: datetime) -> tuple[datetime, datetime, int] | None:
        """Return the first and the last moment that is missing between two dates, and their number; None if none is."""
        if self.days_off:
            days = [before + number * DAY for number in range(1, (after - before).days + bool((after - before) % DAY))]
            working = [day for day in days if day.weekday() not in self.days_off]
            return (working[0], working[-1], len(working)) if working else None
        if self.months:
            number = (_months(after) - _months(before) - 1) // self.months
        else:
            # Between times of a schedule, an interval is an hour longer or shorter when the clocks change.
            number = ceil((after - before) / self.time - 0.5) - 1
        return (self.later(before, 1), self.later(before, number), number) if number > 0 else None

    def whole_steps(self, before: datetime, after: datetime) -> int:
        """Return how many whole steps are between two moments."""
        if not self.months:
            return (after - before) // self.time
        number = (_months(after) - _months(before)) // self.months
        return number - (self.later(before, number) > after)

    def later(self, moment: datetime, steps: int) -> datetime:
        """Return the moment that is some steps later, whether it is a day off or not."""
        if not self.months:
            return moment + steps * self.time
        months = _months(moment) + steps * self.months
        return moment.replace(year=months // 12, month=months % 12 + 1)


@dataclass(frozen=True)
class Steps:
    """The usual steps of dates without a time, and of dates with a time. A source of days may become one of hours."""

    days: Step | None
    times: Step | None

    def of(self, date: str) -> Step | None:
        """Return the step of dates like this one; None if there are fewer than two of them."""
        return self.days if has_no_time(date) else self.times


def usual_steps(dates: Sequence[str]) -> Steps:
    """Return the usual steps between sorted dates."""
    return Steps(*map(usual_step, _by_kind(dates)))


def usual_step(dates: Sequence[str]) -> Step | None:
    """Return the usual step between sorted dates; None if there are fewer than two of them."""
    moments = sorted({datetime.fromisoformat(date) for date in dates})
    if len(moments) < 2:
        return None
    if len({(each.day, each.time()) for each in moments}) == 1 and moments[0].day == 1:
        return Step(_most_frequent(_months(after) - _months(before) for before, after in pairwise(moments)), DAY)
    seconds = _most_frequent(round((after - before).total_seconds()) for before, after in pairwise(moments))
    step = Step(0, timedelta(seconds=seconds))
    if step.time == DAY and moments[-1] - moments[0] >= WEEKS:
        return Step(0, DAY, frozenset(range(7)) - {each.weekday() for each in moments})
    return step


def gaps_between(dates: Sequence[str], steps: Steps) -> Iterator[Gap]:
    """Yield the gaps between sorted dates, and between those with a time."""
    for like_each_other in _by_kind(dates):
        for before, after in pairwise(like_each_other):
            if (step := steps.of(before)) and (gap := _gap(before, datetime.fromisoformat(after), step)):
                yield gap


def gap_until(now: datetime, newest: str, steps: Steps) -> Gap | None:
    """Return the dates that have ended after the newest one; None if there are none, or if no step is usual."""
    step = steps.of(newest)
    if step is None:
        return None
    zone = zone_from(os.environ) if has_no_time(newest) else UTC
    before, end = datetime.fromisoformat(newest), now.astimezone(zone).replace(tzinfo=None)
    # The date that has begun is not over.
    return _gap(newest, step.later(before, step.whole_steps(before, end)), step)


def dates_in(gap: Gap, step: Step) -> Iterator[str]:
    """Yield the missing dates of a gap, the newest first."""
    first, moment = datetime.fromisoformat(gap.first), datetime.fromisoformat(gap.last)
    while moment >= first:
        if moment.weekday() not in step.days_off:
            yield _like(gap.first, moment)
        moment = step.later(moment, -1)


def missing_days(gap: Gap, step: Step) -> Iterator[str]:
    """Yield the days of a gap on which a date is missing."""
    moment, last = (datetime.fromisoformat(each[:10]) for each in (gap.first, gap.last))
    # A step of hours has dates on each day of the gap.
    by = step if step.months or step.time > DAY else Step(0, DAY, step.days_off)
    while moment <= last:
        if moment.weekday() not in by.days_off:
            yield str(moment.date())
        moment = by.later(moment, 1)


def _by_kind(dates: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the dates without a time, and those with a time."""
    found: tuple[list[str], list[str]] = [], []
    for date in dates:
        found[not has_no_time(date)].append(date)
    return found


def _gap(before: str, after: datetime, step: Step) -> Gap | None:
    missing = step.missing(datetime.fromisoformat(before), after)
    if missing is None:
        return None
    first, last, number = missing
    return Gap(_like(before, first), _like(before, last), number)


def _most_frequent(steps: Iterator[int]) -> int:
    """Return the most frequent of some steps, and the smallest of equally frequent ones."""
    counts = Counter(steps)
    return max(counts, key=lambda each: (counts[each], -each))


def _months(moment: datetime) -> int:
    return 12 * moment.year + moment.month - 1


def _like(date: str, moment: datetime) -> str:
    return str(moment.date()) if has_no_time(date) else moment.isoformat(timespec="minutes")
