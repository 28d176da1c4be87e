"""The rows of a table from its shards, for tests."""

from collections.abc import Sequence
from typing import Any

from pipeline.dataset.manifest import Dataset, readable_at
from pipeline.storage import Place
from pipeline.tables.read import read_row
from pipeline.tables.schema import Schema


def rows_at(folder: Place, dataset: Dataset, split: str, positions: Sequence[int]) -> list[dict[str, Any]]:
    """Return rows as `read_row` does, by their positions through all shards of the split, from 0."""
    schema = Schema.from_json(dataset.table)
    found = readable_at(folder, dataset, split, positions, lambda record: read_row(record, schema))
    return [found[position] for position in positions]
