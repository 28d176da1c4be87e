"""New rows for the model of a table: they are read by the settings of its dataset."""

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.errors import SourceError
from pipeline.input import BatchOptions
from pipeline.kinds.table.tensors import KIND
from pipeline.kinds.table.union import union_of
from pipeline.tables.schema import Schema, TextRules
from pipeline.training.served.predict import predict_rows
from tests.tables.built import Built, built, csv_of

SETTINGS = {
    "csv_delimiter": ";",
    "csv_skip_lines": 1,
    "decimal_comma": True,
    "list_encoding": "latin-1",
    "missing_values": ["-"],
    "strip_texts": True,
    "column_types": {"zip": "string", "day": "date:%d.%m.%Y"},
}


class Exported:
    """An exported model whose prediction is the value of a column. It keeps what it got."""

    def __init__(self, column: str) -> None:
        self._column = column
        self.served: dict[str, list[Any]] = {}

    def serve(self, served: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        for name, values in served.items():
            self.served.setdefault(name, []).extend(values.numpy().tolist())
        return {"value": tf.cast(served[self._column], tf.float32)}


@pytest.fixture
def made(tmp_path: Path) -> Built:
    lines = [f"{n},5;{n:05};{n % 28 + 1:02}.01.2026;ä{n % 3} ;{n},25" for n in range(400)] + ["-;;-;;1,5"] * 2
    source = tmp_path / "t.csv"
    source.write_text("\n".join(["# comment", "x;zip;day;job;label", *lines]), "latin-1")
    return built(source, **SETTINGS)


def about_of(made: Built) -> Any:
    """Return the content of about.json."""
    return json.loads(json.dumps(KIND.about(BatchOptions(image_size=32, batch_size=2), made.dataset)))


def test_new_rows_are_read_as_those_of_the_training(made: Built, tmp_path: Path):
    new = tmp_path / "new.csv"
    rows = [" 7,5 ;00012;3.2.2026;ä1;", "-;12;-;ä2", "7.5;12;;", ";;;", "7,5;12;2026-01-01;a"]
    new.write_text("\n".join(["# other", "x;zip;day;job", rows[0][:-1], *rows[1:]]), "latin-1")
    exported = Exported("x")
    answers = list(predict_rows(exported, about_of(made), new))
    assert [each["row"] for each in answers] == [3, 4, 5, 6, 7]
    assert answers[0]["value"] == 7.5
    # Each row has an answer, also one without any value.
    assert [("rejected" in each) for each in answers] == [False, False, True, False, True]
    assert exported.served["zip"] == [b"00012", b"12", b""]
    assert exported.served["job"] == ["ä1".encode(), "ä2".encode(), b""]
    assert exported.served["day"][0] == 20487
    assert "'7.5', which is not a number" in answers[2]["rejected"]
    assert "'2026-01-01', which is not in the format '%d.%m.%Y'" in answers[4]["rejected"]


def test_a_setting_of_the_command_has_priority(made: Built, tmp_path: Path):
    new = csv_of(tmp_path / "new.csv", ["x|zip|day|job", "7,5|00012|03.02.2026|a"])
    settings = settings_from({"csv_delimiter": "|", "csv_skip_lines": 0, "list_encoding": "utf-8"})
    [answer] = predict_rows(Exported("x"), about_of(made), new, None, settings)
    assert (answer["row"], answer["value"]) == (2, 7.5)


def test_a_file_of_another_dialect_is_explained(made: Built, tmp_path: Path):
    new = csv_of(tmp_path / "new.csv", ["# other", "x|zip|day|job", "7,5|00012|03.02.2026|a"])
    with pytest.raises(SourceError, match=r"lacks 4 of the 4 columns .*: add 'x', .*to the table\. Its"):
        list(predict_rows(Exported("x"), about_of(made), new))


def test_a_window_reads_new_rows_as_its_last_version(made: Built):
    other = {**made.dataset.table, "texts": {"missing": [], "strip": False, "decimal_comma": False}}
    union = Schema.from_json(union_of([other, made.dataset.table], 100))
    assert (union.texts, union.dialect) == (made.schema.texts, made.schema.dialect)
    assert Schema.from_json(union_of([made.dataset.table, other], 100)).texts == TextRules()
