"""The columns of a table, for the dataset card, and the values of a row, for the report of a run."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pipeline.report.components import Table
from pipeline.system.wording import range_text
from pipeline.tables.read import text_of
from pipeline.tables.schema import Column, Schema

MAX_COLUMNS = 500
"""The card shows at most this many columns. `dataset.json` has all of them."""
MAX_VALUES = 3
"""The most frequent texts of a column are shown, at most this many."""
MAX_ELEMENTS = 10
"""The report of a run shows at most this many values of a list."""
_EPOCH = date(1970, 1, 1)


def columns_of(dataset: Mapping[str, Any]) -> Table | None:
    """Return the columns with their types, missing values, ranges and the statistics of training; None for images."""
    table = dataset.get("table")
    if not table:
        return None
    schema = Schema.from_json(table)
    rows = [
        (
            column.name,
            column.type_words,
            column.role,
            f"{column.missing / max(schema.rows, 1):.1%}",
            "many" if column.distinct is None else f"{column.distinct:,}",
            _range(column),
            _statistics(column, table["preprocessing"].get(column.name) or {}),
        )
        for column in schema.columns[:MAX_COLUMNS]
    ]
    more = len(schema.columns) - len(rows)
    note = f"{more:,} more columns are in dataset.json." if more else ""
    return Table(("column", "type", "used as", "missing", "values", "range", "training rows"), rows, note)


def texts_of(row: Mapping[str, Sequence[Any]], schema: Schema) -> dict[str, str]:
    """Return the values of a row, as `read_row` returns them, by column: the key, then the features."""
    key = schema.of_role("key")
    return {column.name: _text(row.get(column.name, ()), column) for column in [*filter(None, [key]), *schema.features]}


def _text(values: Sequence[Any], column: Column) -> str:
    is_text = column.type in ("string", "bool")
    is_id = column.role == "key" and column.type == "int"  # Shown as in the table, to be found there.
    texts = [
        text_of(value, column) if is_text else str(value) if is_id else _shown(value, column.type)
        for value in values[:MAX_ELEMENTS]
    ]
    more = len(values) - len(texts)
    return ", ".join(texts) + (f" and {more:,} more" if more else "")


def _range(column: Column) -> str:
    if column.low is None:
        return ""
    return range_text(_shown(column.low, column.type), _shown(column.high, column.type))


def _shown(value: Any, kind: str) -> str:
    try:
        if kind == "date":
            return str(_EPOCH + timedelta(days=value))
        if kind == "time":
            return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)).strftime("%Y-%m-%d %H:%M")
    except OverflowError:  # A year beyond 9999, which Python cannot name.
        return f"{value:,} {'days' if kind == 'date' else 'microseconds'} since 1970"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{int(value):,}" if kind == "int" else f"{value:,.6g}"
    return str(value)


def _statistics(column: Column, facts: Mapping[str, Any]) -> str:
    if facts.get("count"):
        mean = facts["mean"]
        if column.is_list:
            means, deviations = (
                range_text(f"{min(facts[each]):.4g}", f"{max(facts[each]):.4g}") for each in ("mean", "deviation")
            )
            return f"means {means}, standard deviations {deviations}"
        if column.type in ("date", "time"):
            return f"mean {_shown(round(mean), column.type)}"
        return f"mean {mean:.4g}, standard deviation {facts['deviation']:.4g}"
    if facts.get("vocabulary"):
        most = zip(facts["vocabulary"][:MAX_VALUES], facts["counts"], strict=False)
        return "most: " + ", ".join(f"{text} ({count:,})" for text, count in most)
    return ""
