"""The order of all examples of a dataset: sorted parts, cut into pieces for the tasks that write shards.

The order of each split is the merge of its sections, one or more from each sorted part. A cut divides all sections of
a split so that a given number of examples is before it. Only the index is read for that, one section after another.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.partitions import LATEST
from pipeline.errors import SettingsError, SourceError
from pipeline.plan.contents import first_numbers
from pipeline.plan.copies import copies_in_earlier_parts
from pipeline.plan.example_kind import kind_of
from pipeline.plan.merge import Piece, merged_lines, read_sorted
from pipeline.plan.options import PlanOptions
from pipeline.plan.sort import (
    FOR_TEST,
    KINDS,
    LOWEST,
    NO_EARLIER,
    SortedPart,
    SplitRule,
    index_path,
    kinds_of,
    lines_path,
    load_sorted_part,
    read_index,
    sorted_part,
)
from pipeline.snapshot.part import SPLITS, TEST, TRAIN, VALIDATION, Part
from pipeline.snapshot.raw_example import RawExample, from_line
from pipeline.snapshot.snapshot import Snapshot
from pipeline.storage import Place
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress
from pipeline.system.resources import available_memory, usable_cores

_log = logging.getLogger(__name__)
ROWS_PER_BIN = 1024
"""Rows are counted in bins of about this many rows, to find a cut without sorting all rows."""
MAX_BIN_BITS = 20
"""There are at most 2**20 bins, which take 8 MB."""
INDEX_READERS = 4
MAX_SORTERS = 4
"""At most this many parts are sorted at once."""
SORT_BYTES = 300_000_000
"""A part that is sorted takes up to this many bytes of memory."""
READERS = 32
"""This many descriptions of sorted parts are read at once. In a bucket, each takes a request."""


class _Section(NamedTuple):
    """Rows of one kind in a sorted part."""

    part: Part
    name: str
    """That of the sorted part."""
    lines: Place
    """The file of its lines."""
    first: int
    """Number of the first row in the index of the part."""
    rows: int
    lowest: int | None
    """The lowest split hash of the part: see `SortedPart`."""

    def read(self, first: int, rows: int) -> NDArray[np.void]:
        """Return `rows` elements of the index of the part, from the number `first` on."""
        return read_index(self.part, self.name, first, rows)


class Placed(NamedTuple):
    """An example and its split."""

    example: RawExample
    split: int
    """Index in SPLITS."""


class Order:
    """The splits and the order of all examples of a snapshot.

    Parts that are not sorted yet are sorted in this process.

    Attributes:
        rule: The rule of the splits and the order.
        parts: The parts of the snapshot.
        first_numbers: Number of the first example of each part.
        examples: Number of examples of each split.
        classes: Number of examples of each split by their first label.
    """

    def __init__(self, snapshot: Snapshot, rule: SplitRule, nouns: str = "examples") -> None:
        self.rule = rule
        self.parts = snapshot.parts
        self.first_numbers = first_numbers(self.parts)
        self._lowest: list[int | None] = []
        sections: list[tuple[str, _Section]] = []
        classes: dict[tuple[str, int | None], Counter[str]] = {}
        with progress("plan", snapshot.listed, nouns) as advance:
            for part, described in zip(self.parts, _sorted_parts(self.parts, rule), strict=True):
                self._lowest.append(described.lowest)
                for kind, section in described.sections.items():
                    of_kind = _Section(
                        part=part,
                        name=described.name,
                        lines=lines_path(part, described),
                        first=section.first,
                        rows=section.rows,
                        lowest=described.lowest,
                    )
                    sections.append((kind, of_kind))
                    # Rows of one kind are in one split, except that the lowest ones of all parts may be in another.
                    group = (kind, described.lowest if kind == LOWEST else None)
                    classes.setdefault(group, Counter()).update(section.classes)
                advance(part.listed)
        self._kinds = {kind for kind, _ in sections}
        self._lowest_of_all = min((lowest for lowest in self._lowest if lowest is not None), default=None)
        self._sections: dict[str, list[_Section]] = {split: [] for split in SPLITS}
        for kind, of_kind in sections:
            self._sections[self._split_of(kind, of_kind.lowest)].append(of_kind)
        self.examples = {split: sum(section.rows for section in members) for split, members in self._sections.items()}
        self.classes: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        for (kind, lowest), counts in classes.items():
            self.classes[self._split_of(kind, lowest)].update(counts)

    @property
    def states_splits(self) -> bool:
        """Whether the source states which examples are for validation or testing."""
        return not self._kinds.isdisjoint((VALIDATION, TEST))

    @property
    def states_test(self) -> bool:
        """Whether the source states which examples are for testing."""
        return TEST in self._kinds

    @property
    def fractions_by_hash(self) -> dict[str, float]:
        """The fraction that the rule asks for, by split, of the splits that are decided by hashes."""
        fractions = {VALIDATION: self.rule.validation_fraction, TEST: self.rule.test_fraction}
        return {split: each for split, each in fractions.items() if each and split not in self._kinds}

    def placed(self, number: int) -> "Placed":
        """Return an example by its number in the snapshot. This reads only a few bytes."""
        part = int(np.searchsorted(self.first_numbers, number, side="right")) - 1
        row = self.parts[part].row(number - int(self.first_numbers[part]))
        lowest = self._lowest[part]
        [kind] = kinds_of(row.columns, self.rule, lowest)
        return Placed(row.example, SPLITS.index(self._split_of(KINDS[kind], lowest)))

    def is_training(self, part: int) -> NDArray[np.bool_]:
        """Return which rows of a part are for training, in the order of the part."""
        result: NDArray[np.bool_] = self.splits_of(part, self.parts[part].columns()) == SPLITS.index(TRAIN)
        return result

    def splits_of(self, part: int, columns: NDArray[np.void]) -> NDArray[np.int8]:
        """Return the splits of some rows of a part, which have these columns, as indexes in SPLITS."""
        return self.splits_of_kinds(part, kinds_of(columns, self.rule, self._lowest[part]))

    def splits_of_kinds(self, part: int, kinds: NDArray[np.int8]) -> NDArray[np.int8]:
        """Return the splits of some rows of a part, which have these kinds, as indexes in SPLITS."""
        splits = [SPLITS.index(self._split_of(kind, self._lowest[part])) for kind in KINDS]
        result: NDArray[np.int8] = np.array(splits, np.int8)[kinds]
        return result

    def first_rows(self, split: str, count: int) -> Iterator[RawExample]:
        """Yield the first `count` rows of a split, or all if there are fewer."""
        return map(from_line, self.first_lines(split, count))

    def first_lines(self, split: str, count: int) -> Iterator[bytes]:
        """Yield the lines of the first `count` rows of a split, or of all if there are fewer."""
        [pieces] = self.pieces(split, [0, min(count, self.examples[split])])
        yield from islice(merged_lines(pieces), count)

    def pieces(self, split: str, cuts: Sequence[int]) -> Iterator[list[Piece]]:
        """Yield the pieces between each cut and the next.

        Args:
            split: The split that is cut.
            cuts: Ascending numbers of examples. Each cut is after this many examples.
        """
        sections = self._sections[split]
        positions = _positions(sections, np.array(cuts, np.intp))
        offsets = np.empty_like(positions)
        for column, (section, index) in enumerate(zip(sections, _indexes(sections), strict=True)):
            # The first line begins at the start of the file, or where the last line of the section before it ends.
            begin = int(section.read(section.first - 1, 1)["end"][0]) if section.first else 0
            begins = np.concatenate((np.array([begin], np.uint64), index["end"]))
            offsets[:, column] = begins[positions[:, column]]
        lines = [str(section.lines) for section in sections]
        indexes = [str(index_path(section.part, section.name)) for section in sections]
        firsts = [section.first for section in sections]
        for row in range(len(cuts) - 1):
            counts = positions[row + 1] - positions[row]
            yield [
                Piece(
                    split=split,
                    lines=lines[section],
                    index_file=indexes[section],
                    first=firsts[section] + int(positions[row, section]),
                    rows=int(counts[section]),
                    begin=int(offsets[row, section]),
                    end=int(offsets[row + 1, section]),
                )
                for section in np.flatnonzero(counts)
            ]

    def _split_of(self, kind: str, lowest: int | None) -> str:
        """Return the split of the rows of a kind in a part with this lowest split hash.

        A share of the examples is held back for testing by the hash of their group, if the rule has one. If the source
        states validation examples, the other examples without a stated split are for training. Otherwise, a share of
        the examples that are not for testing is held back by the same hash, but at least one group.
        """
        if kind in (TEST, VALIDATION):
            return kind
        if kind == FOR_TEST:
            return TEST
        if VALIDATION in self._kinds:
            return TRAIN
        if "chosen" in self._kinds:
            return VALIDATION if kind == "chosen" else TRAIN
        return VALIDATION if kind == LOWEST and lowest == self._lowest_of_all else TRAIN


def _sorted_parts(parts: Sequence[Part], rule: SplitRule) -> Iterator[SortedPart]:
    """Yield the description of each part. A part that is not sorted yet is sorted first."""
    copies = copies_in_earlier_parts(parts, rule) if rule.numbers_copies else (NO_EARLIER for _ in parts)
    pairs = zip(parts, copies, strict=True)
    loaded = ordered_map(
        lambda pair: (*pair, load_sorted_part(pair[0], rule, pair[1])),
        pairs,
        READERS,
        under_way=READERS,
        size_of=lambda pair: pair[1].nbytes,
    )
    sorters = max(1, min(usable_cores(), MAX_SORTERS, available_memory() // SORT_BYTES))
    yield from ordered_map(lambda item: item[-1] or sorted_part(item[0], rule, item[1]), loaded, sorters, sorters)


def order_of(snapshot: Snapshot, options: PlanOptions) -> Order:
    """Return the order of a snapshot.

    Raises:
        SettingsError: If the settings ask for test examples, and the source states its own, or none is chosen. A date
            may have none.
        SourceError: If no example is for training.
    """
    kind, fraction = kind_of(snapshot), options.split.test_fraction
    order = Order(snapshot, options.split, kind.nouns)
    if fraction and order.states_test:
        raise SettingsError(
            f"test_fraction must be 0 for {options.source_uri!r}, which has test {kind.nouns} of its own, got "
            f"{fraction:g}"
        )
    if fraction and not order.examples[TEST]:
        chooses_none = f"test_fraction {fraction:g} chooses no {kind.noun} of {options.source_uri!r} for testing"
        if options.partition == LATEST:
            raise SettingsError(
                f"{chooses_none}: set a larger one or another split_seed, add {kind.nouns}, or make the groups "
                f"smaller, because all {kind.split_unit(snapshot)} are in the same split"
            )
        # A window of many dates has the test examples of the others.
        _log.warning("%s, so the date %s has no test split", chooses_none, options.partition)
    if not order.examples[TRAIN]:
        others = ", ".join(f"{count} for {split}" for split, count in order.examples.items() if count)
        raise SourceError(
            f"no {kind.noun} of {options.source_uri!r} is left for training ({others}): add {kind.nouns} for "
            f"training, or make the groups smaller, because all {kind.split_unit(snapshot)} are in the same split"
        )
    return order


def _positions(sections: Sequence[_Section], cuts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return how many rows of each section are before each cut, of shape (cuts, sections)."""
    positions = np.zeros((len(cuts), len(sections)), np.intp)
    total = sum(section.rows for section in sections)
    positions[cuts >= total] = [section.rows for section in sections]
    inner = np.flatnonzero((cuts > 0) & (cuts < total))
    if len(inner):
        hashes, ties = _hashes_at(sections, cuts[inner], total)
        for column, index in enumerate(_indexes(sections)):
            positions[inner, column] = np.searchsorted(index["hash"].copy(), hashes)
        for row in np.flatnonzero(ties):
            positions[inner[row]] += _tied_rows(sections, hashes[row], int(ties[row]))
    return positions


def _hashes_at(
    sections: Sequence[_Section], cuts: NDArray[np.intp], total: int
) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """Return the hash of the first row after each cut, and how many rows of this very hash are before the cut."""
    bits = min(max((total // ROWS_PER_BIN).bit_length(), 1), MAX_BIN_BITS)
    shift = np.uint64(64 - bits)
    counts = np.zeros(1 << bits, np.intp)
    for index in _indexes(sections):
        counts += np.bincount((index["hash"] >> shift).astype(np.intp), minlength=len(counts))
    ends = np.cumsum(counts)
    bins = np.searchsorted(ends, cuts, side="right")
    members = _members(sections, np.unique(bins), shift)
    hashes, ties = np.empty(len(cuts), np.uint64), np.empty(len(cuts), np.intp)
    for row, (bin_, cut) in enumerate(zip(bins.tolist(), cuts.tolist(), strict=True)):
        of_bin, before = members[bin_], cut - int(ends[bin_] - counts[bin_])
        hashes[row] = of_bin[before]
        ties[row] = before - np.searchsorted(of_bin, of_bin[before])
    return hashes, ties


def _members(sections: Sequence[_Section], bins: NDArray[np.intp], shift: np.uint64) -> dict[int, NDArray[np.uint64]]:
    """Return the hashes in each of some bins, sorted."""
    members: dict[int, list[NDArray[np.uint64]]] = {bin_: [] for bin_ in bins.tolist()}
    begins = bins.astype(np.uint64) << shift
    lasts = begins | ((np.uint64(1) << shift) - np.uint64(1))
    for index in _indexes(sections):
        hashes = index["hash"].copy()  # Otherwise, `searchsorted` would copy them for each call.
        bounds = zip(np.searchsorted(hashes, begins), np.searchsorted(hashes, lasts, side="right"), strict=True)
        for bin_, (begin, end) in zip(members, bounds, strict=True):
            members[bin_].append(hashes[begin:end].copy())  # A view would keep all hashes of the section in memory.
    return {bin_: np.sort(np.concatenate(of_sections)) for bin_, of_sections in members.items()}


def _tied_rows(sections: Sequence[_Section], hash_: np.uint64, count: int) -> NDArray[np.intp]:
    """Return how many of the first `count` rows with one hash are in each section, in the order of `merged_lines`."""
    tied = []
    for column, (section, index) in enumerate(zip(sections, _indexes(sections), strict=True)):
        begin, end = np.searchsorted(index["hash"], hash_), np.searchsorted(index["hash"], hash_, side="right")
        tied += [(line, column) for line in _lines(section, int(begin), int(end))]
    columns = np.array([column for _, column in sorted(tied)[:count]], np.intp)
    return np.bincount(columns, minlength=len(sections))


def _lines(section: _Section, begin: int, end: int) -> list[bytes]:
    """Return the lines of some rows of a section."""
    if begin == end:
        return []
    first = section.first + begin
    start = int(section.read(first - 1, 1)["end"][0]) if first else 0
    ends = section.read(first, end - begin)["end"].tolist()
    content = read_sorted(section.lines, start, ends[-1] - start)
    return [content[a - start : b - start] for a, b in pairwise([start, *ends])]


def _indexes(sections: Sequence[_Section]) -> Iterator[NDArray[np.void]]:
    """Yield the index of each section. Up to INDEX_READERS of them are in memory, of 20 bytes per row."""
    return ordered_map(
        lambda section: section.read(section.first, section.rows),
        sections,
        INDEX_READERS,
        under_way=INDEX_READERS,
    )
