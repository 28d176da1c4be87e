"""TFRecord files of other programs as tables. TensorFlow writes them."""

import gzip
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from pipeline.errors import SettingsError, SourceError
from pipeline.records.tfrecord import HEADER_BYTES
from pipeline.stages.build import build
from pipeline.storage import place_of
from pipeline.tables import source, tfrecords
from pipeline.tables.files import table_files
from pipeline.tables.source import read_table
from standins.fake_gcs import FakeGcs
from tests.foreign_shards import LAYOUTS, Row, example, feature, sequence_example, write_file, write_folder

ROWS = 90


def made_rows(count: int = ROWS) -> list[dict[str, Any]]:
    chosen = random.Random(0)
    return [
        {
            "age": chosen.choice([None, -5, 0, 127, 128, 2**62, -(2**63)]),
            "city": chosen.choice(["Köln", "", "x" * 300, None]),
            "id": f"row {number}",
            "income": None if number % 7 == 0 else float(np.float32(chosen.uniform(-1e6, 1e6))),
            "label": chosen.choice(["yes", "no"]),
            "scores": [chosen.random() for _ in range(chosen.randrange(1, 4))] if number % 5 else None,
            "tags": [chosen.choice(["a", "ü"]) for _ in range(number % 3 + 1)],
            "visits": [chosen.randrange(-3, 1000) for _ in range(number % 40 + 1)],
        }
        for number in range(count)
    ]


SCHEMA = pa.schema(
    {
        "age": pa.int64(),
        "city": pa.string(),
        "id": pa.string(),
        "income": pa.float32(),
        "label": pa.string(),
        "scores": pa.list_(pa.float32()),
        "tags": pa.list_(pa.string()),
        "visits": pa.list_(pa.int64()),
    }
)


def table_of(*places: Path) -> pa.Table:
    files = [file for place in places for file in table_files(place)]
    return pa.Table.from_batches([raw.batch for raw in read_table(files, keeps_empty=True)])


def refused(place: Path, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        table_of(place)


# Which files, and their rows.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_rows_of_all_layouts_have_their_values_and_types(layout: str, tmp_path: Path):
    rows = made_rows()
    folder = write_folder(tmp_path / "t", list(map(example, rows)), layout)
    table = table_of(folder)
    ordered = [row for part in range(3) for row in rows[part::3]]
    if "partitions" in layout:
        assert table["date"].unique().to_pylist() == ["2020-01-00", "2020-01-01", "2020-01-02"]
        table = table.drop_columns(["date"])
    assert table.schema.equals(SCHEMA)
    assert table.equals(pa.Table.from_pylist(ordered, SCHEMA))
    assert len(table_files(folder)) == 3


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
@pytest.mark.parametrize("name", ["a.tfrecord", "a.records"])
def test_files_that_tensorflow_compresses_are_read(compression: str, name: str, tmp_path: Path):
    path = tmp_path / name
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for number in range(1000):
            writer.write(example({"x": number}))
    assert table_of(path)["x"].to_pylist() == list(range(1000))


def test_a_gzip_file_of_several_members_is_read(tmp_path: Path):
    path = write_file(tmp_path / "a.tfrecord.gz", [example({"x": number}) for number in range(100)])
    content = path.read_bytes()
    path.write_bytes(gzip.compress(content[:333]) + gzip.compress(content[333:]))
    assert table_of(path)["x"].to_pylist() == list(range(100))


def test_a_record_whose_length_looks_like_a_compressed_file_is_read(tmp_path: Path):
    text = "x" * (0x088B1F - len(example({"x": "x" * 0x088000})) + 0x088000)
    path = write_file(tmp_path / "a.tfrecord", [example({"x": text})])
    assert path.read_bytes().startswith(b"\x1f\x8b\x08")
    assert table_of(path)["x"].to_pylist() == [text]


def test_an_empty_or_damaged_part_without_suffix_belongs_to_the_table(tmp_path: Path):
    folder = write_folder(tmp_path, [example({"x": 1})], "spark-tensorflow-connector")  # Two parts are empty.
    assert [file.name for file in table_files(folder)] == ["part-r-00000", "part-r-00001", "part-r-00002"]
    assert table_of(folder)["x"].to_pylist() == [1]
    (folder / "part-r-00001").write_bytes(b"damaged beyond recognition")
    refused(folder, r"part-r-00001: the record at byte 0 has a damaged header \(record 1\)")


def test_other_files_without_suffix_are_no_table(tmp_path: Path):
    (tmp_path / "part-00000").write_text("x,y\n1,2\n" * 10)
    refused(tmp_path, "has no table file .*part-00000 is not one.*TFRecord")
    write_file(tmp_path / "notes", [example({"x": 1})])
    (tmp_path / "a.csv").write_text("x\n1\n")
    assert table_files(tmp_path) == [tmp_path / "a.csv"]
    assert table_files(tmp_path / "notes") == [tmp_path / "notes"]


@pytest.mark.parametrize("layout", ["spark-tfrecord", "spark-tensorflow-connector", "shards without suffix"])
@pytest.mark.parametrize(("other", "format_"), [("a.csv", "CSV"), ("z.tsv.gz", "CSV"), ("a.parquet", "Parquet")])
def test_a_folder_with_two_formats_is_refused(layout: str, other: str, format_: str, tmp_path: Path):
    write_folder(tmp_path, [example({"x": 1})], layout)
    (tmp_path / other).write_text("x\n1\n")
    refused(tmp_path, f"has TFRecord files .* and {format_} files .{other}.: keep one")


def test_a_folder_in_a_bucket_is_read(tmp_path: Path, gcs: FakeGcs):
    rows = made_rows(9)
    for layout in ("spark-tensorflow-connector", "spark-tfrecord, gzip"):
        write_folder(tmp_path / layout, list(map(example, rows)), layout)
        gcs.put_folder("bucket", f"{layout}/", tmp_path / layout)
        place = place_of(f"gs://bucket/{layout}")
        assert len(table_files(place)) == 3
        assert pa.Table.from_batches(raw.batch for raw in read_table(table_files(place))) == table_of(tmp_path / layout)


# Types.


def test_one_record_with_two_values_makes_a_column_of_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "MAX_BATCH_ROWS", 2)
    rows: list[Row] = [{"x": 1, "y": "a"}, {"y": "b"}, {"x": 2, "y": "c"}, {"x": 3, "y": "d"}, {"x": [4, 5], "y": "e"}]
    first = write_file(tmp_path / "a.tfrecord", map(example, rows[:3]))
    second = write_file(tmp_path / "b.tfrecord", map(example, rows[3:]))
    expected = [[1], None, [2], [3], [4, 5]]
    assert table_of(first, second)["x"].to_pylist() == expected
    assert table_of(second, first)["x"].to_pylist() == expected[3:] + expected[:3]
    assert table_of(first)["x"].to_pylist() == [1, None, 2]
    assert [raw.batch.num_rows for raw in read_table([first, second])] == [2, 1, 2]
    assert table_of(first, second)["y"].type == pa.string()


def of_features(*rows: dict[str, tf.train.Feature]) -> list[bytes]:
    return [tf.train.Example(features=tf.train.Features(feature=each)).SerializeToString() for each in rows]


EMPTY = {
    "int64": tf.train.Feature(int64_list=tf.train.Int64List()),
    "float": tf.train.Feature(float_list=tf.train.FloatList()),
    "bytes": tf.train.Feature(bytes_list=tf.train.BytesList()),
    "none": tf.train.Feature(),
}


@pytest.mark.core
@pytest.mark.parametrize("kind", EMPTY)
def test_a_feature_without_a_value_is_missing(kind: str, tmp_path: Path):
    """One empty list in 400 records made lists of a whole column."""
    rows = [{"x": feature(number), "y": feature([1, 2])} for number in range(399)]
    table = table_of(write_file(tmp_path / "a.tfrecord", of_features(*rows[:17], {"x": EMPTY[kind]}, *rows[17:])))
    assert table["x"].to_pylist() == [*range(17), None, *range(17, 399)]
    assert table.schema.field("x").type == pa.int64()


def test_an_empty_list_of_a_column_of_lists_is_one(tmp_path: Path):
    rows = [{"x": feature([1, 2])}, {"x": EMPTY["int64"]}, {"x": EMPTY["none"]}, {"x": feature(3)}]
    table = table_of(write_file(tmp_path / "a.tfrecord", of_features(*rows)))
    assert table.to_pydict() == {"x": [[1, 2], [], None, [3]]}


def test_a_column_without_any_value_holds_no_lists(tmp_path: Path):
    table = table_of(write_file(tmp_path / "a.tfrecord", of_features({"x": EMPTY["int64"], "y": feature(1)})))
    assert table.to_pydict() == {"x": [None], "y": [1]}
    assert table.schema.field("x").type == pa.null()


def test_a_record_without_features_is_a_row_of_missing_values(tmp_path: Path):
    path = write_file(tmp_path / "a.tfrecord", [b"", example({"x": 1}), example({})])
    assert table_of(path)["x"].to_pylist() == [None, 1, None]
    refused(write_file(tmp_path / "b.tfrecord", [b"", example({})]), "only records without features")


def test_batches_are_limited_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tfrecords, "_MAX_BATCH_BYTES", 200)
    path = write_file(tmp_path / "a.tfrecord", [example({"x": "y" * 100}) for _ in range(5)])
    assert [raw.batch.num_rows for raw in read_table([path])] == [2, 2, 1]


def test_a_sequence_example_has_its_context_as_values_and_its_steps_as_lists(tmp_path: Path):
    lists: list[dict[str, Sequence[Any]]] = [
        {"clicks": [1, 2, 300], "words": ["a", "ü"]},
        {"clicks": [], "words": ["b"]},
        {"words": ["c"]},
    ]
    records = [sequence_example({"user": f"u{i}", "age": i}, each) for i, each in enumerate(lists)]
    table = table_of(write_folder(tmp_path, records, "spark-tfrecord", parts=1))
    assert table.schema.equals(
        pa.schema(
            {"age": pa.int64(), "clicks": pa.list_(pa.int64()), "user": pa.string(), "words": pa.list_(pa.string())}
        )
    )
    assert table.to_pydict() == {
        "age": [0, 1, 2],
        "clicks": [[1, 2, 300], [], None],
        "user": ["u0", "u1", "u2"],
        "words": [["a", "ü"], ["b"], ["c"]],
    }


def test_an_empty_record_is_either_message(tmp_path: Path):
    path = write_file(tmp_path / "a.tfrecord", [b"", sequence_example({}, {"x": [1, 2]}), b""])
    assert table_of(path)["x"].to_pylist() == [None, [1, 2], None]


def test_one_step_in_each_record_is_still_a_list(tmp_path: Path):
    path = write_file(tmp_path / "a.tfrecord", [sequence_example({}, {"x": [0.5]})])
    assert table_of(path)["x"].to_pylist() == [[0.5]]


# What is refused.


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([example({"x": 1}), example({"x": b"\xff\xfe"})], "feature 'x' in record 2 of .*a.tfrecord holds bytes"),
        (
            [example({"x": 1}), example({"x": 0.5})],
            "'x' holds float_list in record 2 of .*, but int64_list in record 1",
        ),
        ([example({"x": 1}), b"\x0a\xff"], "record 2 of .*a.tfrecord is neither a tf.train.Example nor"),
        ([b"some text of another program"], "record 1 of .* is neither"),
        ([example({"x": 1, " ": 1})], "record 1 of .* has a feature without a name"),
        (
            [sequence_example({}, {"x": [1]}), sequence_example({}, {"x": [1, [2, 3]]})],
            "feature list 'x' in record 2 of .* has steps without exactly one value.*lists of lists",
        ),
        ([sequence_example({}, {"x": [1, "a"]})], "feature list 'x' in record 1 of .* has different types"),
        ([sequence_example({"x": 1}, {"x": [1]})], "record 1 of .* has 'x' both as a feature of the context and"),
        (
            [sequence_example({"x": 1}, {"y": [1]}), sequence_example({"y": 1}, {"z": [1]})],
            "'y' is a feature list in record 1 of .*, but a feature of the context in record 2",
        ),
        ([], "a.tfrecord has no record: add"),
    ],
)
def test_a_record_that_is_no_row_is_refused(records: Sequence[bytes], message: str, tmp_path: Path):
    refused(write_file(tmp_path / "a.tfrecord", records), message)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_both_messages_in_one_folder_are_refused(order: list[int], tmp_path: Path):
    records = [example({"x": 1}), sequence_example({"x": 1}, {"y": [1]})]
    for number, which in enumerate(order):
        write_file(tmp_path / f"{number}.tfrecord", [records[which]])
    message = "record 1 of .*{}.tfrecord is a tf.train.Example, but record 1 of .*{}.tfrecord is a tf.train.Sequence"
    refused(tmp_path, message.format(*[order.index(which) for which in (0, 1)]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content, at: content[:at] + b"\xff" + content[at + 1 :], "is damaged .record 3."),
        (lambda content, at: content[: at + 1], "is cut short .record 3."),
        (lambda content, at: content[: at - 5], "has a damaged header .record 3."),
        (lambda content, at: content[: at - 10] + b"\x01" + content[at - 9 :], "has a damaged header .record 3."),
    ],
)
def test_a_damaged_record_is_named(damage: Callable[[bytes, int], bytes], message: str, tmp_path: Path):
    records = [example({"x": number}) for number in range(5)]
    path = write_file(tmp_path / "t/b.tfrecord", records)
    write_file(tmp_path / "t/a.tfrecord", records)
    third = 2 * len(path.read_bytes()) // 5 + HEADER_BYTES
    path.write_bytes(damage(path.read_bytes(), third))
    refused(tmp_path / "t", f"b.tfrecord: the record at byte {third - HEADER_BYTES} {message}")


@pytest.mark.parametrize("layout", ["spark-tfrecord, gzip", "spark-tfrecord, deflate"])
def test_a_compressed_file_that_is_cut_or_damaged_is_refused(layout: str, tmp_path: Path):
    path = table_files(write_folder(tmp_path, list(map(example, made_rows())), layout, parts=1))[0]
    content = path.read_bytes()
    for changed in (content[:-1], content[: len(content) // 2], content[:-4] + b"\0\0\0\0", b"", content + b"rest"):
        path.write_bytes(changed)
        refused(path, r"the compressed stream is damaged .*\(record [0-9]+\)")


@pytest.mark.parametrize("changed", [{"x": [1, 2]}, {"x": 0.5}, {"y": 1}])
def test_a_file_that_changes_between_the_passes_is_refused(
    changed: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_file(tmp_path / "a.tfrecord", [example({"x": 1}), example({"x": 2})])
    survey = tfrecords._survey

    def survey_then_change(*values: Any) -> Any:
        found = survey(*values)
        write_file(path, [example({"x": 1}), example(changed)])
        return found

    monkeypatch.setattr(tfrecords, "_survey", survey_then_change)
    refused(path, r"record 2 of .*a.tfrecord changed while it was read")


# The whole chain.


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    def make(place: Path, workspace: str, **values: Any) -> Settings:
        defaults = {"example_kind": "table", "label_column": "label", "dataset_name": "t"}
        places = {"source_uri": str(place), "workspace": str(tmp_path / workspace)}
        return settings_from({**defaults, **places, **values})

    return make


@pytest.mark.long
@pytest.mark.parametrize("key", [pytest.param("", marks=pytest.mark.core), "id"])
def test_the_dataset_is_that_of_the_same_rows_in_parquet(key: str, settings: Callable[..., Settings], tmp_path: Path):
    rows = made_rows()
    parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / "t.parquet")
    folder = write_folder(tmp_path / "t", list(map(example, rows)), "spark-tensorflow-connector, gzip")
    expected = build(settings(tmp_path / "t.parquet", "one", key_column=key))
    result = build(settings(folder, "other", key_column=key))
    assert result["version"] == expected["version"]
    one, other = load(Path(expected["dataset"])), load(Path(result["dataset"]))
    assert other.table == one.table
    assert [shard.crc32c for shard in other.splits["train"].shards] == [
        shard.crc32c for shard in one.splits["train"].shards
    ]
    assert verify(Path(result["dataset"])) == {"ok": True, "records": ROWS, "problems": []}


def test_sequence_examples_become_a_dataset(settings: Callable[..., Settings], tmp_path: Path):
    records = [
        sequence_example({"label": number % 2, "id": number}, {"clicks": list(range(number % 5))})
        for number in range(ROWS)
    ]
    result = build(settings(write_folder(tmp_path / "t", records), "one", key_column="id"))
    assert sum(result["examples"].values()) == ROWS
    columns = {column["name"]: column for column in load(Path(result["dataset"])).table["columns"]}
    assert (columns["clicks"]["type"], columns["clicks"]["is_list"]) == ("int", True)


def test_a_label_without_a_value_is_a_rejected_row(settings: Callable[..., Settings], tmp_path: Path):
    rows = [{"x": feature(number), "label": feature(number % 2)} for number in range(399)]
    rows.insert(17, {"x": feature(1000), "label": EMPTY["int64"]})
    result = build(settings(write_file(tmp_path / "t.tfrecord", of_features(*rows)), "w"))
    assert (result["rejected"], sum(result["examples"].values())) == (1, 399)
    rejected = Path(result["dataset"], "rejected.jsonl").read_text()
    assert '"row 18"' in rejected
    assert "the label is missing" in rejected


@pytest.mark.parametrize("role", ["label", "key"])
def test_a_record_with_several_labels_or_keys_is_named(role: str, settings: Callable[..., Settings], tmp_path: Path):
    rows: list[Row] = [{"id": number, "label": number % 2, "x": number} for number in range(40)]
    rows[17] = {**rows[17], "label" if role == "label" else "id": [0, 1]}
    place = write_file(tmp_path / "t.tfrecord", map(example, rows))
    with pytest.raises(
        SettingsError, match=rf"{role}_column is '.*', which holds lists, such as in record 18 of .*t.tf"
    ):
        build(settings(place, "w", key_column="id"))


def test_features_that_are_not_selected_are_not_looked_at(settings: Callable[..., Settings], tmp_path: Path):
    rows: list[Row] = [{"image": b"\xff" if number else 1, "label": number % 2, "x": number} for number in range(40)]
    place = write_file(tmp_path / "t.tfrecord", map(example, rows))
    for values in ({"columns": "x"}, {"drop_columns": "im*"}):
        dataset = load(Path(build(settings(place, "w", **values))["dataset"]))
        assert [column["name"] for column in dataset.table["columns"]] == ["label", "x"]
