"""The order of all images of a dataset: sorted parts, cut into pieces for the tasks that write shards.

The order of each split is the merge of its runs, one or more from each sorted part. A cut divides all runs of a split
so that a given number of images is before it. Only the hashes of the rows are read for that, one run after another.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline import storage
from pipeline.sharding.merge import Piece, merged_lines
from pipeline.sharding.sort import (
    KINDS,
    SortedPart,
    SplitRule,
    kinds_of,
    lines_path,
    load_index,
    load_sorted_part,
    sorted_part,
)
from pipeline.snapshot.part import SPLITS, TEST, TRAIN, VALIDATION, Part
from pipeline.snapshot.raw_image import RawImage, from_line, key_bytes
from pipeline.snapshot.snapshot import Snapshot
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

ROWS_PER_BIN = 1024
"""Rows are counted in bins of about this many rows, to find a cut without sorting all rows."""
MAX_BIN_BITS = 20
"""There are at most 2**20 bins, which take 8 MB."""
READERS = 32
"""This many descriptions of sorted parts are read at once. In a bucket, each takes a request."""


class _Run(NamedTuple):
    """Rows of one kind in a sorted part."""

    part: Part
    first: int
    """Number of the first row in the index of the part."""
    rows: int


class Placed(NamedTuple):
    """An image and its split."""

    image: RawImage
    split: int
    """Index in SPLITS."""


class Order:
    """The splits and the order of all images of a snapshot.

    Parts that are not sorted yet are sorted in this process.

    Attributes:
        rule: The rule of the splits and the order.
        parts: The parts of the snapshot.
        first_numbers: Number of the first image of each part.
        compared: Number of images of each part by which equal images are found: see `SortedPart`.
        images: Number of images of each split.
        classes: Number of images of each split by their first label.
    """

    def __init__(self, snapshot: Snapshot, rule: SplitRule) -> None:
        self.rule = rule
        self.parts = snapshot.parts
        self.first_numbers = np.cumsum([0, *(part.listed for part in self.parts[:-1])])
        described = _described(self.parts, rule)
        self.compared = [each.compared for each in described]
        self._lowest = [each.lowest for each in described]
        self._lowest_of_all = min((lowest for lowest in self._lowest if lowest is not None), default=None)
        self._kinds = {kind for each in described for kind in each.runs}
        self._runs: dict[str, list[_Run]] = {split: [] for split in SPLITS}
        self.classes: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        for part, each in zip(self.parts, described, strict=True):
            for kind, run in each.runs.items():
                split = self._split_of(kind, each.lowest)
                self._runs[split].append(_Run(part, run.first, run.rows))
                self.classes[split].update(run.classes)
        self.images = {split: sum(run.rows for run in members) for split, members in self._runs.items()}

    def placed(self, number: int) -> "Placed":
        """Return an image by its number in the snapshot. This reads only a few bytes."""
        part = int(np.searchsorted(self.first_numbers, number, side="right")) - 1
        row = self.parts[part].row(number - int(self.first_numbers[part]))
        lowest = self._lowest[part]
        [kind] = kinds_of(row.columns, self.rule, lowest)
        return Placed(row.image, SPLITS.index(self._split_of(KINDS[kind], lowest)))

    def first_rows(self, split: str, count: int) -> list[RawImage]:
        """Return the first `count` rows of a split, or all if there are fewer."""
        [pieces] = self.pieces(split, [0, min(count, self.images[split])])
        return [from_line(line) for line in islice(merged_lines(pieces), count)]

    def pieces(self, split: str, cuts: Sequence[int]) -> Iterator[list[Piece]]:
        """Yield the pieces between each cut and the next.

        Args:
            split: The split that is cut.
            cuts: Ascending numbers of images. Each cut is after this many images.
        """
        runs = self._runs[split]
        positions = _positions(runs, self.rule, np.array(cuts, np.intp))
        offsets = np.empty_like(positions)
        for column, run in enumerate(runs):
            begins = np.concatenate((np.zeros(1, np.uint64), load_index(run.part, self.rule)["end"]))
            offsets[:, column] = begins[run.first + positions[:, column]]
        lines = [str(lines_path(run.part, self.rule)) for run in runs]
        firsts = [run.first for run in runs]
        for row in range(len(cuts) - 1):
            counts = positions[row + 1] - positions[row]
            yield [
                Piece(
                    split, lines[run], firsts[run] + int(positions[row, run]), int(counts[run]), int(offsets[row, run])
                )
                for run in np.flatnonzero(counts)
            ]

    def _split_of(self, kind: str, lowest: int | None) -> str:
        """Return the split of the rows of a kind in a part with this lowest split hash.

        If the source states validation images, images without a stated split are for training. Otherwise, a share of
        the images that are not for testing is held back by the hash of their group, but at least one group.
        """
        if kind in (TEST, VALIDATION):
            return kind
        if VALIDATION in self._kinds:
            return TRAIN
        if "chosen" in self._kinds:
            return VALIDATION if kind == "chosen" else TRAIN
        return VALIDATION if kind == "lowest" and lowest == self._lowest_of_all else TRAIN


def _described(parts: Sequence[Part], rule: SplitRule) -> list[SortedPart]:
    """Return the descriptions of the sorted parts. Parts that are not sorted yet are sorted."""
    found = list(ordered_map(partial(load_sorted_part, rule=rule), parts, READERS))
    unsorted = sum(part.listed for part, each in zip(parts, found, strict=True) if each is None)
    if not unsorted:
        return [each for each in found if each]
    with progress("sort", unsorted) as advance:
        for number, part in enumerate(parts):
            if found[number] is None:
                found[number] = sorted_part(part, rule)
                advance(part.listed)
    return [each for each in found if each]


def _positions(runs: Sequence[_Run], rule: SplitRule, cuts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return how many rows of each run are before each cut, of shape (cuts, runs)."""
    positions = np.zeros((len(cuts), len(runs)), np.intp)
    total = sum(run.rows for run in runs)
    positions[cuts >= total] = [run.rows for run in runs]
    inner = np.flatnonzero((cuts > 0) & (cuts < total))
    if len(inner):
        hashes, ties = _hashes_at(runs, rule, cuts[inner], total)
        for column, run in enumerate(runs):
            positions[inner, column] = np.searchsorted(_hashes(run, rule), hashes)
        for row in np.flatnonzero(ties):
            positions[inner[row]] += _tied_rows(runs, rule, hashes[row], int(ties[row]))
    return positions


def _hashes_at(
    runs: Sequence[_Run], rule: SplitRule, cuts: NDArray[np.intp], total: int
) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """Return the hash of the first row after each cut, and how many rows of this very hash are before the cut."""
    bits = min(max((total // ROWS_PER_BIN).bit_length(), 1), MAX_BIN_BITS)
    shift = np.uint64(64 - bits)
    counts = np.zeros(1 << bits, np.intp)
    for run in runs:
        counts += np.bincount((_hashes(run, rule) >> shift).astype(np.intp), minlength=len(counts))
    ends = np.cumsum(counts)
    bins = np.searchsorted(ends, cuts, side="right")
    members = _members(runs, rule, np.unique(bins), shift)
    hashes, ties = np.empty(len(cuts), np.uint64), np.empty(len(cuts), np.intp)
    for row, (bin_, cut) in enumerate(zip(bins.tolist(), cuts.tolist(), strict=True)):
        of_bin, before = members[bin_], cut - int(ends[bin_] - counts[bin_])
        hashes[row] = of_bin[before]
        ties[row] = before - np.searchsorted(of_bin, of_bin[before])
    return hashes, ties


def _members(
    runs: Sequence[_Run], rule: SplitRule, bins: NDArray[np.intp], shift: np.uint64
) -> dict[int, NDArray[np.uint64]]:
    """Return the hashes in each of some bins, sorted."""
    members: dict[int, list[NDArray[np.uint64]]] = {bin_: [] for bin_ in bins.tolist()}
    begins = bins.astype(np.uint64) << shift
    lasts = begins | ((np.uint64(1) << shift) - np.uint64(1))
    for run in runs:
        hashes = _hashes(run, rule)
        bounds = zip(np.searchsorted(hashes, begins), np.searchsorted(hashes, lasts, side="right"), strict=True)
        for bin_, (begin, end) in zip(members, bounds, strict=True):
            members[bin_].append(hashes[begin:end].copy())  # A view would keep all hashes of the run in memory.
    return {bin_: np.sort(np.concatenate(of_runs)) for bin_, of_runs in members.items()}


def _tied_rows(runs: Sequence[_Run], rule: SplitRule, hash_: np.uint64, count: int) -> NDArray[np.intp]:
    """Return how many of the first `count` rows with one hash are in each run. They are in the order of their keys."""
    tied: list[tuple[bytes, int]] = []
    for column, run in enumerate(runs):
        hashes = _hashes(run, rule)
        begin, end = np.searchsorted(hashes, hash_), np.searchsorted(hashes, hash_, side="right")
        tied += [(_key(run, rule, number), column) for number in range(begin, end)]
    columns = [column for _, column in sorted(tied)[:count]]
    return np.bincount(columns, minlength=len(runs))


def _key(run: _Run, rule: SplitRule, number: int) -> bytes:
    ends = load_index(run.part, rule)["end"]
    row = run.first + number
    begin = int(ends[row - 1]) if row else 0
    line = storage.read_range(lines_path(run.part, rule), begin, int(ends[row]) - begin)
    return key_bytes(from_line(line).key)


def _hashes(run: _Run, rule: SplitRule) -> NDArray[np.uint64]:
    index = load_index(run.part, rule)
    # A copy: `searchsorted` would make one for each call, because the hashes are not next to each other in the file.
    hashes: NDArray[np.uint64] = np.ascontiguousarray(index["hash"][run.first : run.first + run.rows])
    return hashes
