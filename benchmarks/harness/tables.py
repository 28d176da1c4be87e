"""Tables of random values: written once, kept in a folder, and the same for every contender."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from pipeline.storage import write_whole

KEY, LABEL = "id", "label"
TEXTS = tuple(f"text-{number:02d}" for number in range(40))
KINDS = ("float", "int", "text", "float_missing", "text_missing")
"""The kinds of the features, in turn. The name of a column ends in its kind."""
_MISSING = 0.1
_ROWS_AT_ONCE = 50_000


def feature_names(columns: int) -> list[str]:
    """Return the names of the features of a table with `columns` columns, two of which are the key and the label."""
    return [f"c{number:03d}_{KINDS[number % len(KINDS)]}" for number in range(columns - 2)]


def table_file(folder: Path, rows: int, columns: int, suffix: str) -> Path:
    """Return a file of a table, csv or parquet. Equal numbers give equal values."""
    path = folder / f"{rows}x{columns}.{suffix}"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    with write_whole(path) as file:
        first = _some_rows(generator, 0, min(rows, _ROWS_AT_ONCE), columns)
        with _writer(file, first.schema, suffix) as writer:
            writer.write_table(first)
            for start in range(_ROWS_AT_ONCE, rows, _ROWS_AT_ONCE):
                writer.write_table(_some_rows(generator, start, min(rows - start, _ROWS_AT_ONCE), columns))
    return path


def _writer(file: Any, schema: pa.Schema, suffix: str) -> Any:
    if suffix == "parquet":
        return parquet.ParquetWriter(file, schema)
    # As pandas writes CSV: quotes only if a text needs them, which none of these does.
    return csv.CSVWriter(file, schema, write_options=csv.WriteOptions(quoting_style="none", quoting_header="none"))


def _some_rows(generator: np.random.Generator, start: int, rows: int, columns: int) -> pa.Table:
    """Return rows whose label depends on a number and on a text, with noise."""
    table: dict[str, Any] = {KEY: np.arange(start, start + rows)}
    logit = generator.normal(size=rows)
    for number, name in enumerate(feature_names(columns)):
        kind = KINDS[number % len(KINDS)]
        numbers = generator.normal(size=rows)
        mask = generator.random(rows) < _MISSING if kind.endswith("missing") else None
        if kind.startswith("float"):
            table[name] = pa.array(np.round(numbers, 4), mask=mask)
        elif kind == "int":
            table[name] = pa.array((numbers * 1000).astype(np.int64))
        else:
            codes = (np.abs(numbers) * 10).astype(np.int64)
            table[name] = pa.array([TEXTS[min(code, len(TEXTS) - 1)] for code in codes.tolist()], mask=mask)
        if number < len(KINDS):
            logit += numbers
    table[LABEL] = np.where(logit > 0, "yes", "no")
    return pa.table(table)
