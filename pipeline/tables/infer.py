"""Infer the schema of a table from all of its rows.

The result depends on the set of rows alone, not on their order or on how they are divided into batches. All facts are
therefore counts, minima, maxima and sets, and types are joined: int and float are float, date and time are time, and
any other pair is a string if the values are text.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

from pipeline.errors import SettingsError, SourceError
from pipeline.system.wording import first_of
from pipeline.tables import notes
from pipeline.tables.column_facts import TextFacts, TypedFacts
from pipeline.tables.dialect import DEFAULT_DIALECT, Dialect
from pipeline.tables.schema import MAX_DISTINCT, NAMED_ROLES, NO_RULES, Column, Role, Schema, Task, TextRules
from pipeline.tables.selection import no_such_column
from pipeline.tables.source import RawBatch
from pipeline.tables.stated_splits import require_splits
from pipeline.tables.stated_types import stated_types
from pipeline.tables.values import TEXT, label_values, without_empty_text

MAX_CLASSES_OF_INTS = 20
"""A label of integers is one of classes if it has at most this many different values."""
_MAX_SHOWN = 20
"""An error message shows at most this many names of columns."""
_MAX_ALL_DISTINCT = 2_000_000
"""The different values of all columns together are limited to this number, because they are held in memory.

With more than 200 columns, the limit of each is therefore lower than MAX_DISTINCT.
"""


@dataclass(frozen=True)
class Columns:
    """The names of the columns with a role, and what the settings say about the values."""

    label: str
    key: str = ""
    group: str = ""
    split: str = ""
    """An empty name means that no column has the role."""
    task: Literal["auto", "classification", "regression"] = "auto"
    types: Mapping[str, str] = field(default_factory=dict)
    """The setting `column_types`."""
    texts: TextRules = NO_RULES
    dialect: Dialect = DEFAULT_DIALECT

    def role_of(self, name: str) -> Role:
        """Return the role of a column."""
        return next((role for role in NAMED_ROLES if getattr(self, role) == name), "feature")


def infer_schema(raws: Iterable[RawBatch], options: Columns) -> Schema:
    """Return the schema of a table from all of its rows.

    Raises:
        SettingsError: A setting names no column, or two settings name the same column, or the label cannot be learned,
            or a column does not have a type that the settings state.
        SourceError: The table has no row, the type of a column is not supported, or a word names no split.
    """
    inference = Inference(options)
    for raw in raws:
        inference.add(raw)
    return inference.schema()


class Inference:
    """Collects the facts of a table, batch by batch."""

    def __init__(self, options: Columns) -> None:
        self._options = options
        self._columns: dict[str, TextFacts | TypedFacts] = {}
        self._rows = self._rejected = self._empty = 0
        self._words_of_label: Counter[str] = Counter()
        """The texts of the label that are missing values."""
        self._left_out: dict[str, str] = {}

    def add(self, raw: RawBatch) -> None:
        """Add the rows of a batch. Rejected rows are counted, too.

        If the metadata of the batch or of a column is TEXT, its strings are fields of CSV, and the types are inferred
        from them, unless the settings state the type. Other strings stay strings.
        """
        batch, options = raw.batch, self._options
        self._rejected += len(raw.rejected)
        self._empty += len(raw.empty)
        self._rows += batch.num_rows
        self._left_out |= raw.left_out
        if not self._columns:
            require_columns(options, batch.schema.names)
            are_text = _is_text(batch.schema.metadata)
            self._begin({each.name: are_text or _is_text(each.metadata) for each in batch.schema})
        if options.split:
            require_splits(raw, options.split)
        # With thousands of columns, a search for each name would take most of the time.
        positions = {name: position for position, name in enumerate(batch.schema.names)}
        for name, facts in self._columns.items():
            column, role = batch.column(positions[name]), options.role_of(name)
            # An empty label or key is none, but an empty feature may mean something.
            if role != "feature":
                column = without_empty_text(column, options.texts)
            if role == "label":
                column, words = label_values(column, options.texts)
                self._words_of_label.update(words)
            facts.add(column, raw.place_of)

    def _begin(self, are_text: Mapping[str, bool]) -> None:
        """Take the names of the columns, and whether the type of each one is inferred from texts."""
        options = self._options
        stated = stated_types(options.types, list(are_text))
        limit = min(MAX_DISTINCT, _MAX_ALL_DISTINCT // len(are_text))
        for name, is_text in are_text.items():
            # All classes of the label must be known.
            limit_of_column = MAX_DISTINCT if name == options.label else limit
            if is_text and name not in stated:
                self._columns[name] = TextFacts(name, limit_of_column, options.texts)
            else:
                self._columns[name] = TypedFacts(name, limit_of_column, options.texts, stated.get(name))

    def _are_text(self) -> dict[str, bool]:
        return {name: isinstance(facts, TextFacts) for name, facts in self._columns.items()}

    def to_json(self) -> dict[str, Any]:
        """Return what is known of the rows as JSON."""
        return {
            "rows": self._rows,
            "rejected": self._rejected,
            "empty": self._empty,
            "words_of_label": self._words_of_label,
            "left_out": self._left_out,
            "are_text": self._are_text(),
            "columns": [facts.to_json() for facts in self._columns.values()],
        }

    @classmethod
    def from_json(cls, options: Columns, content: Mapping[str, Any]) -> Self:
        """Return what `to_json` made JSON of."""
        made = cls(options)
        made._rows, made._rejected, made._empty = content["rows"], content["rejected"], content["empty"]
        made._words_of_label, made._left_out = Counter(content["words_of_label"]), content["left_out"]
        if content["columns"]:
            made._begin(content["are_text"])
        for facts, of_column in zip(made._columns.values(), content["columns"], strict=True):
            facts.load(of_column)
        return made

    def merge(self, other: "Inference", moved: Callable[[str], str] = str) -> None:
        """Add the rows of later batches, such as those of another task.

        `moved` returns the place of a row in the table from its place in `other`. Raises SourceError if a column is one
        of CSV in only one of both.
        """
        self._rejected += other._rejected
        self._empty += other._empty
        self._rows += other._rows
        self._words_of_label.update(other._words_of_label)
        self._left_out |= other._left_out
        if not self._columns and other._columns:
            self._begin(other._are_text())
        for name, facts in other._columns.items():
            own = self._columns[name]
            if type(own) is not type(facts):
                raise SourceError(f"the column {name!r} holds text and typed values: write it with one type")
            own.merge(cast(Any, facts), moved)

    @property
    def rows(self) -> int:
        """Number of rows that were added, without the rejected and the empty ones."""
        return self._rows

    def schema(self) -> Schema:
        """Return the schema of all rows that were added."""
        if not self._rows:
            raise SourceError("the table has no valid row: add rows to it")
        columns = [facts.column(self._options.role_of(name)) for name, facts in self._columns.items()]
        _require_plain_roles(columns)
        [label] = [column for column in columns if column.role == "label"]
        task = _task_of(label, self._options.task, self._rows)
        return Schema(
            columns=columns,
            rows=self._rows + self._rejected,
            task=task,
            texts=self._options.texts,
            dialect=self._options.dialect,
            notes=tuple(self._notes(columns)),
            left_out=self._left_out,
        )

    def _notes(self, columns: Iterable[Column]) -> Iterator[str]:
        if self._empty:
            yield notes.empty_rows(self._empty)
        for column in columns:
            if column.role == "label" and self._words_of_label:
                yield notes.missing_values(column.name, self._words_of_label)
            yield from self._columns[column.name].notes(column)
            if note := notes.alike(column):
                yield note


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
            f"{name}, which holds numbers with a fraction: store its values as integers or as text, "
            "name another column, or set table_task to regression"
        )
    return task
