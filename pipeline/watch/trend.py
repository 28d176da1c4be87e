"""The trend of the trainings on a dataset name: which one is worse than its predecessors, beyond noise."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from pipeline.config.declarations import ChangesReading, ChangesStep
from pipeline.config.settings import declared
from pipeline.monitor.diagnosis import percent, three_digits
from pipeline.watch.summary import Summary

WORK = (*declared(ChangesStep), *declared(ChangesReading))
"""Settings that change what a step does or reads. Only trainings with equal values are compared."""
MAX_PREDECESSORS, MIN_PREDECESSORS = 10, 5
"""A training is compared with at most and at least this number of comparable trainings before it."""
MAX_SPREADS = 4.0
"""A difference to the median of the predecessors of more than this many of their spreads is no noise."""
MIN_SLOWER = 0.1
"""A training is slower if it takes at least this share fewer examples a second than the median of its predecessors."""
MIN_MORE_WAIT = 0.05
"""A training waits more if the share of its data wait is higher by at least this than their median."""
_TO_DEVIATION = 1.4826
"""The standard deviation of normally distributed values, in medians of their absolute deviations."""


class Point(NamedTuple):
    """What is compared of a training. A number is None if it is not known."""

    work: Hashable
    """What must be equal for two trainings to be compared."""
    wait: float | None
    """The share of the step time that is data wait."""
    speed: float | None
    """Examples a second."""


def point_of(summary: Summary) -> Point:
    """Return what is compared of a training."""
    return Point(tuple(str(summary.setting(name)) for name in WORK), summary.wait, summary.speed)


def warnings(points: Sequence[Point]) -> list[dict[str, str]]:
    """Return for each training what is worse than in its predecessors: a sentence by "speed" or "wait".

    The oldest training comes first.

    A training is worse if its value is worse than that of each of its predecessors, and differs from their median by
    more than MAX_SPREADS of their spreads, and by a minimum that matters. The spread is the median of the absolute
    deviations from the median, as a standard deviation. A single disturbed predecessor does not change it.
    """
    found = []
    for index, point in enumerate(points):
        before = [each for each in points[:index] if each.work == point.work][-MAX_PREDECESSORS:]
        sentences = {"speed": _slower(point, before), "wait": _waits_more(point, before)}
        found.append({name: sentence for name, sentence in sentences.items() if sentence})
    return found


def _slower(point: Point, before: Iterable[Point]) -> str:
    speeds = [each.speed for each in before if each.speed is not None]
    if point.speed is None or not _is_worse(-point.speed, [-each for each in speeds], lambda mid: MIN_SLOWER * -mid):
        return ""
    usual = _span(speeds, three_digits)
    return f"It takes {three_digits(point.speed)} examples a second; the {len(speeds)} trainings before took {usual}."


def _waits_more(point: Point, before: Iterable[Point]) -> str:
    waits = [each.wait for each in before if each.wait is not None]
    if point.wait is None or not _is_worse(point.wait, waits, lambda _: MIN_MORE_WAIT):
        return ""
    return (
        f"It waits for data in {percent(point.wait)} of the step time; the {len(waits)} trainings before waited in "
        f"{_span(waits, percent)}."
    )


def _is_worse(value: float, before: Sequence[float], minimum: Callable[[float], float]) -> bool:
    """Return whether a value is higher than those before it, by more than noise and by a `minimum` for their median."""
    if len(before) < MIN_PREDECESSORS or value <= max(before):
        return False
    middle = median(before)
    spread = _TO_DEVIATION * median(abs(each - middle) for each in before)
    return value - middle >= max(MAX_SPREADS * spread, minimum(middle))


def _span(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"
