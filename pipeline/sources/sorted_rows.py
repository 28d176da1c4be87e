"""Rows of Arrow in a file, in the order of the bytes of their keys. Each range of keys reads its own rows.

Memory does not grow with the rows. They are sorted in runs. A step of the merge takes the rows between two keys out of
all runs.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from pathlib import Path

import pyarrow as pa
from pyarrow import compute

from pipeline import storage
from pipeline.sources.key_range import KeyRange, bytes_of
from pipeline.storage import Place

RUN_ROWS = 65_536
"""About this many rows are sorted at once."""
SAMPLE = 512
"""Each row of this distance in a run is in the sample that decides the steps of the merge."""


class SortedRows:
    """The rows of a file that `write_sorted` wrote. One batch of them is in memory."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)
        self._reader = pa.ipc.open_file(pa.OSFile(self._file))

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
                keys.append(batches[number][row - ends[number]].as_py().decode("utf-8", "surrogateescape"))
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
            position = _position(batch["key"], first)
            last = _position(batch["key"], end) if end else len(batch)
            yield batch.slice(position, last - position)


def write_sorted(place: Place, tables: Iterable[pa.Table]) -> None:
    """Write rows in the order of their column `key`, which is binary. Rows with equal keys keep their order."""
    with storage.temporary_for(place.with_suffix(".runs")) as runs, storage.temporary_for(place) as merged:
        _write(runs, _runs(tables))
        _write(merged, _merged(runs))
        storage.move_whole(merged, place)


def _write(file: Path, tables: Iterator[pa.Table]) -> None:
    """Write each table as a batch."""
    first = next(tables, pa.table({"key": pa.array([], pa.large_binary())}))
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


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


def _merged(file: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file of sorted runs in order. Rows with equal keys are in one table."""
    with pa.OSFile(str(file)) as stream:
        reader = pa.ipc.open_file(stream)
        numbers = range(reader.num_record_batches)
        samples = sorted(key for number in numbers for key in reader.get_batch(number)["key"].to_pylist()[::SAMPLE])
    starts = [0] * len(numbers)
    for end in [*dict.fromkeys(samples[RUN_ROWS // SAMPLE :: RUN_ROWS // SAMPLE]), None]:
        # A map that is closed no longer counts as memory of this process.
        with pa.memory_map(str(file)) as mapped:
            reader = pa.ipc.open_file(mapped)
            runs = list(map(reader.get_batch, numbers))
            ends = [len(run) if end is None else _position(run["key"], end) for run in runs]
            parts = [run.slice(start, stop - start) for run, start, stop in zip(runs, starts, ends, strict=True)]
            table = _in_order(pa.Table.from_batches(parts)) if parts else None
            del runs, parts
        starts = ends
        if table is not None and len(table):
            yield table


def _position(keys: pa.Array, wanted: bytes) -> int:
    """Return the number of the first key in order that does not come before another one."""
    return bisect_left(range(len(keys)), wanted, key=lambda number: keys[number].as_py())
