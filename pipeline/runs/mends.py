"""The commands that build failed and missing dates again. Dates that follow each other share one command."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from math import ceil

from pipeline.config.data_date import has_no_time, zone_from
from pipeline.runs.gaps import DAY, HOUR, Gap, Step, Steps, dates_in

MAX_RUNS = 1000
"""`make backfill` accepts at most this many runs."""
MAX_MENDS = 1000
"""At most this many commands are made, for the newest dates."""
_Span = tuple[str, str]
"""The first and the last of some dates that follow each other."""


@dataclass(frozen=True)
class Mend:
    """Dates that follow each other and need another run, with the command that runs them."""

    first: str
    last: str
    command: str


def mends_of(
    failed: Iterable[str], gaps: Iterable[Gap], steps: Steps, command: Callable[[str, str], str], now: datetime
) -> tuple[Mend, ...]:
    """Return the commands for dates without a current dataset, sorted by date.

    A backfill runs each day, or each hour, from its first to its last date, and refuses a day or hour that has not
    ended. So only dates without another day or hour between them share a command.
    """
    missing = (span for gap in gaps if (step := steps.of(gap.first)) for span in _spans(gap, step))
    spans = _ended([*((date, date) for date in failed), *missing], now)
    stretches = reversed([*_stretches(spans)])
    newest_first = (piece for first, last in stretches for piece in _pieces(first, last, steps.of(first)))
    made = [Mend(first, last, command(first, last)) for first, last in islice(newest_first, MAX_MENDS)]
    return tuple(reversed(made))


def _spans(gap: Gap, step: Step) -> Iterator[_Span]:
    """Yield the missing dates of a gap, together if a backfill from the first to the last runs no other date."""
    if not step.months and not step.days_off and step.time <= (DAY if has_no_time(gap.first) else HOUR):
        yield gap.first, gap.last
    else:
        yield from ((date, date) for date in islice(dates_in(gap, step), MAX_MENDS))


def _ended(spans: Iterable[_Span], now: datetime) -> Iterator[_Span]:
    """Yield the parts of some dates that have ended: days before today, and hours before this one."""
    yesterday = str(now.astimezone(zone_from(os.environ)).date() - DAY)
    hour_before = f"{now.astimezone(UTC) - HOUR:%Y-%m-%dT%H:59}"
    for first, last in spans:
        newest = yesterday if has_no_time(first) else hour_before
        if first <= newest:
            yield first, min(last, newest)


def _stretches(spans: Iterable[_Span]) -> Iterator[_Span]:
    """Yield dates that follow each other together."""
    stretch: _Span | None = None
    for first, last in sorted(spans):
        if stretch and _follow(stretch[1], first):
            stretch = stretch[0], last
            continue
        if stretch:
            yield stretch
        stretch = first, last
    if stretch:
        yield stretch


def _follow(before: str, after: str) -> bool:
    if has_no_time(before) != has_no_time(after):
        return False
    between = datetime.fromisoformat(after) - datetime.fromisoformat(before)
    return between <= (DAY if has_no_time(before) else HOUR)


def _pieces(first: str, last: str, step: Step | None) -> Iterator[_Span]:
    """Yield dates that follow each other in pieces that one backfill accepts, the newest first."""
    unit = DAY if has_no_time(first) else HOUR
    runs_per_unit = ceil(unit / step.time) if step and not step.months else 1
    longest = (max(1, MAX_RUNS // runs_per_unit) - 1) * unit
    begin, end = (datetime.fromisoformat(each).replace(minute=0) for each in (first, last))
    while end - begin > longest:
        start = end - longest
        yield start.isoformat(timespec="minutes")[: len(first)], last
        end = start - unit
        last = end.isoformat(timespec="minutes")[: len(first)]
    yield first, last
