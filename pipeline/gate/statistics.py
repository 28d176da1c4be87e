"""Statistics of the images of a dataset, and the drift between two versions.

Many tasks write the shards, so statistics can be merged and are stored as JSON: integers with fixed bin edges, which
are the same in any order. No NumPy here: a shard task starts in tenths of a second.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import log, sqrt
from operator import add, sub, truediv
from typing import Any

EDGES: Mapping[str, tuple[float, ...]] = {
    "sizes": (8, 16, 24, 40, 72, 100, 150, 200, 290, 350, 450, 600, 900, 1400, 2000, 2800, 4000),
    "aspect": (0.3, 0.45, 0.6, 0.71, 0.78, 0.91, 1.1, 1.29, 1.41, 1.67, 2.2, 3.3),
    "bytes": tuple(1000 * 2**power for power in range(16)),
    "brightness": tuple(range(16, 256, 16)),
}
"""Edges of the bins: shorter side in pixels, width over height, bytes, mean of the 8-bit pixels.

The first bin is below the first edge, and the last one starts at the last edge. The edges of sizes and aspect are
between the usual values (256, 4:3), so that rounding by a pixel moves no image to another bin.

Increase SCHEMA_VERSION (pipeline/dataset/manifest.py) with each change: counts of other bins can neither be added nor
compared.
"""

SIGMAS = 3.0
"""A drift of up to this many standard deviations above its mean counts as chance."""
CHUNK = 4096
"""At least this many images are counted at once."""
_SIDES = ("height", "width")


class Statistics:
    """Counts and histograms of images. `to_json` returns them in the form of `dataset.json`."""

    def __init__(self) -> None:
        self.images = 0
        self.bytes = 0
        self.counts = {name: [0] * (len(edges) + 1) for name, edges in EDGES.items()}
        self.sides = {name: _Range() for name in _SIDES}
        self._waiting: list[tuple[int, int, int, float | None]] = []

    def add(self, images: Iterable[tuple[int, int, int, float | None]]) -> None:
        """Count images: height and width in pixels, size in bytes, and the mean of the 8-bit pixels, if known."""
        # Images are counted many at a time, because counting one by one costs as much as reading a small image.
        self._waiting += images
        if len(self._waiting) >= CHUNK:
            self._count()

    def merge(self, other: "Statistics") -> None:
        """Add the counts of other statistics."""
        other._count()
        self.images += other.images
        self.bytes += other.bytes
        for name, side in other.sides.items():
            self.sides[name].merge(side)
        for name, counts in other.counts.items():
            self.counts[name] = [one + more for one, more in zip(self.counts[name], counts, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Return counts by bin with their edges, and minimum, maximum, sum and mean of the sides (None if empty)."""
        self._count()
        return {
            "images": self.images,
            "bytes": self.bytes,
            **{name: side.to_json(self.images) for name, side in self.sides.items()},
            "histograms": {
                name: {"edges": list(EDGES[name]), "counts": counts} for name, counts in self.counts.items()
            },
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Statistics":
        """Return the statistics that `to_json` described."""
        statistics = cls()
        statistics.images, statistics.bytes = content["images"], content["bytes"]
        statistics.sides = {name: _Range.from_json(content[name]) for name in _SIDES}
        statistics.counts = {name: list(content["histograms"][name]["counts"]) for name in EDGES}
        return statistics

    def _count(self) -> None:
        if not self._waiting:
            return
        heights, widths, sizes, brightness = zip(*self._waiting, strict=True)
        self.images += len(sizes)
        self.bytes += sum(sizes)
        self._waiting = []
        for name, sides in (("height", heights), ("width", widths)):
            self.sides[name].merge(_Range(min(sides), max(sides), sum(sides)))
        self._bin("sizes", map(min, heights, widths))
        self._bin("aspect", map(truediv, widths, heights))
        self._bin("bytes", sizes)
        self._bin("brightness", (mean for mean in brightness if mean is not None))

    def _bin(self, name: str, values: Iterable[float]) -> None:
        # Each edge is looked up among the sorted values. To look up each value among the edges takes a call per image.
        ordered = sorted(values)
        below = [bisect_left(ordered, edge) for edge in EDGES[name]]
        inside = map(sub, [*below, len(ordered)], [0, *below])
        self.counts[name] = list(map(add, self.counts[name], inside))


class _Range:
    """Minimum, maximum and sum of integers. Unlike a running mean, they do not depend on the order."""

    def __init__(self, smallest: int | None = None, largest: int | None = None, total: int = 0) -> None:
        self.smallest, self.largest, self.total = smallest, largest, total

    def merge(self, other: "_Range") -> None:
        if other.smallest is None or other.largest is None:
            return
        self.smallest = other.smallest if self.smallest is None else min(self.smallest, other.smallest)
        self.largest = other.largest if self.largest is None else max(self.largest, other.largest)
        self.total += other.total

    def to_json(self, images: int) -> dict[str, Any]:
        mean = round(self.total / images, 1) if images else None
        return {"min": self.smallest, "max": self.largest, "mean": mean, "sum": self.total}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "_Range":
        return cls(content["min"], content["max"], content["sum"])


def drift(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, float]:
    """Return the drift between two versions in sizes, aspect, brightness and class shares, as stability indexes.

    Both arguments are the `quality` of a `dataset.json`, with its `statistics` and `classes`. What one of them lacks
    is left out. An index of 0.1 is small, 0.25 is large.
    """
    pairs = {name: _histograms(name, now, before) for name in ("sizes", "aspect", "brightness")}
    one, other = now.get("classes") or {}, before.get("classes") or {}
    labels = sorted({*one, *other})  # A label that one of them lacks counts as 0.
    pairs["classes"] = [one.get(label, 0) for label in labels], [other.get(label, 0) for label in labels]
    return {name: stability_index(*pair) for name, pair in pairs.items() if pair and all(map(any, pair))}


def stability_index(now: Sequence[int], before: Sequence[int]) -> float:
    """Return the population stability index of two histograms, less what chance explains.

    The index is the sum of (p - q) ln(p / q) over the bins that at least one histogram fills. p and q are the shares of
    a bin, with half an image added to each bin, so that the logarithm of an empty one is finite. Between n and m images
    drawn from one population, the index is not zero: it is distributed as (1/n + 1/m) times a chi-square with one
    degree of freedom less than there are bins (Yurdakul: Statistical Properties of Population Stability Index, 2018).
    Therefore, its mean and three standard deviations are subtracted. For 16 bins, these are 0.3 and 0.33 with 100
    images on each side, and 0.003 each with 10,000. In 300 draws of each size, the rest was above 0 in at most 1 of 60.
    """
    filled = [(one, other) for one, other in zip(now, before, strict=True) if one or other]
    n, m = sum(now), sum(before)
    smoothed = [((one + 0.5) / (n + len(filled) / 2), (other + 0.5) / (m + len(filled) / 2)) for one, other in filled]
    index = sum((p - q) * log(p / q) for p, q in smoothed)
    freedom = len(filled) - 1
    by_chance = (1 / n + 1 / m) * (freedom + SIGMAS * sqrt(2 * freedom))
    return round(max(0.0, index - by_chance), 4)


Pair = tuple[Sequence[int], Sequence[int]]


def _histograms(name: str, now: Mapping[str, Any], before: Mapping[str, Any]) -> Pair | None:
    one, other = (((quality.get("statistics") or {}).get("histograms") or {}).get(name) for quality in (now, before))
    return (one["counts"], other["counts"]) if one and other else None
