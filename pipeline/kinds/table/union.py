"""The table of a window: the union of the columns of its versions, and their facts together.

A column that a version lacks is missing in all rows of that version. A column without any value is the same for a
reader, because its records have no feature for it. So its type does not matter.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import sqrt
from typing import Any

from pipeline.kinds.table.facts import hash_buckets
from pipeline.kinds.table.quantiles import MAX_CODED, joined_quantiles
from pipeline.kinds.table.vectors import joined_vectors
from pipeline.plan.example_kind import Conflict
from pipeline.tables.schema import MAX_DISTINCT, NAMED_ROLES, Column, Schema


def find_conflict(schemas: Sequence[Schema]) -> Conflict | None:
    """Return the first difference that keeps versions from being one table; None if there is none."""
    return _conflict_of_roles(schemas) or _conflict_of_types(schemas) or _conflict_of_lengths(schemas)


def _conflict_of_roles(schemas: Sequence[Schema]) -> Conflict | None:
    """Return a difference in the task, or in a column that has a role.

    With another key or group, rows of one group (a customer, a house) could be on both sides of the split.
    """
    decisive = [
        {"the task": schema.task}
        | {f"the {role} column": column.name if (column := schema.of_role(role)) else "" for role in NAMED_ROLES}
        for schema in schemas
    ]
    for number, other in enumerate(decisive):
        for what, value in other.items():
            if value != decisive[0][what]:
                return Conflict(0, number, f"{what} is {decisive[0][what]!r} in the first and {value!r} in the second")
    return None


def _conflict_of_types(schemas: Sequence[Schema]) -> Conflict | None:
    holders: dict[str, tuple[int, Column]] = {}
    for number, schema in enumerate(schemas):
        for column in schema.columns:
            if not _has_values(column, schema):
                continue
            first, other = holders.setdefault(column.name, (number, column))
            if (column.type, column.is_list) != (other.type, other.is_list):
                one, two = other.type_words, column.type_words
                difference = (
                    f"the column {column.name!r} holds values of type {one} in the first and {two} in the second"
                )
                # Integers and floats are different lists in a record, and a reader of one refuses the other.
                if {one, two} == {"int", "float"}:
                    difference += (
                        ", and the integers of its records cannot be read as floats: build both again with "
                        f'column_types={{"{column.name}": "float"}}'
                    )
                return Conflict(first, number, difference)
    return None


def _conflict_of_lengths(schemas: Sequence[Schema]) -> Conflict | None:
    """Return a difference in the lengths of vectors, unless a version has lists of several lengths."""
    for name in {column.name: None for schema in schemas for column in schema.columns if column.length}:
        lengths = {number: schemas[number].column(name).length for number in _holders(name, schemas)}
        first, *others = lengths
        other = next((number for number in others if lengths[number] != lengths[first]), None)
        if other is not None and all(lengths.values()):
            return Conflict(
                first,
                other,
                f"the lists of the column {name!r} have {lengths[first]} values in the first version and "
                f"{lengths[other]} in the second: build both again with lists of one length, or without the "
                "column (drop_columns)",
            )
    return None


def _has_values(column: Column, schema: Schema) -> bool:
    return column.missing < schema.rows and column.distinct != 0


def union_of(tables: Sequence[Mapping[str, Any]], training_rows: int) -> dict[str, Any]:
    """Return the field `table` of `dataset.json` of versions that have no conflict.

    The columns of the version that has the most come first. `missing`, `rows`, `low` and `high` are exact. So are the
    values of a column, if all versions list them, and the counts of the vocabularies. Mean and deviation are computed
    from those of the versions with exact fractions. They differ from those of all training rows by no more than the
    rounding of the versions' own numbers to float64. The quantiles are those of the quantiles of the versions.

    Args:
        tables: The field `table` of each version, in the order of the versions.
        training_rows: The number of training rows of all versions.
    """
    schemas = [Schema.from_json(table) for table in tables]
    widest = max(schemas, key=lambda schema: len(schema.columns))
    names = dict.fromkeys(column.name for schema in (widest, *schemas) for column in schema.columns)
    columns = [_column(name, schemas) for name in names]
    # A model of the window reads new rows as those of its last version.
    union = replace(schemas[-1], columns=columns, rows=sum(schema.rows for schema in schemas))
    preprocessing = {}
    for column in union.prepared:
        holders = _holders(column.name, schemas)
        facts = [tables[number]["preprocessing"][column.name] for number in holders]
        if column.length and len(holders) > 1:
            rows = [schemas[number].rows - schemas[number].column(column.name).missing for number in holders]
            preprocessing[column.name] = joined_vectors(facts, rows)
        else:
            preprocessing[column.name] = _facts(column, facts, training_rows)
    return {**union.to_json(), "preprocessing": preprocessing}


def _holders(name: str, schemas: Sequence[Schema]) -> list[int]:
    """Return the numbers of the versions in which a column has a value. If it has none, return one with the column."""
    holders = [number for number, schema in enumerate(schemas) if name in schema.by_name]
    return [number for number in holders if _has_values(schemas[number].column(name), schemas[number])] or holders[:1]


def _column(name: str, schemas: Sequence[Schema]) -> Column:
    holders = _holders(name, schemas)
    columns = [schemas[number].column(name) for number in holders]
    missing = sum(
        schema.column(name).missing if number in holders else schema.rows for number, schema in enumerate(schemas)
    )
    if len(columns) == 1:
        return replace(columns[0], missing=missing)
    # The smallest of texts, or of numbers: the types are equal.
    lows: list[Any] = [column.low for column in columns if column.low is not None]
    highs: list[Any] = [column.high for column in columns if column.high is not None]
    low, high = min(lows, default=None), max(highs, default=None)
    values = _values(columns)
    distinct = len(values) if values is not None else None
    if columns[0].type == "bool" and low is not None:
        distinct = len({low, high} - {None})
    lengths = {column.length for column in columns}
    return replace(
        columns[-1],
        missing=missing,
        low=low,
        high=high,
        distinct=distinct,
        values=tuple(values) if values else (),
        length=columns[0].length if len(lengths) == 1 else None,
    )


def _values(columns: Sequence[Column]) -> list[str] | None:
    """Return the sorted values of a column in all versions; None if one does not list them, or there are too many."""
    if any(column.distinct is None or column.distinct != len(column.values) for column in columns):
        return None
    values = {value for column in columns for value in column.values}
    if len(values) > MAX_DISTINCT:
        return None
    match columns[0].type:
        case "string" | "bool":
            return sorted(values)
        case "float":
            return sorted(values, key=float)
        case _:
            return sorted(values, key=int)


def _facts(column: Column, facts: Sequence[Mapping[str, Any]], training_rows: int) -> dict[str, Any]:
    """Return how to prepare a column, from what its versions say."""
    if len(facts) == 1:
        return dict(facts[0])
    if buckets := [each["hash_buckets"] for each in facts if "hash_buckets" in each]:
        return {"hash_buckets": max(buckets)}
    if "vocabulary" in facts[0]:
        if not column.values:
            return {"hash_buckets": hash_buckets(training_rows)}
        counts: Counter[str] = Counter()
        for each in facts:
            counts.update(dict(zip(each["vocabulary"], each["counts"], strict=True)))
        vocabulary = sorted(counts, key=lambda text: (-counts[text], text))
        return {"vocabulary": vocabulary, "counts": [counts[text] for text in vocabulary]}
    if "count" in facts[0] and not column.is_list:
        return _numbers(column, facts)
    return {}


def _numbers(column: Column, facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of the numbers of all versions together."""
    known = [(each["count"], Fraction(each["mean"]), Fraction(each["deviation"])) for each in facts if each["count"]]
    count = sum(each for each, _, _ in known)
    if not count:
        return dict(facts[0])
    mean = sum(each * mean for each, mean, _ in known) / count
    # With fractions, the difference of the squares loses no digit.
    squares = sum(each * (deviation**2 + mean**2) for each, mean, deviation in known) / count
    result = {"count": count, "mean": float(mean), "deviation": sqrt(squares - mean**2)}
    if column.role == "feature":
        result["sampled"] = sum(each["sampled"] for each in facts)
        result["quantiles"] = joined_quantiles([each["quantiles"] for each in facts], [each["count"] for each in facts])
    values = sorted({value for each in facts for value in each.get("values", ())})
    if all("values" in each for each in facts) and len(values) <= MAX_CODED:
        result["values"] = values
    return result
