"""The schema of a table: what each column holds. It is inferred once and stored in `dataset.json`, for all readers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from pipeline.system.wording import type_words
from pipeline.tables.dialect import DEFAULT_DIALECT, Dialect

ColumnType = Literal["int", "float", "bool", "string", "date", "time"]
"""The type of a value. In a record, a date is the number of days since 1970, and a time that of microseconds."""

VECTOR_TYPES: Sequence[ColumnType] = ("int", "float", "bool")
"""The types whose lists are vectors if all have one length."""
MAX_POSITIONS = 1 << 16
"""Longer lists are no vectors: each of their values would be an input of a model."""

Role = Literal["feature", "label", "key", "group", "split"]
NAMED_ROLES: Sequence[Role] = ("label", "key", "group", "split")
"""The roles of which a table has at most one column, which a setting names."""

Task = Literal["classification", "regression"]

MAX_DISTINCT = 10_000
"""The values of a column are listed if there are at most this many."""


@dataclass(frozen=True)
class TextRules:
    """How texts become values. A model of a table reads new rows by the rules of the table."""

    missing: Sequence[str] = ()
    """Texts that are missing values in a column of numbers, dates, times or truth values, and in the label. An empty
    text always is one there."""
    strip: bool = False
    """Whether blanks around all texts are removed."""
    decimal_comma: bool = False
    """Whether numbers have a decimal comma instead of a point."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TextRules":
        """Return the rules that `asdict` described."""
        return cls(**{**content, "missing": tuple(content["missing"])})


NO_RULES = TextRules()


@dataclass(frozen=True)
class Column:
    """One column of a table. Its facts are those of all rows of the source, or of the sources of a window."""

    name: str
    type: ColumnType
    is_list: bool = False
    """Whether a row holds several values of the type."""
    role: Role = "feature"
    missing: int = 0
    """Number of rows without a value."""
    distinct: int | None = None
    """Number of different values; None if there are more than MAX_DISTINCT, or the values are lists. Also None in a
    window of several versions that do not list the values."""
    low: float | int | str | None = None
    """The smallest value, in the form of the records. None if there is no value, or if the values are lists. Also None
    for a key or a group, whose values may be personal data."""
    high: float | int | str | None = None
    """The largest value."""
    values: Sequence[str] = ()
    """The values of a column of strings, sorted, if there are at most MAX_DISTINCT. Of the label: those of any type, as
    text. Those of a key or group column are not listed, because they can be personal data."""
    format: str = ""
    """The format of texts that are dates or times, as for `datetime.strptime`. Empty: ISO 8601."""
    length: int | None = None
    """Number of values of each list, if all lists have the same one, and are of a type of VECTOR_TYPES. A model has an
    input for each position of these vectors."""

    @property
    def is_ragged(self) -> bool:
        """Whether the column holds lists that are no vectors."""
        return self.is_list and self.length is None

    @property
    def type_words(self) -> str:
        """The type in words, such as "list of 8 float"."""
        return type_words(self.type, self.is_list, self.length)


@dataclass(frozen=True)
class Schema:
    """All columns of a table, in the order of the source. One of them is the label."""

    columns: Sequence[Column]
    rows: int
    """Number of rows of the source, also of those that are rejected."""
    task: Task
    texts: TextRules = NO_RULES
    dialect: Dialect = DEFAULT_DIALECT
    """How CSV files of the table are written, and new files for its model."""
    notes: Sequence[str] = ()
    """Sentences about columns, for the log and the dataset card."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The types of the columns that were not read, because Tenfold does not support their types, by name."""

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        return self.by_name[name]

    def of_role(self, role: Role) -> Column | None:
        """Return the column with a role; None if there is none. Features have no single column."""
        return next((column for column in self.columns if column.role == role), None)

    @property
    def label(self) -> Column:
        """The column to learn."""
        return next(column for column in self.columns if column.role == "label")

    @property
    def features(self) -> list[Column]:
        """The columns to learn from, in the order of the source."""
        return [column for column in self.columns if column.role == "feature"]

    @property
    def prepared(self) -> list[Column]:
        """The columns whose values a model prepares: the features, and a label that is a number."""
        return [*self.features, *([self.label] if self.task == "regression" else [])]

    def without_features(self) -> "Schema":
        """Return the schema without the features, and without known values: what a writer of shards needs."""
        columns = [replace(column, values=()) for column in self.columns if column.role != "feature"]
        return replace(self, columns=columns, notes=())

    def to_json(self) -> dict[str, Any]:
        """Return the schema in the form of `dataset.json`."""
        return {
            "task": self.task,
            "rows": self.rows,
            "columns": [asdict(column) for column in self.columns],
            "texts": asdict(self.texts),
            "dialect": asdict(self.dialect),
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"left_out": dict(self.left_out)} if self.left_out else {}),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Schema":
        """Return the schema that `to_json` described."""
        columns = [Column(**{**column, "values": tuple(column["values"])}) for column in content["columns"]]
        return cls(
            columns=columns,
            rows=content["rows"],
            task=content["task"],
            texts=TextRules.from_json(content["texts"]),
            dialect=Dialect.from_json(content["dialect"]),
            notes=tuple(content.get("notes", ())),
            left_out=content.get("left_out", {}),
        )
