"""The batches of a record as columns: one column of a long training fits into memory, and all of them do not."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.monitor.record import read_closed, read_column, read_segment, segments, survives

if TYPE_CHECKING:
    import pandas


class BatchColumns(Mapping[str, NDArray[Any]]):
    """The batches that `read` returns, as a table whose columns are read each time that they are asked for.

    Rows that are written later are left out, so that all columns have the same length, and so are those of the epochs
    (from 1) before `first_epoch`.
    """

    def __init__(self, folder: Path, first_epoch: int = 1) -> None:
        self._parts: list[Path | pandas.DataFrame] = []
        self._names: dict[str, None] = {}
        steps: list[NDArray[np.int64]] = []
        for path in segments(folder, "batches"):
            closed = read_closed(path)  # All of it, because a segment with a damaged column has no rows.
            # A closed segment never changes, so its path is kept. An open segment still grows, so its rows are kept.
            rows = read_segment(path) if closed is None else closed
            self._parts.append(rows if closed is None else path)
            self._names |= dict.fromkeys(map(str, rows))
            steps.append(rows["step"].to_numpy(copy=True))  # A view would keep all columns in memory.
        self._counts = [len(each) for each in steps]
        survivors = _survivors(steps)
        self._survivors: slice | NDArray[np.bool_] = slice(None)
        if first_epoch > 1 and "epoch" in self:
            survivors &= self["epoch"] >= first_epoch
        if not survivors.all():
            self._survivors = survivors

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        values, end = np.full(sum(self._counts), np.nan), 0
        for part, count in zip(self._parts, self._counts, strict=True):
            column = read_column(part, name) if isinstance(part, Path) else part.get(name)
            if column is not None:  # The segment may lack it.
                values[end : end + count] = column
            end += count
        return values[self._survivors]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # The method of the base class would read the column.

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _survivors(steps: Sequence[NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Return `survives` of the steps of all segments, one segment after the other, because that needs less memory."""
    lowest, survivors = np.array([np.iinfo(np.int64).max]), [np.empty(0, bool)]
    for each in reversed(steps):
        from_here = np.append(each, lowest)
        survivors.append(survives(from_here)[:-1])
        lowest = from_here.min(keepdims=True)
    return np.concatenate(survivors[::-1])
