"""The rows of a snapshot that Arrow joins, compared with those of the encoder of single rows."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from pipeline.records.example import decode
from pipeline.snapshot.raw_example import content_of, from_line, to_line
from pipeline.tables.convert import converted
from pipeline.tables.rows import Rows, rows_of_batch
from pipeline.tables.schema import Column, Role, Schema
from pipeline.tables.source import RawBatch

ODD = ("plain", 'a "quoted" one', "back\\slash", 'both\\"', '",["x"],', "two\nlines", "\0", "\x7f", "\u2028", "é", "😀")
ROLES: dict[str, Sequence[tuple[str, Role]]] = {
    "a label": [("text", "feature"), ("y", "label")],
    "a key": [("text", "feature"), ("id", "key"), ("y", "label")],
    "a group": [("text", "feature"), ("who", "group"), ("y", "label")],
    "all": [("text", "feature"), ("id", "key"), ("who", "group"), ("y", "label")],
}


def rows_of(columns: dict[str, list[str | None]], schema: Schema) -> list[Rows]:
    raw = RawBatch(pa.record_batch(columns), [])
    return list(rows_of_batch(converted(raw.batch, schema), raw, schema))


def schema_of(columns: Sequence[tuple[str, Role]]) -> Schema:
    return Schema([Column(name, "string", role=role) for name, role in columns], 0, "classification")


@pytest.mark.parametrize("texts", [*(("plain", odd) for odd in ODD), ODD], ids=[*map(ascii, ODD), "all"])
@pytest.mark.parametrize("roles", ROLES)
def test_a_line_is_that_of_its_parsed_row(roles: str, texts: Sequence[str]):
    """Texts are escaped only if one of them needs it."""
    columns = ROLES[roles]
    values: dict[str, list[str | None]] = {
        name: [texts[(row * (1 + place) + place) % len(texts)] for row in range(40)]
        for place, (name, _) in enumerate(columns)
    }
    # Only features and groups may be missing.
    for name, role in columns:
        if role in ("feature", "group"):
            values[name][3::5] = [None] * len(values[name][3::5])
    [rows] = rows_of(values, schema_of(columns))
    assert len(rows.block.lines) == 40
    for number, line in enumerate(rows.block.lines):
        row = from_line(line)
        assert to_line(content_of(row), row) == line
        of_row = {name: values[name][number] for name, _ in columns}
        assert row.labels == [of_row["y"]]
        assert row.group == (of_row.get("who") or "")
        assert row.key == of_row.get("id", row.key)
        record = decode(row.content[12:-4])  # without the frame of a TFRecord
        record = {name: value[0].decode() for name, value in record.items()}
        assert record == {name: value for name, value in of_row.items() if value is not None}


def test_rejected_rows_state_no_range_of_keys():
    columns = ROLES["a label"]
    found = rows_of({"text": ["a", "b", "c"], "y": ["n", None, "y"]}, schema_of(columns))
    assert [len(rows.block) for rows in found] == [2, 1]
    assert [list(rows.block.keys) for rows in found] == [[], []]
