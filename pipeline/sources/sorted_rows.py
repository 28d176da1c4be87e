"""Rows of Arrow in a file, in the order of the bytes of their keys. Each range of keys reads its own rows.

The rows are sorted in runs. A step of the merge takes the rows between two keys out of all runs. Beside them, it holds
one part of each run, so many runs are first merged in groups. The first and the last key of every part stay in memory.
Rows with equal keys are held together.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

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


class _Span(NamedTuple):
    """The keys of the first and the last row of a batch."""

    first: bytes
    last: bytes


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
        spans = _write_runs(runs, tables, spare=merged)
        are_renamed = False

        def in_order() -> Iterator[pa.Table]:
            nonlocal are_renamed
            for table in _merged(runs, spans):
                other = renamed(table) if renamed else table
                are_renamed |= other is not table
                yield other

        _write(merged, in_order())
        if are_renamed:
            spans = _write_runs(runs, _tables(merged), spare=merged)
            _write(merged, _merged(runs, spans))
        storage.move_whole(merged, place)


def _tables(file: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(file)) as stream:
        reader = pa.ipc.open_file(stream)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


def _write(file: Path, tables: Iterator[pa.Table], max_rows: int | None = None) -> list[_Span]:
    """Write each table as a batch, or as batches of at most `max_rows`, and return the keys of all batches."""
    first = next(tables, None)
    if first is None:
        first = pa.schema({"key": pa.large_binary()}).empty_table()
    spans = []
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, first.schema) as writer:
        for rows in chain.from_iterable(table.to_batches(max_rows) for table in chain([first], tables)):
            writer.write_batch(rows)
            spans.append(_Span(rows["key"][0].as_py(), rows["key"][-1].as_py()))
    return spans


def _write_runs(runs: Path, tables: Iterable[pa.Table], spare: Path) -> list[_Span]:
    """Write rows as sorted runs, and return the keys of their parts.

    Groups of runs are merged until a step of the merge can hold a part of each run.
    """
    spans = _write(runs, _runs(tables), PART_ROWS)
    parts_of_run = max(1, RUN_ROWS // PART_ROWS)
    few = 4 * parts_of_run  # Their parts have four times the rows of a step.
    size = few * parts_of_run
    while len(spans) > size:
        spans = _write(spare, _merged(runs, spans, size), PART_ROWS)
        spare.replace(runs)
        size *= few
    return spans


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


def _merged(file: Path, spans: Sequence[_Span], size: int | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a file of sorted runs in order. Rows with equal keys are in one table.

    With `size`, only each group of this many parts is in order. A group may begin and end within a run.
    """
    with pa.OSFile(str(file)) as stream:  # The pages of a map would count as memory of this process.
        reader = pa.ipc.open_file(stream)
        count = len(spans)
        for start in range(0, count, size or max(1, count)):
            yield from _merged_parts(reader, spans, range(start, min(count, start + (size or count))))


def _merged_parts(reader: pa.RecordBatchFileReader, spans: Sequence[_Span], parts: range) -> Iterator[pa.Table]:
    by_first = sorted(parts, key=lambda part: spans[part].first)
    of_step = max(1, RUN_ROWS // PART_ROWS)
    # No row comes before the first key of all, so a step up to it would be empty.
    ends = list(dict.fromkeys(spans[part].first for part in by_first[of_step::of_step]))
    ends = [end for end in ends if end > spans[by_first[0]].first]
    begun, held = 0, dict[int, pa.RecordBatch]()
    for end in ends:
        first_new, begun = begun, bisect_left(by_first, end, begun, key=lambda part: spans[part].first)
        held |= {part: reader.get_batch(part) for part in by_first[first_new:begun]}
        lengths = {part: _position(rows, end) if spans[part].last >= end else len(rows) for part, rows in held.items()}
        step = _joined({part: held[part].slice(0, length) for part, length in lengths.items()})
        held = {part: held[part].slice(length) for part, length in lengths.items() if length < len(held[part])}
        yield _in_order(step)
    held |= {part: reader.get_batch(part) for part in by_first[begun:]}
    if held:
        yield _in_order(_joined(held))


def _joined(rows: Mapping[int, pa.RecordBatch]) -> pa.Table:
    """Return rows in the order of their parts, so that rows with equal keys keep their order."""
    return pa.Table.from_batches([rows[part] for part in sorted(rows)]).combine_chunks()


def _between(rows: pa.RecordBatch, first: bytes, end: bytes) -> pa.RecordBatch:
    """Return the rows with keys from `first` up to `end`, which is excluded. If it is empty, there is no end."""
    start = _position(rows, first)
    return rows.slice(start, _position(rows, end) - start if end else None)


def _position(rows: pa.RecordBatch, key: bytes) -> int:
    """Return how many rows have keys before `key`."""
    keys = rows["key"]
    return bisect_left(range(len(keys)), key, key=lambda row: keys[row].as_py())
