"""The columns of a table, for the dataset card, and the values of a row, for the report of a run."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pipeline.report.components import Table
from pipeline.tables.read import text_of
from pipeline.tables.schema import Column, Schema

MAX_COLUMNS = 500
"""The card shows at most this many columns. `dataset.json` has all of them."""
MAX_VALUES = 3
"""The most frequent texts of a column are shown, at most this many."""
_EPOCH = date(1970, 1, 1)


def columns_of(dataset: Mapping[str, Any]) -> Table | None:
    """Return the columns with their types, missing values, ranges and the statistics of training; None for images."""
    table = dataset.get("table")
    if not table:
        return None
    rows = [
        (
            column["name"],
            f"list of {column['type']}" if column["is_list"] else column["type"],
            column["role"],
            f"{column['missing'] / max(table['rows'], 1):.1%}",
            "many" if column["distinct"] is None else f"{column['distinct']:,}",
            _range(column),
            _statistics(column, table["preprocessing"].get(column["name"]) or {}),
        )
        for column in table["columns"][:MAX_COLUMNS]
    ]
    more = len(table["columns"]) - len(rows)
    note = f"{more:,} more columns are in dataset.json." if more else ""
    return Table(("column", "type", "used as", "missing", "values", "range", "training rows"), rows, note)


def texts_of(row: Mapping[str, Sequence[Any]], schema: Schema) -> dict[str, str]:
    """Return the values of a row, as `read_row` returns them, by column: the key, then the features."""
    key = schema.of_role("key")
    return {column.name: _text(row.get(column.name, ()), column) for column in [*filter(None, [key]), *schema.features]}


def _text(values: Sequence[Any], column: Column) -> str:
    if column.type in ("string", "bool"):
        return ", ".join(text_of(value, column) for value in values)
    return ", ".join(_shown(value, column.type) for value in values)


def _range(column: Mapping[str, Any]) -> str:
    if column["low"] is None:
        return ""
    low, high = (_shown(column[bound], column["type"]) for bound in ("low", "high"))
    return f"{low} to {high}"


def _shown(value: Any, kind: str) -> str:
    try:
        if kind == "date":
            return str(_EPOCH + timedelta(days=value))
        if kind == "time":
            return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)).strftime("%Y-%m-%d %H:%M")
    except OverflowError:  # A year beyond 9999, which Python cannot name.
        return f"{value:,} {'days' if kind == 'date' else 'microseconds'} since 1970"
    return f"{value:,.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _statistics(column: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    if facts.get("count"):
        mean = facts["mean"]
        if column["type"] in ("date", "time"):
            return f"mean {_shown(round(mean), column['type'])}"
        return f"mean {mean:.4g}, standard deviation {facts['deviation']:.4g}"
    if facts.get("vocabulary"):
        most = zip(facts["vocabulary"][:MAX_VALUES], facts["counts"], strict=False)
        return "most: " + ", ".join(f"{text} ({count:,})" for text, count in most)
    return ""
