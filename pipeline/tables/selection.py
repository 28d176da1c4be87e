"""Which columns of a table are read: those that the settings select, if Tenfold reads their types.

The schema of a file decides this, before any row is read.
"""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import translate
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from pipeline.errors import SettingsError, SourceError
from pipeline.system.wording import first_of
from pipeline.tables.values import value_type_of

MAX_SHOWN = 20
"""An error message shows at most this many names of columns."""
MAX_NEAR = 3
"""It suggests at most this many."""
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_WILDCARD = re.compile(r"[*?[]")


def names_in(text: str) -> tuple[str, ...]:
    """Return the names and patterns of a setting, which commas or line breaks separate.

    A name with a comma is quoted, as in CSV.
    """
    lines = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    return tuple(entry.strip() for line in lines for entry in line if entry.strip())


class _Entries:
    """Names, and patterns such as `geo.*`."""

    def __init__(self, entries: Sequence[str], *, are_names: bool = False) -> None:
        self._names = frozenset(entries)
        patterns = [translate(entry) for entry in entries if not are_names and _WILDCARD.search(entry)]
        self._patterns = re.compile("|".join(patterns)) if patterns else None

    def match(self, name: str) -> bool:
        """Whether a column has one of the names, or matches a pattern."""
        return name in self._names or bool(self._patterns and self._patterns.match(name))


@dataclass(frozen=True)
class Selection:
    """The columns that the settings select."""

    columns: Sequence[str] = ()
    """Names and patterns of the columns to read. Without any, these are all columns."""
    dropped: Sequence[str] = ()
    """Names and patterns of columns to leave out."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """The setting that names a column, such as `label_column`, by the name of the column. It is always read."""
    must_match: bool = True
    """Whether each name and pattern must match a column of the table."""

    @classmethod
    def only(cls, names: Iterable[str]) -> Self:
        """Return the selection of those of some columns that a table has."""
        return cls(tuple(names), must_match=False)

    def includes(self, name: str) -> bool:
        """Whether a column is selected."""
        if name in self.roles:
            return True
        return (not self.columns or self._columns.match(name)) and not self._dropped.match(name)

    def asked_by(self, name: str) -> str:
        """Return the setting that asks for a column. Empty if it is only one of all columns."""
        return self.roles.get(name) or ("columns" if self._columns.match(name) else "")

    def unmatched(self, names: Collection[str]) -> list[str]:
        """Return the names and patterns of columns to read that are none of the columns of a file."""
        known = set(names)
        roles = [name for name in self.roles if name not in known]
        return [*roles, *_unmatched(self.columns, names)] if self.must_match else []

    def require_matches(
        self, names: Sequence[str], names_of_others: Callable[[], Iterable[Collection[str]]] = tuple
    ) -> None:
        """Raise SettingsError if a name or pattern matches no column, or if no column is left to learn from.

        Args:
            names: The columns of the first file.
            names_of_others: Returns the columns of each of the other files. One of them may have a column to leave out
                that the first file lacks.
        """
        if not self.must_match:
            return
        for entry in self.unmatched(names):
            raise no_such_column(self.roles.get(entry, "columns"), entry, names)
        features = [name for name in names if name not in self.roles]
        if left := _unmatched(self.dropped, features):
            self._require_no_role(left, names)
            for others in names_of_others():
                if not (left := _unmatched(left, others)):
                    break
            else:
                raise no_such_column("drop_columns", left[0], names)
        if (self.columns or self.dropped) and not any(map(self.includes, features)):
            raise SettingsError(
                "columns and drop_columns leave no column to learn from: select more columns. The columns are "
                f"{first_of(map(repr, names), MAX_SHOWN)}"
            )

    def require_features(self, read: Iterable[str], unread: Collection[str], place: Any) -> None:
        """Raise SourceError if a table has no column to learn from among those whose types Tenfold reads."""
        if not self.must_match or any(name not in self.roles for name in read):
            return
        shown = f" of a type that is supported (not {first_of(map(repr, unread), MAX_SHOWN)})" if unread else ""
        raise SourceError(
            f"{place} has no column to learn from{shown}: add a column of text, numbers, dates, times, or lists of "
            "these"
        )

    def no_column(self, name: str, place: Any, other: Any) -> SourceError:
        """Return the error about a column that one file of a table lacks and another one has."""
        problem = f"{place} has no column {name!r}, but {other} has one"
        rule = "all files of a table must have the same columns"
        if name in self.roles:
            name = str(place).rpartition("/")[2]
            return SourceError(f"{problem}: {rule}. If {name} has rows to predict, move it out of the folder")
        return SourceError(f"{problem}: correct the file, or leave the column out with drop_columns, because {rule}")

    def _require_no_role(self, entries: Iterable[str], names: Sequence[str]) -> None:
        for entry in entries:
            matching = _Entries([entry])
            if name := next((name for name in names if matching.match(name)), ""):
                raise SettingsError(
                    f"drop_columns has {entry!r}, but {self.roles[name]} is {name!r}: take it out of drop_columns, or "
                    f"name another column in {self.roles[name]}"
                )

    @cached_property
    def _columns(self) -> _Entries:
        return _Entries(self.columns, are_names=not self.must_match)

    @cached_property
    def _dropped(self) -> _Entries:
        return _Entries(self.dropped)


class Chooser:
    """Chooses the columns of a table by the first file, and what is read of each file."""

    def __init__(self, selection: Selection, names_of_others: Callable[[], Iterable[Collection[str]]] = tuple) -> None:
        """Take the selection, and what `Selection.require_matches` needs."""
        self._selection, self._names_of_others = selection, names_of_others
        self._first: Any = None
        """The first file."""
        self._kinds: Mapping[str, pa.DataType] = {}
        """The types of its columns."""
        self._selected: Sequence[str] = ()
        self.names: Sequence[str] = ()
        """The columns of the table, in the order of the first file."""
        self.left_out: Mapping[str, str] = {}
        """The types of the columns that were left out, because Tenfold does not read them."""

    def choose(self, schema: pa.Schema, place: Any, of_folders: Sequence[str] = ()) -> list[str]:
        """Return the columns to read of a file.

        Args:
            schema: The columns of the file.
            place: The file, for error messages.
            of_folders: The columns that the names of its folders state.

        Raises:
            SettingsError: A setting names no column of the first file, or leaves no column to learn from.
            SourceError: A column has no name, or the name of another one; Tenfold does not read the type of a column
                that a setting names, or reads it only in one of two files; no column is left to learn from; or the
                file has other columns than the first one.
        """
        _require_names(schema.names, place)
        kinds = dict(zip(schema.names, schema.types, strict=True))
        names = list(dict.fromkeys([*kinds, *of_folders]))
        is_first = self._first is None
        if is_first:
            self._selection.require_matches(names, self._names_of_others)
        selected = list(filter(self._selection.includes, names))
        if is_first:
            self._first, self._selected, self._kinds = place, selected, kinds
            unread = {name: kinds[name] for name in selected if name in kinds and not value_type_of(kinds[name])}
            if asked := next(filter(self._selection.asked_by, unread), None):
                raise self._unread(asked, unread[asked], place)
            if index := next(filter(_PANDAS_INDEX.fullmatch, selected), None):
                # A model could learn from the order of the rows.
                raise SourceError(
                    f"{place} has the column {index!r}, the index of pandas: write the table with index=False, or "
                    "leave the column out with drop_columns"
                )
            self.left_out = {name: str(kind) for name, kind in unread.items()}
            self.names = [name for name in selected if name not in unread]
            self._selection.require_features(self.names, unread, place)
        else:
            self._require_same(selected, place)
            self._require_same_read(selected, kinds, place)
        if read := [name for name in self.names if name in kinds]:
            return read
        # Without a column, nobody would know how many rows the file has.
        return [name for name, kind in kinds.items() if value_type_of(kind)][:1]

    @property
    def first_schema(self) -> pa.Schema:
        """The columns of the first file."""
        return pa.schema(list(self._kinds.items()))

    def _unread(self, name: str, kind: pa.DataType, place: Any) -> SourceError:
        """Return the error about a type that Tenfold does not read."""
        selection, leave = self._selection, ""
        setting = selection.asked_by(name) if selection.must_match else ""
        if selection.must_match:
            leave = "name another column, or " if name in selection.roles else "leave it out with drop_columns, or "
        return SourceError(
            f"the column {name!r} of {place} holds {kind}, which is not supported"
            f"{setting and f', but {setting} selects it'}: {leave}write its parts as columns of their own (text, "
            "numbers, dates, times, or lists of these)"
        )

    def _require_same_read(self, selected: Sequence[str], kinds: Mapping[str, pa.DataType], place: Any) -> None:
        """Raise SourceError if Tenfold reads a column of this file, but not of the first one, or the reverse."""
        for name in selected:
            if name not in kinds or bool(value_type_of(kinds[name])) != (name in self.left_out):
                continue
            if self._selection.asked_by(name) or name not in self._kinds:
                raise self._unread(name, kinds[name], place)
            raise SourceError(
                f"the column {name!r} holds {kinds[name]} in {place}, but {self._kinds[name]} in {self._first}, and "
                "only one of these types is supported: write it with one type in all files, or leave it out with "
                "drop_columns"
            )

    def _require_same(self, selected: Sequence[str], place: Any) -> None:
        """Raise SourceError if a file has other columns than the first one. Their order may differ."""
        expected, found = set(self._selected), set(selected)
        if missing := [name for name in self._selected if name not in found]:
            raise self._selection.no_column(missing[0], place, self._first)
        if additional := [name for name in selected if name not in expected]:
            raise SourceError(
                f"{place} has a column {additional[0]!r}, but {self._first} has none: correct the file, or leave the "
                "column out with drop_columns, because all files of a table must have the same columns"
            )


def _unmatched(entries: Iterable[str], names: Collection[str]) -> list[str]:
    """Return the names and patterns that match no column."""
    known = set(names)
    left = [entry for entry in entries if entry not in known]
    return [entry for entry in left if not (_WILDCARD.search(entry) and any(map(_Entries([entry]).match, names)))]


def no_such_column(setting: str, entry: str, names: Sequence[str]) -> SettingsError:
    """Return the error about a setting that names none of the columns of a table."""
    verb = "has" if setting in ("columns", "drop_columns") else "is"
    near = first_of(map(repr, _near(entry, names)), MAX_NEAR)
    question = f": did you mean {near}?" if near else "."
    return SettingsError(
        f"{setting} {verb} {entry!r}, but the table has no such column{question} The columns are "
        f"{first_of(map(repr, names), MAX_SHOWN)}"
    )


def _near(entry: str, names: Sequence[str]) -> list[str]:
    """Return the names that are most like one that does not exist."""
    plain = _WILDCARD.split(entry.lower())[0].rstrip(".")
    by_lower = {name.lower(): name for name in names}
    of_struct = [name for name in names if plain and name.lower().startswith(f"{plain}.")]
    near = [by_lower[each] for each in get_close_matches(plain, by_lower, MAX_NEAR)]
    return list(dict.fromkeys([*of_struct, *near]))[:MAX_NEAR]


def _require_names(names: Sequence[str], place: Any) -> None:
    """Raise SourceError if a column has no name, or the name of another one."""
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        if not name.strip():
            raise SourceError(
                f"{place} has no name for column {number}: name it in the first line. If it is the index of pandas, "
                "write the table with index=False"
            )
        if name in seen:
            raise SourceError(f"{place} has two columns {name!r}: rename one")
        seen.add(name)
