"""Sort a part of a snapshot: the first half of planning, which many tasks can do, each for its own parts.

The order of a dataset is that of a salted hash of the keys, within each split. So each part is sorted alone, and a task
that writes shards merges a piece of each sorted part. Which split a row belongs to may depend on rows of other parts:
for example, no example is held back by its hash if any part has an example that the source states as validation.
Therefore, a part is sorted by kinds of rows, from which `pipeline/plan/order.py` decides the splits.

The rows of a table are ordered by a hash of the whole row. Equal rows are numbered, and the number is part of the hash.
Otherwise, all of them would follow each other. If earlier parts have rows that are equal to those of a part, the part
is sorted with numbers that begin after theirs: see `pipeline/plan/copies.py`.

A sorted part has three files beside the part, and a fourth one if its lines must be copied. The lines are the rows in
the new order. A part that stores its lines in this order, as that of a table, needs no copy. The index has the hash of
each line and its end in the file. The contents are the hashes of the contents of the rows, sorted, so that equal
examples of all parts can be found one range after another. The description is written last.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from pipeline import storage
from pipeline.plan.assign import salted
from pipeline.plan.merge import folded, read_sorted
from pipeline.snapshot.part import LINES_AT_ONCE, SPLITS, TEST, VALIDATION, Part, starts_of
from pipeline.storage import Place
from pipeline.system.malloc import return_freed_memory

INDEX = np.dtype([("hash", "<u8"), ("end", "<u8"), ("crc32c", "<u4")])
"""The order hash of a row, the end of its line in the file, and a `checksum` of pipeline/plan/merge.py."""
CONTENTS = np.dtype(
    [("content", "<u8"), ("order", "<u8"), ("row", "<u4"), ("size", "<u4"), ("label", "<i4"), ("kind", "i1")]
)
"""A hash of the content of a row, its hash in COLUMNS that decides the order, the number of the row in the part, its
size, the index of its label in the part, and that of its kind in KINDS.

With these, no reader of the contents needs the rows. The largest 32-bit number stands for all larger sizes.
"""
EARLIER = np.dtype([("row", "<u4"), ("copies", "<u4")])
"""The number of a row in the part, and how many rows of earlier parts are equal to it."""
LOWEST = "lowest"
FOR_TEST = "for_test"
KINDS = ("test", "validation", FOR_TEST, "chosen", LOWEST, "rest")
"""Kinds of rows. The source states the first two.

The others are rows that may be held back. A row is "chosen" if its split hash is below the fraction for validation. It
is "for_test" if its split hash is among the highest, so that another fraction for test moves no row from or to
validation. It is "lowest" if its split hash is the lowest one in the part. If no row of any part is chosen, the lowest
ones are held back.
"""
_TEST, _VALIDATION, _FOR_TEST, _CHOSEN, _LOWEST, _REST = range(len(KINDS))
FORMAT = 4
"""Increase this if the files of a sorted part change. Parts are then sorted again."""
NO_EARLIER = np.empty(0, EARLIER)
"""No row of a part is equal to one of an earlier part."""


class SplitRule(NamedTuple):
    """The settings that decide the split and the order."""

    split_seed: int
    validation_fraction: float
    test_fraction: float = 0.0
    numbers_copies: bool = False
    """Whether equal rows are numbered. The rows of a table may be equal. The keys of images are all different."""

    @property
    def name(self) -> str:
        """A short text that differs for different rules, for names of files."""
        values = f"{FORMAT}/{self.split_seed}/{self.validation_fraction!r}/{self.test_fraction!r}/{self.numbers_copies}"
        return hashlib.blake2b(values.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class Section:
    """The rows of one kind in a sorted part: `rows` entries of the index from `first` on."""

    first: int
    rows: int
    classes: dict[str, int]
    """Number of rows by their first label."""


@dataclass(frozen=True)
class SortedPart:
    """The description of a sorted part."""

    name: str
    """What the names of its lines and index have in common, after that of the part."""
    has_lines: bool
    """Whether it has a file of lines. Otherwise, the part stores its lines in this order."""
    sections: dict[str, Section]
    """The section of each kind that the part has."""
    lowest: int | None
    """The lowest split hash of the rows that the source does not state as test; None if there is no such row."""


def sorted_part(part: Part, rule: SplitRule, earlier: NDArray[np.void] = NO_EARLIER) -> SortedPart:
    """Return the description of a sorted part. The part is sorted first, unless it has been.

    `earlier` are elements of EARLIER, for each row that earlier parts have, too.
    """
    return load_sorted_part(part, rule, earlier) or _sort(part, rule, earlier)


def load_sorted_part(part: Part, rule: SplitRule, earlier: NDArray[np.void] = NO_EARLIER) -> SortedPart | None:
    """Return the description of a sorted part; None if the part is not sorted yet, or if the description is damaged."""
    try:
        content = storage.read_json(_description_path(part, _name(rule, earlier)))
        sections = {kind: Section(**section) for kind, section in content["sections"].items()}
        return SortedPart(**{**content, "sections": sections})
    # To sort a part again takes a second. Its plan would otherwise stop until a person removes the file.
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def lines_path(part: Part, described: SortedPart) -> Place:
    """Return the file of the sorted lines."""
    return part.beside(f".{described.name}.lines") if described.has_lines else storage.place_of(part.rows)


def index_path(part: Part, name: str) -> Place:
    """Return the index of a sorted part. `name` is that of the `SortedPart`."""
    return part.beside(f".{name}.index")


def read_index(part: Part, name: str, first: int, rows: int) -> NDArray[np.void]:
    """Return `rows` elements of the index of a sorted part, of type INDEX, from the number `first` on."""
    content = read_sorted(index_path(part, name), first * INDEX.itemsize, rows * INDEX.itemsize)
    return np.frombuffer(content, INDEX)


def sorted_contents(part: Part, rule: SplitRule) -> int:
    """Return the number of rows in the contents of a part. They are sorted first, unless they have been."""
    try:
        return _contents_path(part, rule).stat().st_size // CONTENTS.itemsize
    except FileNotFoundError:
        return _write_contents(part, rule)


def read_contents(part: Part, rule: SplitRule, first: int, rows: int) -> NDArray[np.void]:
    """Return `rows` elements of the contents of a sorted part, of type CONTENTS, from the number `first` on."""
    content = read_sorted(_contents_path(part, rule), first * CONTENTS.itemsize, rows * CONTENTS.itemsize)
    return np.frombuffer(content, CONTENTS)


def kinds_of(columns: NDArray[np.void], rule: SplitRule, lowest: int | None) -> NDArray[np.int8]:
    """Return the kind of each row, as its index in KINDS. `lowest` is the lowest split hash of the whole part."""
    hashes = salted(columns["group"], "split", rule.split_seed)
    kinds = np.full(len(columns), _REST, np.int8)
    if lowest is not None:
        kinds[hashes == np.uint64(lowest)] = _LOWEST
    kinds[hashes < _part_of_hashes(rule.validation_fraction)] = _CHOSEN
    kinds[~hashes < _part_of_hashes(rule.test_fraction)] = _FOR_TEST  # The complement is low if the hash is high.
    kinds[columns["split"] == SPLITS.index(VALIDATION)] = _VALIDATION
    kinds[columns["split"] == SPLITS.index(TEST)] = _TEST
    return kinds


def _lowest_of(columns: NDArray[np.void], rule: SplitRule) -> int | None:
    """Return the lowest split hash of a part: see `SortedPart`."""
    hashes = salted(columns["group"], "split", rule.split_seed)[columns["split"] != SPLITS.index(TEST)]
    return int(hashes.min()) if len(hashes) else None


def _part_of_hashes(fraction: float) -> np.uint64:
    """Return the limit below which this fraction of all hashes is."""
    # At a fraction of 1, 2**64 would not fit into 64 bits.
    return np.uint64(min(fraction * 2**64, 2**64 - 1))


def _name(rule: SplitRule, earlier: NDArray[np.void]) -> str:
    # Another table may have the same part after other ones.
    return f"{rule.name}-{xxh3_64_hexdigest(earlier.tobytes())}" if len(earlier) else rule.name


def _description_path(part: Part, name: str) -> Place:
    return part.beside(f".{name}.sorted")


def _contents_path(part: Part, rule: SplitRule) -> Place:
    return part.beside(f".{rule.name}.contents")


def line_order(columns: NDArray[np.void], rule: SplitRule) -> NDArray[np.intp]:
    """Return the order in which a sorted part has some rows, if no earlier part has one of them: see `Arrange`."""
    return _by_kind_and_hash(kinds_of(columns, rule, _lowest_of(columns, rule)), _hashes(columns, rule, NO_EARLIER))


def _by_kind_and_hash(kinds: NDArray[np.int8], hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
    return np.lexsort((hashes, kinds))


def _hashes(columns: NDArray[np.void], rule: SplitRule, earlier: NDArray[np.void]) -> NDArray[np.uint64]:
    """Return the hash of each row that decides its place among those of its kind."""
    own = _numbered(columns["order"], earlier) if rule.numbers_copies else columns["order"]
    return salted(own, "order", rule.split_seed)


def _sort(part: Part, rule: SplitRule, earlier: NDArray[np.void]) -> SortedPart:
    columns = part.columns()
    lowest = _lowest_of(columns, rule)
    kinds, hashes = kinds_of(columns, rule, lowest), _hashes(columns, rule, earlier)
    order = _by_kind_and_hash(kinds, hashes)
    content = cache(storage.place_of(part.rows).read_bytes)  # Read once, and only if it is needed.
    _order_equal_hashes(content, columns, order, hashes, kinds)
    starts = starts_of(columns["length"][order])
    described = SortedPart(
        name=_name(rule, earlier),
        has_lines=not np.array_equal(columns["offset"][order], starts),
        sections=_sections(part, columns["label"], kinds),
        lowest=lowest,
    )
    if described.has_lines:
        with storage.write_whole(lines_path(part, described), synced=True) as file:
            file.writelines(_lines_in_order(content(), columns, order))
    content.cache_clear()  # Up to 128 MB that nothing needs any more.
    if described.has_lines:
        return_freed_memory()
    index = np.empty(part.listed, INDEX)
    index["hash"], index["end"] = hashes[order], starts + columns["length"][order]
    index["crc32c"] = columns["checksum"][order] ^ folded(index["hash"]).astype(np.uint32)
    with storage.write_whole(index_path(part, described.name), synced=True) as file:
        file.write(index.tobytes())
    sorted_contents(part, rule)
    path = _description_path(part, described.name)
    # After a power loss, the description must not exist without the other files.
    storage.sync_folder(path.parent)
    storage.write_json(path, asdict(described), synced=True)
    return described


def _lines_in_order(content: bytes, columns: NDArray[np.void], order: NDArray[np.intp]) -> Iterator[bytes]:
    """Yield the lines of a part, whose file of rows has this content, in an order, many of them joined."""
    for start in range(0, len(order), LINES_AT_ONCE):
        some = columns[order[start : start + LINES_AT_ONCE]]
        begins = some["offset"].astype(np.int64)
        bounds = zip(begins.tolist(), (begins + some["length"]).tolist(), strict=True)
        yield b"".join([content[begin:end] for begin, end in bounds])


def _numbered(hashes: NDArray[np.uint64], earlier: NDArray[np.void]) -> NDArray[np.uint64]:
    """Return the hashes of rows such that those of equal rows differ. That of the first one stays.

    The others are mixed with a number, which counts the equal rows before it, also those of earlier parts.
    """
    order = np.argsort(hashes, kind="stable")
    positions, is_first = np.arange(len(hashes)), np.ones(len(hashes), np.bool_)
    is_first[1:] = hashes[order[1:]] != hashes[order[:-1]]
    numbers = np.empty(len(hashes), np.uint64)
    numbers[order] = positions - np.maximum.accumulate(np.where(is_first, positions, 0))
    numbers[earlier["row"]] += earlier["copies"]
    return np.where(numbers > 0, hashes ^ salted(numbers, "copies", 0), hashes)


def _order_equal_hashes(
    content: Callable[[], bytes],
    columns: NDArray[np.void],
    order: NDArray[np.intp],
    hashes: NDArray[np.uint64],
    kinds: NDArray[np.int8],
) -> None:
    """Order rows of one kind with equal hashes as `merged_lines` does: by their lines. They are rare.

    `content` returns the content of the file of rows.
    """
    is_equal = (hashes[order[1:]] == hashes[order[:-1]]) & (kinds[order[1:]] == kinds[order[:-1]])
    if not is_equal.any():
        return
    lines = content()

    def line_of(number: np.intp) -> bytes:
        begin = int(columns["offset"][number])
        return lines[begin : begin + int(columns["length"][number])]

    borders = np.flatnonzero(np.diff(is_equal.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    for first, last in borders.tolist():
        order[first : last + 1] = sorted(order[first : last + 1], key=line_of)


def _write_contents(part: Part, rule: SplitRule) -> int:
    columns = part.columns()
    rows = np.flatnonzero(columns["content"])
    contents = np.empty(len(rows), CONTENTS)
    # Ranges of hashes have equally many rows. The content of an image is its size and CRC32C.
    contents["content"] = salted(columns["content"][rows], "content", 0)
    contents["row"], contents["size"] = rows, np.minimum(columns["size"][rows], 2**32 - 1)
    contents["order"], contents["label"] = columns["order"][rows], columns["label"][rows]
    contents["kind"] = kinds_of(columns, rule, _lowest_of(columns, rule))[rows]
    contents = contents[np.argsort(contents["content"], kind="stable")]
    with storage.write_whole(_contents_path(part, rule), synced=True) as file:
        file.write(contents.tobytes())
    return len(rows)


def _sections(part: Part, labels: NDArray[np.int32], kinds: NDArray[np.int8]) -> dict[str, Section]:
    names, first, sections = part.labels(), 0, {}
    for kind, name in enumerate(KINDS):
        of_kind = labels[kinds == kind]
        if len(of_kind):
            counts = np.bincount(of_kind, minlength=len(names)).tolist()
            classes = {label: count for label, count in zip(names, counts, strict=True) if count}
            sections[name] = Section(first, len(of_kind), classes)
            first += len(of_kind)
    return sections
