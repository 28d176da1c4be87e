"""The types of columns that the setting `column_types` states, by the name of a column or a pattern of names."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, cast

from pipeline.errors import SettingsError
from pipeline.system.wording import first_of
from pipeline.tables.schema import ColumnType

_MAX_SHOWN = 20
"""An error shows at most this many names of columns."""


class StatedType(NamedTuple):
    """A type that the settings state."""

    type: ColumnType
    format: str = ""
    """The format of texts that are dates or times. Empty: ISO 8601."""

    @property
    def words(self) -> str:
        """The type as the settings state it."""
        return f"{self.type}:{self.format}" if self.format else self.type


def stated_types(types: Mapping[str, str], names: Sequence[str]) -> dict[str, StatedType]:
    """Return the stated type of each column that has one.

    The name of a column comes before a pattern, and a pattern before those after it.

    Args:
        types: The setting `column_types`, which was checked.
        names: The names of all columns.

    Raises:
        SettingsError: A key of `types` names no column.
    """
    found: dict[str, StatedType] = {}
    for key, words in types.items():
        named = [key] if key in names else [name for name in names if fnmatchcase(name, key)]
        if not named:
            raise SettingsError(
                f"column_types names {key!r}, but the table has no such column. The columns are "
                f"{first_of(map(repr, names), _MAX_SHOWN)}"
            )
        kind, _, form = words.partition(":")
        stated = StatedType(cast(ColumnType, kind), form)
        found = found | {key: stated} if key in names else dict.fromkeys(named, stated) | found
    return found
