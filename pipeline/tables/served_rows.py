"""The rows of new tables, in the types that the model of a table takes."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.settings import Settings
from pipeline.errors import SourceError
from pipeline.storage import Place
from pipeline.system.wording import first_of
from pipeline.tables.convert import Converted, converted
from pipeline.tables.dialect import Dialect
from pipeline.tables.files import table_files
from pipeline.tables.options import dialect_of_new_file
from pipeline.tables.schema import Column, Schema, TextRules
from pipeline.tables.selection import Selection
from pipeline.tables.source import RawBatch, TableReader, is_divisible, read_table

MAX_LISTED_COLUMNS = 20
"""An error names at most this many missing columns."""


def schema_of_model(about: Mapping[str, Any], settings: Settings | None = None) -> Schema:
    """Return the schema of the columns that a model takes.

    Args:
        about: The content of about.json of the model.
        settings: How new CSV files are written, if a person set it. Otherwise, they are like those of the training.
    """
    columns = [
        Column(each["name"], each["type"], each["is_list"], format=each["format"], length=each["length"])
        for each in about["columns"]
    ]
    dialect = Dialect.from_json(about["dialect"])
    return Schema(
        columns=columns,
        rows=0,
        task=about["task"],
        texts=TextRules.from_json(about["texts"]),
        dialect=dialect_of_new_file(dialect, settings) if settings else dialect,
    )


def read_rows(file: Place, schema: Schema) -> Iterator[tuple[RawBatch, Converted]]:
    """Yield all rows of a table, as they are and as the model takes them. Rows without any value are kept.

    Raises:
        SourceError: The table cannot be read, or lacks a column of the model.
    """
    files = table_files(file)
    selection = Selection.only(schema.by_name)
    for raw in read_table(files, schema.dialect, place=file, selection=selection, keeps_empty=True):
        names = set(raw.batch.schema.names)
        if missing := [column.name for column in schema.columns if column.name not in names]:
            advice = TableReader(files, schema.dialect, file).advice() if is_divisible(files) else ""
            raise SourceError(
                f"{file} lacks {len(missing)} of the {len(schema.columns)} columns that the model takes: add "
                f"{first_of(map(repr, missing), MAX_LISTED_COLUMNS)} to the table{advice}"
            )
        yield raw, converted(raw.batch, schema)
