"""The batches of a record as columns: one column of a long training fits into memory, and all of them do not."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.monitor.record import columns_of, read_segment, segments, survives

if TYPE_CHECKING:
    import pandas


class Columns(Mapping[str, NDArray[Any]]):
    """The batches that `read` returns, as a table whose columns are read each time that they are asked for.

    Rows that are written later are left out, so that all columns have the same length.

    Args:
        folder: The folder of the record.
    """

    def __init__(self, folder: Path) -> None:
        self._parts: list[Path | pandas.DataFrame] = []
        self._names: dict[str, None] = {}
        for path in segments(folder, "batches"):
            names = columns_of(path)
            # A closed segment never changes, so its path is enough. Of one that still grows, all rows are kept.
            self._parts.append(read_segment(path) if names is None else path)
            self._names |= dict.fromkeys([*read_segment(path)] if names is None else names)
        survivors = survives(self._whole("step").astype(np.int64))
        self._survivors = slice(None) if survivors.all() else survivors

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._whole(name)[self._survivors]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _whole(self, name: str) -> NDArray[Any]:
        """Return a column with the steps that were repeated later."""
        tables = [read_segment(part, {name}.__contains__) if isinstance(part, Path) else part for part in self._parts]
        pieces = [table[name].to_numpy() if name in table else np.full(len(table), np.nan) for table in tables]
        return np.concatenate(pieces) if pieces else np.empty(0)
