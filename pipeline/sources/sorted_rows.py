"""Rows of Arrow in a file, in the order of the bytes of their keys. Each range of keys reads its own rows.

The rows are sorted in runs. A step of the merge takes the rows between two keys out of all runs. Beside them, it holds
one part of each run, so many runs are first merged in groups. Rows with equal keys are held together.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain, pairwise
from pathlib import Path

import pyarrow as pa
from pyarrow import compute

from pipeline import storage
from pipeline.errors import FileSystemError
from pipeline.sources.key_range import KeyRange, bytes_of, text_of_key
from pipeline.storage import Place

RUN_ROWS = 16_384
"""About this many rows are sorted at once. They take a few megabytes, and a few times as much while they are sorted."""
PART_ROWS = 128
"""A step of the merge reads parts of runs of this many rows."""
Rename = Callable[[pa.Table], pa.Table]
"""Returns the same table, or one with other keys."""


class SortedRows:
    """The rows of a file that `write_sorted` wrote. One batch of them is in memory."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)
        try:
            self._reader = pa.ipc.open_file(pa.OSFile(self._file))
        except pa.ArrowException as error:
            raise FileSystemError(f"{file} is damaged: run `extract` again") from error

    def boundaries(self, most: int, min_rows: int) -> list[str]:
        """Return up to `most - 1` keys that divide the rows into ranges of about equal size, of at least `min_rows`."""
        with pa.memory_map(self._file) as mapped:  # Reads only the pages with the keys.
            reader = pa.ipc.open_file(mapped)
            batches = [reader.get_batch(number)["key"] for number in range(reader.num_record_batches)]
            ends = list(accumulate(map(len, batches), initial=0))
            parts = min(most, ends[-1] // max(1, min_rows))
            keys = []
            for row in (ends[-1] * part // parts for part in range(1, parts)):
                number = bisect_left(ends, row + 1) - 1
                keys.append(text_of_key(batches[number][row - ends[number]].as_py()))
            del batches
        return list(filter(None, dict.fromkeys(keys)))

    def batches(self, keys: KeyRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a range. Rows with equal keys are in one batch, in the order in which they were written."""
        first, end = map(bytes_of, keys)
        numbers = range(self._reader.num_record_batches)
        # The first batch that ends in the range.
        start = bisect_left(numbers, first, key=lambda number: self._reader.get_batch(number)["key"][-1].as_py())
        for number in numbers[start:]:
            batch = self._reader.get_batch(number)
            if end and batch["key"][0].as_py() >= end:
                return
            yield _between(batch, first, end)


def write_sorted(place: Place, tables: Iterable[pa.Table], renamed: Rename | None = None) -> None:
    """Write rows in the order of their column `key`, which is binary. Rows with equal keys keep their order.

    Args:
        place: The file, which is whole or absent.
        tables: The rows.
        renamed: Gets the rows in order, and all rows with equal keys at once. Rows with other keys are sorted again.
    """
    with storage.temporary_for(place.with_suffix(".runs")) as runs, storage.temporary_for(place) as merged:
        _write_runs(runs, tables, spare=merged)
        are_renamed = False

        def in_order() -> Iterator[pa.Table]:
            nonlocal are_renamed
            for table in _merged(runs):
                other = renamed(table) if renamed else table
                are_renamed |= other is not table
                yield other

        _write(merged, in_order())
        if are_renamed:
            _write_runs(runs, _tables(merged), spare=merged)
            _write(merged, _merged(runs))
        storage.move_whole(merged, place)


def _tables(file: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(file)) as stream:
        reader = pa.ipc.open_file(stream)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


def _write(file: Path, tables: Iterator[pa.Table], max_rows: int | None = None) -> int:
    """Write each table as a batch, or as batches of at most `max_rows`, and return their number."""
    first = next(tables, None)
    if first is None:
        first = pa.schema({"key": pa.large_binary()}).empty_table()
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table, max_rows)
        return int(writer.stats.num_record_batches)


def _write_runs(runs: Path, tables: Iterable[pa.Table], spare: Path) -> None:
    """Write rows as sorted runs. Groups of runs are merged until a step of the merge can read a part of each run."""
    count = _write(runs, _runs(tables), PART_ROWS)
    parts_of_run = max(1, RUN_ROWS // PART_ROWS)
    few = 4 * parts_of_run  # Their parts have four times the rows of a step.
    size = few * parts_of_run
    while count > size:
        count = _write(spare, _merged(runs, size), PART_ROWS)
        spare.replace(runs)
        size *= few


def _runs(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield all rows as tables that are sorted."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= RUN_ROWS:
            yield _in_order(pa.concat_tables(waiting))
            waiting = []
    if sum(map(len, waiting)):
        yield _in_order(pa.concat_tables(waiting))


def _in_order(table: pa.Table) -> pa.Table:
    table = table.combine_chunks()
    return table.take(compute.sort_indices(table["key"])).combine_chunks()


def _merged(file: Path, size: int | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a file of sorted runs in order. Rows with equal keys are in one table.

    With `size`, only each group of this many parts is in order. A group may begin and end within a run.
    """
    with pa.OSFile(str(file)) as stream:  # The pages of a map would count as memory of this process.
        reader = pa.ipc.open_file(stream)
        count = reader.num_record_batches
        for start in range(0, count, size or max(1, count)):
            yield from _merged_parts(reader, range(start, min(count, start + (size or count))))


def _merged_parts(reader: pa.RecordBatchFileReader, parts: range) -> Iterator[pa.Table]:
    keys_of_parts = (reader.get_batch(part)["key"] for part in parts)
    spans = {part: (keys[0].as_py(), keys[-1].as_py()) for part, keys in zip(parts, keys_of_parts, strict=True)}
    by_first = sorted(parts, key=lambda part: spans[part][0])
    step = max(1, RUN_ROWS // PART_ROWS)
    bounds = filter(None, dict.fromkeys(spans[part][0] for part in by_first[step::step]))
    position, unfinished = 0, list[int]()
    for first, end in pairwise([b"", *bounds, b""]):
        begun = bisect_left(by_first, end, position, key=lambda part: spans[part][0]) if end else len(by_first)
        # Rows with equal keys keep their order, which is that of the parts.
        read = sorted([*unfinished, *by_first[position:begun]])
        if read:
            yield _in_order(pa.Table.from_batches([_between(reader.get_batch(part), first, end) for part in read]))
        position, unfinished = begun, [part for part in read if spans[part][1] >= end]


def _between(rows: pa.RecordBatch, first: bytes, end: bytes) -> pa.RecordBatch:
    """Return the rows with keys from `first` up to `end`, which is excluded. If it is empty, there is no end."""
    keys = [first, end] if end else [first]
    start, *ends = (bisect_left(range(len(rows)), key, key=lambda row: rows["key"][row].as_py()) for key in keys)
    return rows.slice(start, ends[0] - start if ends else None)
