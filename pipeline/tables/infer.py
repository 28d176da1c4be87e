"""Infer the schema of a table from all of its rows.

The result depends on the set of rows alone, not on their order or on how they are divided into batches. All facts are
therefore counts, minima, maxima and sets, and types are joined: int and float are float, date and time are time, and
any other pair is a string if the values are text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import isfinite
from typing import Literal, cast

import numpy as np
import pyarrow as pa
from pyarrow import compute

from pipeline.errors import SettingsError, SourceError
from pipeline.system.wording import first_of
from pipeline.tables.schema import MAX_DISTINCT, NAMED_ROLES, Column, ColumnType, Role, Schema, Task
from pipeline.tables.selection import no_such_column
from pipeline.tables.source import RawBatch
from pipeline.tables.values import (
    DAY_US,
    PARSERS,
    RECORD_TYPES,
    TEXT,
    ValueType,
    as_float32,
    fit,
    is_nan_text,
    require_supported,
    value_type_of,
    without_empty,
    without_empty_text,
)

MAX_CLASSES_OF_INTS = 20
"""A label of integers is one of classes if it has at most this many different values."""
_MAX_WHOLE = 1 << 24
"""float32 holds all whole numbers below this one. Larger classes that are stored as floats could become one."""
_MAX_SHOWN = 20
"""An error message shows at most this many names of columns."""
_MAX_CHARACTERS = 2 << 20
"""The different values of a column are listed if they have at most this many characters together."""
_MAX_ALL_DISTINCT = 2_000_000
"""The different values of all columns together are limited to this number, because they are held in memory.

With more than 200 columns, the limit of each is therefore lower than MAX_DISTINCT.
"""
_MAX_BOUND = 200
"""The smallest and largest text of a column are cut to this many characters."""

Value = float | int | str
Range = tuple[Value, Value]


@dataclass(frozen=True)
class Columns:
    """The names of the columns with a role. An empty name means that no column has the role."""

    label: str
    key: str = ""
    group: str = ""
    split: str = ""
    task: Literal["auto", "classification", "regression"] = "auto"

    def role_of(self, name: str) -> Role:
        """Return the role of a column."""
        return next((role for role in NAMED_ROLES if getattr(self, role) == name), "feature")


def infer_schema(raws: Iterable[RawBatch], options: Columns) -> Schema:
    """Return the schema of a table from all of its rows.

    Raises:
        SettingsError: A setting names no column, or two settings name the same column, or the label cannot be learned.
        SourceError: The table has no row, or the type of a column is not supported.
    """
    inference = Inference(options)
    for raw in raws:
        inference.add(raw)
    return inference.schema()


class Inference:
    """Collects the facts of a table, batch by batch."""

    def __init__(self, options: Columns) -> None:
        self._options = options
        self._columns: dict[str, _TextFacts | _TypedFacts] = {}
        self._rows = self._rejected = 0
        self._left_out: dict[str, str] = {}

    def add(self, raw: RawBatch) -> None:
        """Add the rows of a batch. Rejected rows are counted, too.

        If the metadata of the batch or of a column is TEXT, its strings are fields of CSV, and the types are inferred
        from them. Other strings stay strings.
        """
        batch = raw.batch
        self._rejected += len(raw.rejected)
        self._rows += batch.num_rows
        self._left_out |= raw.left_out
        if not self._columns:
            require_columns(self._options, batch.schema.names)
            limit = min(MAX_DISTINCT, _MAX_ALL_DISTINCT // batch.num_columns)
            for field in batch.schema:
                make = _TextFacts if _is_text(batch.schema.metadata) or _is_text(field.metadata) else _TypedFacts
                # All classes of the label must be known.
                self._columns[field.name] = make(
                    field.name, MAX_DISTINCT if field.name == self._options.label else limit
                )
        # With thousands of columns, a search for each name would take most of the time.
        positions = {name: position for position, name in enumerate(batch.schema.names)}
        for name, facts in self._columns.items():
            column = batch.column(positions[name])
            # An empty label or key is none, but an empty feature may mean something.
            if self._options.role_of(name) != "feature":
                column = without_empty_text(column)
            facts.add(column)

    def merge(self, other: "Inference") -> None:
        """Add the rows of other batches with types of their own, such as those of another task."""
        self._rejected += other._rejected
        self._rows += other._rows
        self._left_out |= other._left_out
        for name, facts in other._columns.items():
            own = self._columns.setdefault(name, facts)
            if own is not facts:
                assert isinstance(own, _TypedFacts)
                assert isinstance(facts, _TypedFacts)
                own.merge(facts)

    def schema(self) -> Schema:
        """Return the schema of all rows that were added."""
        if not self._rows:
            raise SourceError("the table has no valid row: add rows to it")
        columns = [facts.column(self._options.role_of(name)) for name, facts in self._columns.items()]
        _require_plain_roles(columns)
        [position] = [number for number, column in enumerate(columns) if column.role == "label"]
        label = columns[position] = _without_point(columns[position], self._options.task)
        task = _task_of(label, self._options.task, self._rows)
        return Schema(columns, self._rows + self._rejected, task, self._left_out)


def _is_text(metadata: Mapping[bytes, bytes] | None) -> bool:
    return (metadata or {}).items() >= TEXT.items()


def require_classes(schema: Schema, source_uri: str) -> None:
    """Raise SourceError if a label of classes has fewer than two values. `source_uri` names the table."""
    if schema.task == "classification" and len(schema.label.values) < 2:
        raise SourceError(
            f"column {schema.label.name!r} of {source_uri} has only the values {list(schema.label.values)}: "
            "choose another label_column, because a class needs at least two values"
        )


def require_columns(options: Columns, names: Sequence[str]) -> None:
    """Raise SettingsError unless each role has a column of its own. `names` are those of the columns."""
    shown = first_of(map(repr, names), _MAX_SHOWN)
    roles: dict[str, Role] = {}
    for role in NAMED_ROLES:
        name = getattr(options, role)
        if role == "label" and not name:
            raise SettingsError(f"label_column must be set to the column to learn. The columns are {shown}")
        if not name:
            continue
        if name not in names:
            raise no_such_column(f"{role}_column", name, names)
        if name in roles:
            raise SettingsError(
                f"{role}_column and {roles[name]}_column are both {name!r}: name different columns. The columns are "
                f"{shown}"
            )
        roles[name] = role


def _require_plain_roles(columns: Sequence[Column]) -> None:
    """Raise SettingsError if the column of a key, group or split cannot name anything."""
    for column in columns:
        if column.role in ("key", "group", "split") and (column.is_list or column.type == "float"):
            held = "lists" if column.is_list else "numbers with a fraction"
            raise SettingsError(
                f"{column.role}_column is {column.name!r}, which holds {held}: name a column of text or whole numbers, "
                "or store its values as text"
            )


def _without_point(label: Column, task: str) -> Column:
    """Return a label of whole numbers that are stored as floats as one of integers, if they can be classes.

    pandas makes floats of integers if some are missing, and writes them as 1.0. Infinite labels do not count, because
    their rows are rejected.
    """
    numbers = sorted(number for number in map(float, label.values) if isfinite(number)) if label.type == "float" else []
    limit = MAX_DISTINCT if task == "classification" else MAX_CLASSES_OF_INTS
    are_whole = all(number.is_integer() and abs(number) < _MAX_WHOLE for number in numbers)
    if task == "regression" or not numbers or len(numbers) > limit or not are_whole:
        return label
    values = list(map(int, numbers))
    texts = tuple(map(str, values))
    return replace(label, type="int", distinct=len(values), low=values[0], high=values[-1], values=texts)


def _task_of(label: Column, task: Literal["auto", "classification", "regression"], rows: int) -> Task:
    """Return what is learned. Raises SettingsError if the label cannot be learned."""
    name = f"label_column is {label.name!r}"
    if label.is_list or label.type in ("date", "time"):
        held = "lists" if label.is_list else f"{label.type}s"
        raise SettingsError(f"{name}, which holds {held}: name a column of text, numbers or true and false")
    if label.missing == rows:
        raise SettingsError(f"{name}, which has no value in any row: name a column with values")
    if task == "auto":
        is_few = label.distinct is not None and label.distinct <= MAX_CLASSES_OF_INTS
        has_classes = label.type in ("string", "bool") or (label.type == "int" and is_few)
        task = "classification" if has_classes else "regression"
    if task == "regression" and label.type not in ("int", "float"):
        raise SettingsError(
            f"{name}, which holds {label.type}s: regression needs numbers. Name another column, or set table_task to "
            "classification"
        )
    if task == "classification" and label.distinct is None:
        raise SettingsError(
            f"{name}, which has more than {MAX_DISTINCT:,} different values: classification needs fewer. Name another "
            "column"
        )
    if task == "classification" and label.type == "float":
        raise SettingsError(
            f"{name}, which holds numbers with a fraction, or floats of {_MAX_WHOLE:,} and more: store its values as "
            "integers or as text, name another column, or set table_task to regression"
        )
    return task


class _TextFacts:
    """The facts of a column of CSV.

    Most columns have few different values. As long as they are few, only new values are parsed.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._kind: str | None = None
        """The kind of all values up to now: a key of PARSERS or "string". None if there is no value."""
        self._nulls = self._empty = self._nan = 0
        self._texts: set[str] | None = set()
        """The different values; None if there are too many."""
        self._nan_texts: list[str] = []
        self._size = 0
        self._range: Range | None = None
        """The smallest and the largest value of the kind."""
        self._text_range: Range | None = None

    def add(self, text: pa.Array) -> None:
        """Add the values of a batch."""
        if value_type_of(text.type) != ValueType("string"):
            raise SourceError(f"the column {self._name!r} holds text and {text.type}: write it with one type")
        self._nulls += text.null_count
        values, counts = text, None
        if self._texts is not None:
            counted = compute.value_counts(text.drop_null())
            values, counts = counted.field("values"), counted.field("counts")
        bounds = _range_of(values)
        if not bounds:
            return
        self._text_range = _joined(self._text_range, bounds)
        if bounds[0] == "":
            is_empty = compute.equal(values, "")
            self._empty += _sum(is_empty if counts is None else counts.filter(is_empty))
        if counts is not None:
            new = self._note_new(values)
            if self._nan_texts:
                self._nan += _sum(counts.filter(compute.is_in(values, pa.array(self._nan_texts, values.type))))
            values = new
        self._parse(without_empty(values), are_counted=counts is not None)

    def column(self, role: Role) -> Column:
        """Return the column with its facts."""
        kind = self._kind or "string"
        # As a number, a long code would lose digits, and many rows would have one key.
        if kind == "float" and role in ("key", "group", "split"):
            kind = "string"
        type_ = cast(ColumnType, kind)
        if type_ == "string":
            values = None if self._texts is None else pa.array(self._texts, pa.large_string())
            return _column(self._name, role, type_, self._nulls, values, self._text_range)
        missing = self._nulls + self._empty + (self._nan if type_ == "float" else 0)
        values = None
        if self._texts is not None:
            fitted = fit(pa.array(self._texts, pa.large_string()), type_)
            assert fitted is not None
            values = fitted.values.unique()
        return _column(self._name, role, type_, missing, values, self._range)

    def _note_new(self, values: pa.Array) -> pa.Array:
        """Add different values of a batch to those of the column, and return the new ones."""
        assert self._texts is not None
        new = [value for value in values.to_pylist() if value not in self._texts]
        self._nan_texts += [value for value in new if is_nan_text(value)]
        self._texts.update(new)
        self._size += sum(map(len, new))
        if len(self._texts) > self._limit or self._size > _MAX_CHARACTERS:
            self._texts = None
        return pa.array(new, values.type)

    def _parse(self, text: pa.Array, are_counted: bool) -> None:
        """Extend the kind and the range by some values."""
        if self._kind == "string" or text.null_count == len(text):
            return
        for kind in _WIDER.get(self._kind, (self._kind,)):
            assert kind is not None
            values = PARSERS[kind](text)
            if values is not None:
                break
        else:
            self._kind = "string"
            return
        if kind == "float":
            if not are_counted:
                self._nan += _sum(compute.is_nan(values))
            values = as_float32(values)
        self._range = _joined(_as_kind(self._range, self._kind, kind), _range_of(values))
        self._kind = kind


_WIDER: Mapping[str | None, Sequence[str]] = {None: list(PARSERS), "int": ("int", "float"), "date": ("date", "time")}
"""The kinds that a column can have after more values, by its kind before. Others keep their kind or become strings."""


@dataclass
class _TypeFacts:
    """The facts of the values of one type."""

    values: pa.Array | None
    """The different values; None if there are too many."""
    range: Range | None = None


class _TypedFacts:
    """The facts of a column of Parquet or Spark."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._missing = 0
        self._of_types: dict[ColumnType, _TypeFacts] = {}
        """By type, because files may differ. Facts are joined at the end, so that the order of files is irrelevant."""
        self._are_lists: set[bool] = set()

    def add(self, array: pa.Array) -> None:
        """Add the values of a batch."""
        kind = require_supported(self._name, array.type)
        if kind.is_list or kind.type:
            self._are_lists.add(kind.is_list)
        if kind.is_list or not kind.type:
            self._missing += array.null_count
            if kind.type:
                self._extend(kind.type, _TypeFacts(None))
            return
        fitted = fit(array, kind.type)
        assert fitted is not None
        misfits = 0 if fitted.misfits is None else _sum(fitted.misfits)
        # Floats beyond float32 are no reason to refuse the table: their rows are rejected.
        if misfits and kind.type != "float":
            raise SourceError(
                f"the column {self._name!r} holds {array.type} with {misfits} values that cannot be stored ("
                f"{_LIMITS[kind.type]}): correct them, or leave the column out with drop_columns"
            )
        self._missing += fitted.values.null_count - misfits
        self._extend(kind.type, _TypeFacts(fitted.values, _range_of(fitted.values)))

    def merge(self, other: "_TypedFacts") -> None:
        """Add the facts of other rows."""
        self._missing += other._missing
        self._are_lists |= other._are_lists
        for kind, facts in other._of_types.items():
            self._extend(kind, facts)

    def column(self, role: Role) -> Column:
        """Return the column with its facts. Raises SourceError if its types cannot be joined."""
        types = frozenset(self._of_types)
        type_ = next(iter(types)) if len(types) == 1 else _JOINED.get(types)
        if (types and not type_) or len(self._are_lists) > 1:
            held = "lists and single values" if len(self._are_lists) > 1 else " and ".join(sorted(types))
            raise SourceError(f"the column {self._name!r} holds {held}: write it with one type in all files")
        if True in self._are_lists:
            return Column(self._name, type_ or "string", is_list=True, role=role, missing=self._missing)
        if not type_:
            return _column(self._name, role, "string", self._missing, pa.nulls(0), None)
        facts = self._of_types.items()
        range_ = reduce(_joined, [_as_kind(each.range, narrow, type_) for narrow, each in facts])
        values = reduce(_union, [_widened(each.values, narrow, type_) for narrow, each in facts])
        if values is not None and len(values) > self._limit:
            values = None
        return _column(self._name, role, type_, self._missing, values, range_)

    def _extend(self, kind: ColumnType, more: _TypeFacts) -> None:
        """Add the facts of further values of a type."""
        facts = self._of_types.setdefault(kind, _TypeFacts(pa.nulls(0, RECORD_TYPES[kind])))
        facts.range = _joined(facts.range, more.range)
        facts.values = values = _union(facts.values, more.values)
        if values is not None:
            size = _sum(compute.utf8_length(values)) if values.type == pa.large_string() else 0
            if len(values) > self._limit or size > _MAX_CHARACTERS:
                facts.values = None


_JOINED: Mapping[frozenset[ColumnType], ColumnType] = {
    frozenset(("int", "float")): "float",
    frozenset(("date", "time")): "time",
}
_LIMITS: Mapping[ColumnType, str] = {
    "int": "integers have 64 bits and a sign",
    "string": "bytes must be text in UTF-8",
    "date": "dates must be within 290,000 years of 1970",
    "time": "times must be within 290,000 years of 1970",
}


def _column(
    name: str, role: Role, type_: ColumnType, missing: int, values: pa.Array | None, range_: Range | None
) -> Column:
    """Return a column from its different values, or None if there are too many, and its range."""
    # The values of keys and groups can be personal data, and no reader needs them.
    is_private = role in ("key", "group")
    low, high = (None, None) if is_private else map(_cut, range_ or (None, None))
    if values is None:
        return Column(name, type_, role=role, missing=missing, low=low, high=high)
    values = values.drop_null()
    texts: Sequence[str] = ()
    if not is_private and (type_ == "string" or role == "label"):
        texts = tuple(_text_of(value, type_) for value in sorted(values.to_pylist()))
    return Column(name, type_, role=role, missing=missing, distinct=len(values), low=low, high=high, values=texts)


def _cut(bound: Value | None) -> Value | None:
    """Return a bound of a range. Texts may have a million characters."""
    return bound[:_MAX_BOUND] if isinstance(bound, str) else bound


def _text_of(value: Value, type_: ColumnType) -> str:
    if type_ == "bool":
        return str(value).lower()
    return str(np.float32(value)) if type_ == "float" else str(value)


def _union(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    """Return the different values of two arrays; None if one of them has too many."""
    if one is None or other is None:
        return None
    return pa.concat_arrays([one, other.drop_null().unique()]).unique()


def _widened(values: pa.Array | None, kind: ColumnType, wider: ColumnType) -> pa.Array | None:
    if values is None or kind == wider:
        return values
    if wider == "time":
        return compute.multiply(values, DAY_US)
    fitted = fit(values, wider)
    assert fitted is not None
    return fitted.values


def _as_kind(range_: Range | None, kind: str | None, wider: str) -> Range | None:
    """Return a range of integers or dates as one of floats or times."""
    if not range_ or kind == wider:
        return range_
    low, high = range_
    assert isinstance(low, int)
    assert isinstance(high, int)
    return (low * DAY_US, high * DAY_US) if wider == "time" else (float(np.float32(low)), float(np.float32(high)))


def _range_of(values: pa.Array) -> Range | None:
    """Return the smallest and the largest value. Infinite floats do not count: nobody could scale by them."""
    if pa.types.is_floating(values.type):
        is_finite = compute.is_finite(values)
        if not compute.all(is_finite, min_count=0).as_py():
            values = values.filter(is_finite)
    bounds = compute.min_max(values)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if isinstance(low, bool):
        low, high = int(low), int(high)
    return None if low is None else (low, high)


def _joined(one: Range | None, other: Range | None) -> Range | None:
    if not one or not other:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _sum(values: pa.Array) -> int:
    return compute.sum(values, min_count=0).as_py() or 0
