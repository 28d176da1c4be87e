"""Datasets of small tables for tests: from the text of a CSV file, or from columns of Arrow, to what the build says."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import Dataset, load
from pipeline.records.tfrecord import read_records
from pipeline.stages.build import build
from pipeline.tables.read import read_row
from pipeline.tables.schema import Column, Schema


class Built:
    """A dataset of a table, with its rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dataset: Dataset = load(folder)
        self.schema = Schema.from_json(self.dataset.table)

    @property
    def notes(self) -> list[str]:
        """What the build says about the columns."""
        return list(self.dataset.quality["column_notes"])

    @property
    def types(self) -> dict[str, str]:
        """The type of each column."""
        return {column.name: column.type for column in self.schema.columns}

    def column(self, name: str) -> Column:
        """Return a column."""
        return self.schema.column(name)

    def rows(self, split: str = "") -> list[dict[str, Any]]:
        """Return the values of all records, or of those of a split, without those of lists."""
        of_split = self.dataset.splits[split].shards if split else self.dataset.shards
        shards = [self.folder / shard.name for shard in of_split]
        rows = [read_row(record, self.schema) for shard in shards for record in read_records(shard)]
        return [{name: value for name, [value] in row.items()} for row in rows]


def built(source: Path, **values: Any) -> Built:
    """Return the dataset of a table."""
    workspace = source.parent / f"{source.name} workspace"
    defaults = {"label_column": "label", "workspace": str(workspace), "num_shards": 2, "dataset_name": "t"}
    result = build(settings_from({"example_kind": "table", "source_uri": str(source), **defaults, **values}))
    return Built(Path(result["dataset"]))


def csv_of(path: Path, lines: Iterable[str]) -> Path:
    """Write a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def parquet_of(path: Path, **columns: Any) -> Path:
    """Write a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)
    return path
