"""What the listing of a table needs to know of the settings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.settings import Settings
from pipeline.config.workspace import snapshots_folder
from pipeline.snapshot.part import Arrange
from pipeline.storage import Place
from pipeline.tables.dialect import DEFAULT_DIALECT, Dialect
from pipeline.tables.infer import Columns
from pipeline.tables.schema import NAMED_ROLES, TextRules
from pipeline.tables.selection import Selection, names_in

_SETTINGS: Mapping[str, str] = {
    "encoding": "list_encoding",
    "delimiter": "csv_delimiter",
    "names": "csv_columns",
    "skipped_lines": "csv_skip_lines",
}
"""The setting of each field of a dialect."""


@dataclass(frozen=True)
class TableOptions:
    """How a table is listed."""

    source_uri: str
    place: Place
    """The table: a file or a folder."""
    columns: Columns
    selection: Selection
    folder: Place
    """Folder of the snapshots of the dataset name."""
    arrange: Arrange
    """The order in which the lines of a part are stored: see `write_parts`."""

    @property
    def dialect(self) -> Dialect:
        """How CSV files are written."""
        return self.columns.dialect


def table_options(settings: Settings, arrange: Arrange) -> TableOptions:
    """Return the options of settings that were checked."""
    columns = Columns(
        label=settings.label_column,
        key=settings.key_column,
        group=settings.group_column,
        split=settings.split_column,
        task=settings.table_task,
        types=settings.column_types,
        texts=TextRules(
            missing=tuple(settings.missing_values),
            strip=settings.strip_texts,
            decimal_comma=settings.decimal_comma,
        ),
        dialect=_with_settings(DEFAULT_DIALECT, settings, _SETTINGS),
    )
    selection = Selection(
        columns=names_in(settings.columns),
        dropped=names_in(settings.drop_columns),
        roles={name: f"{role}_column" for role in NAMED_ROLES if (name := getattr(columns, role))},
    )
    return TableOptions(
        source_uri=settings.source_uri,
        place=settings.source,
        columns=columns,
        selection=selection,
        folder=snapshots_folder(settings),
        arrange=arrange,
    )


def dialect_of_new_file(dialect: Dialect, settings: Settings) -> Dialect:
    """Return the dialect of a table, with those settings that a person set."""
    return _with_settings(
        dialect, settings, {field: name for field, name in _SETTINGS.items() if name in settings.model_fields_set}
    )


def _with_settings(dialect: Dialect, settings: Settings, names: Mapping[str, str]) -> Dialect:
    values: dict[str, Any] = {field: getattr(settings, name) for field, name in names.items()}
    changed = replace(dialect, **values)
    return replace(changed, names=tuple(changed.names))
