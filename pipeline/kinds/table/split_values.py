"""The values that decide the split of the rows of a table, and what they make of the shares of the splits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.plan.assign import salted
from pipeline.plan.order import Order
from pipeline.snapshot.part import SPLITS
from pipeline.system.progress import progress
from pipeline.tables.schema import Column, Schema

KEPT_HASHES = 1 << 16
"""Up to this number, different values are counted exactly. The error of a larger number is about 0.4%."""


def split_column(schema: Schema) -> Column | None:
    """Return the column whose values decide the split; None if whole rows do."""
    return schema.of_role("group") or schema.of_role("key")


def split_facts(schema: Schema, order: Order) -> dict[str, Any]:
    """Return how many values decide the split, and the shares of the splits that they decide.

    Rejected rows do not count. `shares` has, by split, the share of the rows whose split the source does not state, and
    the fraction of the setting.
    """
    different, rows = DifferentHashes(), np.zeros(len(SPLITS), np.intp)
    with progress("count split values", sum(part.listed for part in order.parts), "rows") as advance:
        for number, part in enumerate(order.parts):
            columns = part.columns()
            columns = columns[columns["size"] > 0]
            different.add(salted(columns["group"], "split", order.rule.split_seed))
            rows += np.bincount(order.splits_of(number, columns), minlength=len(SPLITS))
            advance(part.listed)
    counts, fractions = dict(zip(SPLITS, rows.tolist(), strict=True)), order.fractions_by_hash
    free = max(1, sum(count for split, count in counts.items() if split == "train" or split in fractions))
    column = split_column(schema)
    return {
        "column": column.name if column else "",
        "setting": f"{column.role}_column" if column else "",
        "values": different.count,
        "rows": sum(counts.values()),
        "shares": {split: [round(counts[split] / free, 4), fraction] for split, fraction in fractions.items()},
    }


class DifferentHashes:
    """Counts different hashes in constant memory. A large count is estimated from the smallest hashes.

    Source: Beyer et al.: On Synopses for Distinct-Value Estimation Under Multiset Operations, 2007.
    """

    def __init__(self, kept: int = KEPT_HASHES) -> None:
        self._kept = kept
        self._smallest = np.empty(0, np.uint64)

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add some hashes."""
        if self._is_full:
            hashes = hashes[hashes < self._smallest[-1]]
        self._smallest = np.unique(np.concatenate((self._smallest, hashes)))[: self._kept]

    @property
    def count(self) -> int:
        """The number of different hashes."""
        if not self._is_full:
            return len(self._smallest)
        return round((self._kept - 1) * 2**64 / int(self._smallest[-1]))

    @property
    def _is_full(self) -> bool:
        return len(self._smallest) == self._kept
