"""What the listing of a table needs to know of the settings."""

from dataclasses import dataclass

from pipeline.config.settings import Settings
from pipeline.config.workspace import snapshots_folder
from pipeline.storage import Place
from pipeline.tables.infer import Columns
from pipeline.tables.schema import NAMED_ROLES
from pipeline.tables.selection import Selection, names_in


@dataclass(frozen=True)
class TableOptions:
    """How a table is listed."""

    source_uri: str
    place: Place
    """The table: a file or a folder."""
    encoding: str
    """The encoding of CSV files."""
    columns: Columns
    selection: Selection
    folder: Place
    """Folder of the snapshots of the dataset name."""


def table_options(settings: Settings) -> TableOptions:
    """Return the options of settings that were checked."""
    columns = Columns(
        label=settings.label_column,
        key=settings.key_column,
        group=settings.group_column,
        split=settings.split_column,
        task=settings.table_task,
    )
    selection = Selection(
        columns=names_in(settings.columns),
        dropped=names_in(settings.drop_columns),
        roles={name: f"{role}_column" for role in NAMED_ROLES if (name := getattr(columns, role))},
    )
    return TableOptions(
        source_uri=settings.source_uri,
        place=settings.source,
        encoding=settings.list_encoding,
        columns=columns,
        selection=selection,
        folder=snapshots_folder(settings),
    )
