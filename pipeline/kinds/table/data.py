"""The rows of a table as a kind of examples. Their facts are the schema, and how a model prepares each column.

Only a plan and a window need the facts, so the modules that compute them are imported there: they take 0.07 s.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.dataset.manifest import Dataset
from pipeline.kinds.table.examples import RowExamples
from pipeline.plan.example_kind import Conflict, ExampleKind, FittingValues, ListerClass
from pipeline.plan.examples import Examples
from pipeline.plan.range_plan import RangePlan
from pipeline.records.format import RecordFormat
from pipeline.snapshot.raw_example import RawExample
from pipeline.tables.read import feature_kinds, read_row, text_in, text_of
from pipeline.tables.schema import Column, Schema

if TYPE_CHECKING:
    from pipeline.dataset.verify import Check
    from pipeline.plan.order import Order
    from pipeline.snapshot.snapshot import Snapshot

ENCODING = 6
"""Increase this if the same rows would give other shards or facts. All tables then get new versions."""
COLUMN_FACTS = ("name", "type", "is_list", "role", "length")
"""What decides the records, and whether a column has vectors. The rows alone do not show it: a column may have no
value in any row, and a rejected row may have a list of another length."""


class RowKind(ExampleKind):
    """The rows of a table in shards. Their facts are the schema."""

    noun = "row"
    source = "the table, a file of CSV, JSON lines, Parquet, Arrow or TFRecord, or a folder of such files"
    source_file = "table"
    is_model_checked = False  # It needs the preprocessing, which is not known before the rows are split.
    has_pictures = False
    has_files = False
    few_examples = 50_000

    @property
    def lister(self) -> ListerClass:
        """Ranges of files."""
        from pipeline.kinds.table.lister import table_lister  # Imports PyArrow. Only `extract` needs it.

        return table_lister

    def check_of(self, dataset: Dataset) -> "Check":
        """Return a check of the types, and of the label."""
        ids = {label: number for number, label in enumerate(dataset.labels)}
        return partial(_problem_of_row, Schema.from_json(dataset.table), ids)

    def values_of(self, row: RawExample, snapshot: "Snapshot") -> str:
        """Return the values of a row of a table without a key column."""
        from pipeline.kinds.table.facts import values_of_row

        return values_of_row(Schema.from_json(snapshot.table), row)

    def split_unit(self, snapshot: "Snapshot") -> str:
        """Return the rows with one value of the column that decides the split."""
        from pipeline.kinds.table.facts import split_unit

        return split_unit(Schema.from_json(snapshot.table))

    def quality(self, snapshot: "Snapshot", order: "Order") -> dict[str, Any]:
        """Return what is notable about columns, how many values decide the split, and what they make of its shares."""
        from pipeline.kinds.table.facts import table_quality

        return table_quality(Schema.from_json(snapshot.table), order)

    def fitting_values(self, facts: Mapping[str, Any]) -> Mapping[str, FittingValues]:
        """Return what rows, or a regression, cannot do without."""
        cached = "rows are read from their shards in each epoch, because nothing of them is decoded"
        weighted = "class_weights=balanced does the same for the loss"
        fitting = {
            "balanced": FittingValues("table", (False,), weighted),
            "cache": FittingValues("table", ("auto", "off"), cached),
            "weights": FittingValues("table", ("",), "its model starts from random weights"),
        }
        if facts["task"] == "regression":
            without = {"balanced": False, "class_weights": "none", "label_smoothing": 0.0}
            why = "a regression has no classes"
            fitting |= {name: FittingValues("regression", (value,), why) for name, value in without.items()}
        return fitting

    def examples(self, range_plan: RangePlan) -> Examples:
        """Return the rows of a plan file."""
        return RowExamples(range_plan)

    def codecs(self, *, gzip: bool, perceptual_hash: bool) -> dict[str, str]:
        """Return the version of the encoding of rows, and of zlib for compressed records."""
        zlib_version = {"zlib of python": zlib.ZLIB_RUNTIME_VERSION} if gzip else {}
        return {"row encoding": str(ENCODING), **zlib_version}

    def features(self, records: RecordFormat, facts: Mapping[str, Any]) -> dict[str, str]:
        """Return the type of each column in the records."""
        return feature_kinds(Schema.from_json(facts))

    def key_reader(self, dataset: Dataset) -> Callable[[bytes], str] | None:
        """Return what reads the value of the key column."""
        column = Schema.from_json(dataset.table).of_role("key")
        return partial(_key_of_row, column) if column else None

    def fingerprinted(self, snapshot: "Snapshot") -> dict[str, Any]:
        """Return the columns as far as they decide the records."""
        return {"columns": [{fact: column[fact] for fact in COLUMN_FACTS} for column in snapshot.table["columns"]]}

    def facts_of_writer(self, snapshot: "Snapshot") -> dict[str, Any]:
        """Return the schema without the features, whose values the rows carry in the form of the records."""
        return Schema.from_json(snapshot.table).without_features().to_json()

    def facts(self, snapshot: "Snapshot", order: "Order") -> dict[str, Any]:
        """Return the schema and the preprocessing."""
        from pipeline.kinds.table.facts import table_facts

        return table_facts(Schema.from_json(snapshot.table), order)

    def changes(self, facts: Mapping[str, Any], before: Dataset | None, training_examples: int) -> dict[str, Any]:
        """Return the changes of columns, values and means."""
        from pipeline.kinds.table.facts import table_changes

        return {"table_changes": table_changes(facts, before, training_examples)}

    def find_conflict(self, versions: Sequence[Dataset]) -> Conflict | None:
        """Return the first conflict of two schemas."""
        from pipeline.kinds.table.union import find_conflict

        return find_conflict([Schema.from_json(each.table) for each in versions])

    def union_of(self, versions: Sequence[Dataset], training_examples: int) -> dict[str, Any]:
        """Return the union of the columns."""
        from pipeline.kinds.table.union import union_of

        return union_of([each.table for each in versions], training_examples)


def _key_of_row(column: Column, record: bytes) -> str:
    try:
        return text_in(record, column)
    except (ValueError, KeyError):
        return ""


def _problem_of_row(schema: Schema, ids: Mapping[str, int], record: bytes, counted: Counter[int]) -> str:
    try:
        row = read_row(record, schema)
    except ValueError as error:
        return str(error)
    if schema.task == "classification":
        label = text_of(row[schema.label.name][0], schema.label)
        if label not in ids:
            return f"has the unknown label {label!r}"
        counted[ids[label]] += 1
    return ""


KIND = RowKind()
