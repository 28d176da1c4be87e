"""Whether the data of a dataset gets worse over its dates: more is rejected, there are fewer examples, or it drifts."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import erfc, sqrt

from pipeline.monitor.diagnosis import percent

MAX_DATES, MIN_DATES = 30, 5
"""A trend is about at most this number of dates, the newest, and at least this number."""
CHANCE = 0.05
"""Probability that one of the series seems to get worse by chance, in all of them together."""


@dataclass(frozen=True)
class Date:
    """What is known of a published date."""

    examples: int
    rejected: int
    drift: float | None
    """The largest population stability index since the previous version; None if there was none."""


@dataclass(frozen=True)
class _Series:
    """A number of each date, the oldest first."""

    name: str
    verb: str
    """What it does if it gets worse: "rises" or "falls"."""
    values: Sequence[float]
    text: Callable[[float], str]

    @property
    def p(self) -> float:
        """The probability of such a trend by chance."""
        sign = 1.0 if self.verb == "rises" else -1.0
        return p_of_rise([sign * value for value in self.values])

    @property
    def worse(self) -> str:
        first, last = self.text(self.values[0]), self.text(self.values[-1])
        return f"{self.name} {self.verb} from {first} to {last} (p = {self.p:.2g})"

    @property
    def span(self) -> str:
        low, high, last = map(self.text, (min(self.values), max(self.values), self.values[-1]))
        return f"{self.name} was {low} to {high}, last {last}" if low != high else f"{self.name} was {low}"


def trend_words(dates: Sequence[Date], unit: str) -> str:
    """Return whether the data gets worse over its published dates, the oldest first, in a sentence.

    `unit` is what the examples are called, such as "images".
    """
    last = dates[-MAX_DATES:]
    if len(last) < MIN_DATES:
        return f"A trend over the dates needs {MIN_DATES} published dates."
    series = [*_series(last, unit)]
    # Several tests find a trend by chance more often than one does.
    if worse := [each.worse for each in series if each.p < CHANCE / len(series)]:
        return f"It is getting worse: over the last {len(last)} dates, {' and '.join(worse)}."
    spans = "; ".join(each.span for each in series)
    return f"It shows no trend beyond chance: over the last {len(last)} dates, {spans}."


def _series(dates: Sequence[Date], unit: str) -> Iterator[_Series]:
    shares = [date.rejected / max(1, date.examples + date.rejected) for date in dates]
    yield _Series(f"the share of rejected {unit}", "rises", shares, percent)
    yield _Series(f"the number of {unit}", "falls", [date.examples for date in dates], "{:,}".format)
    drifts = [date.drift for date in dates if date.drift is not None]
    if len(drifts) >= MIN_DATES:
        yield _Series("the drift", "rises", drifts, "{:.2f}".format)


def p_of_rise(values: Sequence[float]) -> float:
    """Return the probability that values without a trend rise as much as these, by the test of Mann and Kendall."""
    count = len(values)
    rises = sum((after > before) - (after < before) for at, before in enumerate(values) for after in values[at + 1 :])
    ties = sum(n * (n - 1) * (2 * n + 5) for n in Counter(values).values())
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    if variance <= 0:  # All values are equal.
        return 1.0
    # The sum changes in steps of two at most, so half a step is taken off, as for any sum of whole numbers.
    return erfc((rises - 1) / sqrt(2 * variance)) / 2
