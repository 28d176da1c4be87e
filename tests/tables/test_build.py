"""Tables from their source to a published dataset, read by TensorFlow and by pandas."""

import csv
import json
import random
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import Dataset, load
from pipeline.dataset.verify import verify
from pipeline.errors import GateError, SettingsError, SourceError
from pipeline.plan.order import Order
from pipeline.plan.plan import load_plan
from pipeline.records.example import decode
from pipeline.records.tfrecord import read_records
from pipeline.snapshot.part import PartLimits
from pipeline.stages.build import build, build_dataframe
from pipeline.stages.extract import list_all
from pipeline.stages.shard import plan_shards
from pipeline.tables.samples import write_sample_table
from tests.published import changed

ROWS = 600


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "customers.csv"
    write_sample_table(path, ROWS)
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    def make(source: Path, **values: Any) -> Settings:
        # Few shards, because each is synced.
        defaults = {"label_column": "churn", "workspace": str(tmp_path / "workspace"), "num_shards": 3}
        return settings_from({"example_kind": "table", "source_uri": str(source), **defaults, **values})

    return make


def dataset_of(result: dict[str, Any]) -> Dataset:
    return load(Path(result["dataset"]))


def records_of(result: dict[str, Any], splits: Iterable[str] = ("train", "validation")) -> list[bytes]:
    dataset = dataset_of(result)
    shards = [shard.name for split in splits for shard in dataset.splits[split].shards]
    return [record for name in shards for record in read_records(Path(result["dataset"]) / name)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def simple_rows(count: int, **changed: Any) -> list[dict[str, Any]]:
    return [
        {"x": number, "color": "red" if number % 3 else "blue", "y": number % 2, **changed} for number in range(count)
    ]


def test_each_row_is_in_one_record_with_its_values(table: Path, settings: Callable[..., Settings]):
    import tensorflow as tf

    result = build(settings(table, key_column="customer"))
    assert result["examples"]["train"] + result["examples"]["validation"] == ROWS
    assert verify(Path(result["dataset"])) == {"ok": True, "records": ROWS, "problems": []}
    rows = pd.read_csv(table).set_index("customer")
    seen = set()
    for record in records_of(result):
        features = tf.train.Example.FromString(record).features.feature
        [key] = features["customer"].bytes_list.value
        row = rows.loc[key.decode()]
        seen.add(key)
        assert list(features["age"].int64_list.value) == [row["age"]]
        assert list(features["active"].int64_list.value) == [int(row["active"])]
        assert list(features["churn"].bytes_list.value) == [row["churn"].encode()]
        assert list(features["joined"].int64_list.value) == [(pd.Timestamp(row["joined"]) - pd.Timestamp(0)).days]
        seconds = int((pd.Timestamp(row["last_seen"]) - pd.Timestamp(0)).total_seconds())
        assert list(features["last_seen"].int64_list.value) == [seconds * 1_000_000]
        assert features["balance"].float_list.value[0] == pytest.approx(row["balance"], rel=1e-6)
        for name in ("income", "city", "visits"):
            assert (name in features) == pd.notna(row[name])
    assert len(seen) == ROWS


def test_statistics_are_those_of_the_training_rows(table: Path, settings: Callable[..., Settings]):
    result = build(settings(table, key_column="customer"))
    dataset = dataset_of(result)
    import tensorflow as tf

    keys = [
        tf.train.Example.FromString(record).features.feature["customer"].bytes_list.value[0].decode()
        for record in records_of(result, ["train"])
    ]
    rows = pd.read_csv(table).set_index("customer").loc[keys]
    facts = dataset.table["preprocessing"]
    for name in ("age", "income", "visits", "balance"):
        assert facts[name]["count"] == rows[name].count()
        # The records hold 32 bits of each value. The mean of large values may be near 0.
        deviation = rows[name].std(ddof=0)
        assert facts[name]["mean"] == pytest.approx(rows[name].mean(), rel=1e-6, abs=1e-6 * deviation)
        assert facts[name]["deviation"] == pytest.approx(deviation, rel=1e-5)
    counts = rows["city"].value_counts()
    assert dict(zip(facts["city"]["vocabulary"], facts["city"]["counts"], strict=True)) == counts.to_dict()
    assert facts["city"]["vocabulary"] == sorted(counts.index, key=lambda city: (-counts[city], city))


@pytest.mark.parametrize("key", ["", pytest.param("customer", marks=pytest.mark.long)])
def test_the_same_rows_give_the_same_bytes_from_any_source(
    table: Path, settings: Callable[..., Settings], tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
):
    expected = build(settings(table, key_column=key, dataset_name="t"))
    frame = pd.read_csv(table, parse_dates=["last_seen"], dtype={"visits": "Int64"})
    frame["joined"] = pd.to_datetime(frame["joined"]).dt.date
    shuffled = pa.Table.from_pandas(frame.sample(frac=1, random_state=0), preserve_index=False)
    folder = tmp_path / "parquet"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    for number in range(3):
        part = shuffled.slice(number * ROWS // 3, ROWS // 3)
        parquet.write_table(part, folder / f"part-{number}.parquet", row_group_size=50)
    monkeypatch.setattr("pipeline.tables.extract.PART_LIMITS", PartLimits(rows=70))
    places = {"workspace": str(tmp_path / "other"), "dataset_name": "t"}
    result = build(settings(folder, key_column=key, **places))
    assert result["version"] == expected["version"]
    assert [shard.crc32c for shard in dataset_of(result).splits["train"].shards] == [
        shard.crc32c for shard in dataset_of(expected).splits["train"].shards
    ]
    assert dataset_of(result).table["preprocessing"] == dataset_of(expected).table["preprocessing"]


def test_rows_that_do_not_fit_are_rejected_with_a_reason(settings: Callable[..., Settings], tmp_path: Path):
    path = tmp_path / "dirty.csv"
    lines = ["x,color,y", *(f"{row['x']},{row['color']},{row['y']}" for row in simple_rows(60)), "1,red", "2,red,"]
    path.write_text("\n".join(lines) + "\n")
    result = build(settings(path, label_column="y"))
    assert (result["rejected"], sum(result["examples"].values())) == (2, 60)
    rejected = [json.loads(line) for line in (Path(result["dataset"]) / "rejected.jsonl").read_text().splitlines()]
    reasons = " ".join(row["reason"] for row in rejected)
    assert "fields" in reasons
    assert "label" in reasons
    assert verify(Path(result["dataset"]))["ok"]


def test_equal_rows_stay_on_one_side_and_contradictions_are_named(settings: Callable[..., Settings], tmp_path: Path):
    rows = simple_rows(40) * 3 + [{"x": 1, "color": "red", "y": 0}]
    result = build(settings(write_rows(tmp_path / "t.csv", rows), label_column="y"))
    quality = dataset_of(result).quality
    assert quality["duplicates"] == {"images": 121, "groups": 40}
    assert quality["contradictions"]["images"] == 4
    assert quality["leaks"]["images"] == 0


def test_a_group_stays_on_one_side(settings: Callable[..., Settings], tmp_path: Path):
    import tensorflow as tf

    rows = [{**row, "person": number % 20} for number, row in enumerate(simple_rows(200))]
    result = build(settings(write_rows(tmp_path / "t.csv", rows), label_column="y", group_column="person"))
    people = [
        {
            tf.train.Example.FromString(record).features.feature["person"].int64_list.value[0]
            for record in records_of(result, [split])
        }
        for split in ("train", "validation")
    ]
    assert not people[0] & people[1]
    assert people[0] | people[1] == set(range(20))


def test_a_number_as_label_is_a_regression(settings: Callable[..., Settings], tmp_path: Path):
    rows = [{"x": number, "y": number / 7} for number in range(100)]
    dataset = dataset_of(build(settings(write_rows(tmp_path / "t.csv", rows), label_column="y")))
    assert (dataset.table["task"], dataset.labels) == ("regression", ())
    assert dataset.table["preprocessing"]["y"]["mean"] == pytest.approx(7, abs=1)


@pytest.mark.long
@pytest.mark.parametrize(("label", "steps"), [(lambda x: 1e9 + x / 2, "64"), (lambda x: 10**9 + x, ""), (float, "")])
def test_labels_that_floats_of_32_bits_hardly_tell_apart_are_reported(
    settings: Callable[..., Settings],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    label: Callable[[int], float],
    steps: str,
):
    rows = [{"x": number, "y": label(number)} for number in range(100)]
    build(settings(write_rows(tmp_path / "t.csv", rows), label_column="y"))
    messages = [each.getMessage() for each in caplog.records if "has a mean of" in each.getMessage()]
    assert len(messages) == bool(steps)
    if steps:
        assert "column 'y' has a mean of 1e+09" in messages[0]
        assert f"only in steps of {steps}: store" in messages[0]


def test_integers_that_pandas_wrote_as_floats_are_classes(settings: Callable[..., Settings], tmp_path: Path):
    frame = pd.DataFrame({"x": range(100), "y": [None if number == 50 else number % 2 for number in range(100)]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert "1.0" in (tmp_path / "t.csv").read_text()
    frame.to_parquet(tmp_path / "t.parquet")
    results = [build(settings(tmp_path / name, label_column="y", dataset_name="t")) for name in ("t.csv", "t.parquet")]
    dataset = dataset_of(results[0])
    assert (dataset.table["task"], dataset.labels, results[0]["rejected"]) == ("classification", ("0", "1"), 1)
    assert verify(Path(results[0]["dataset"]))["ok"]
    assert results[1]["version"] == results[0]["version"]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_class_that_is_whole_in_32_bits_keeps_its_rows(settings: Callable[..., Settings], tmp_path: Path, name: str):
    """(0.1 + 0.2) * 10 is a little more than 3."""
    frame = pd.DataFrame({"x": range(100), "y": [(0.1 + 0.2) * 10 if number % 2 else 1.0 for number in range(100)]})
    frame.to_csv(tmp_path / name, index=False) if name == "t.csv" else frame.to_parquet(tmp_path / name)
    result = build(settings(tmp_path / name, label_column="y"))
    assert (dataset_of(result).labels, result["rejected"]) == (("1", "3"), 0)


@pytest.mark.core
@pytest.mark.parametrize(
    ("changed", "settings_of_gate", "sentence"),
    [
        (lambda row: {"x": row["x"], "y": row["y"]}, {}, "'color' is missing"),
        (lambda row: {**row, "x": f"n{row['x']}"}, {}, "'x' holds values of type string instead of int"),
        (
            lambda row: {**row, "color": "green"},
            {"on_new_values": "fail"},
            "'color' in 1 of the training rows .* 'green'",
        ),
        (lambda row: {**row, "x": row["x"] + 60}, {"on_mean": "fail"}, "means of 1 column moved .* 'x' by"),
    ],
)
def test_a_changed_table_is_stopped_by_the_gate(
    settings: Callable[..., Settings],
    tmp_path: Path,
    changed: Callable[[dict[str, Any]], dict[str, Any]],
    settings_of_gate: dict[str, Any],
    sentence: str,
):
    names = {"label_column": "y", "dataset_name": "t"}
    rows = simple_rows(100)
    build(settings(write_rows(tmp_path / "1.csv", rows), **names))
    after = write_rows(tmp_path / "2.csv", [changed(row) for row in rows])
    with pytest.raises(GateError, match=sentence):
        build(settings(after, **names, **settings_of_gate))
    action = next(iter(settings_of_gate), "on_columns")
    build(settings(after, **names, **{action: "continue"}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"label_map": "missing.txt"}, "label_map must be a file that exists"),
        ({"dataset": "other"}, "dataset must be empty"),
        ({"publish_uri": "/proc/datasets"}, "publish_uri must be a folder that can be written to"),
        ({"dataset_name": ""}, "dataset_name is empty"),
    ],
)
def test_settings_are_checked_before_spark_computes_a_dataframe(tmp_path: Path, values: dict[str, str], message: str):
    settings = settings_from({"dataset_name": "t", "label_column": "y", "workspace": str(tmp_path), **values})
    frame: Any = SimpleNamespace(columns=["x", "y"])  # Nothing can be computed of it.
    with pytest.raises(SettingsError, match=message):
        build_dataframe(frame, settings)


def test_wrong_columns_and_labels_are_refused(settings: Callable[..., Settings], tmp_path: Path):
    path = write_rows(tmp_path / "t.csv", simple_rows(30))
    with pytest.raises(SettingsError, match="label_column"):
        list_all(settings(path, label_column="z"))
    with pytest.raises(SettingsError, match="label_column"):
        list_all(settings(path, label_column=""))
    with pytest.raises(SourceError, match="has only the values"):
        list_all(settings(write_rows(tmp_path / "one.csv", simple_rows(30, y="a")), label_column="y"))


def test_the_card_shows_the_columns(table: Path, settings: Callable[..., Settings]):
    page = (Path(build(settings(table))["dataset"]) / "card.html").read_text()
    assert "What each column holds" in page
    assert "last_seen" in page
    assert "Sample images" not in page


def test_infinite_features_and_distant_dates_do_not_stop_a_build(settings: Callable[..., Settings], tmp_path: Path):
    rows = simple_rows(60)
    table = pa.table(
        {
            "x": pa.array([float("inf") if number % 9 == 0 else -float("inf") for number in range(60)]),
            "size": pa.array([float("inf"), *range(59)], pa.float64()),
            "day": pa.array([2**31 - 1 if number % 7 == 0 else 0 for number in range(60)], pa.date32()),
            "code": pa.array([2**63 - 1 if number % 2 else -(2**63) for number in range(60)], pa.int64()),
            "y": pa.array([row["y"] for row in rows]),
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    result = build(settings(tmp_path / "t.parquet", label_column="y"))
    facts = dataset_of(result).table["preprocessing"]
    assert facts["x"]["count"] == 0
    assert 0 < facts["size"]["mean"] < 60
    assert facts["code"]["deviation"] == pytest.approx(2**63, rel=0.1)
    assert "days since 1970" in (Path(result["dataset"]) / "card.html").read_text()
    assert verify(Path(result["dataset"]))["ok"]


def test_a_shared_part_keeps_the_statistics_of_each_table(settings: Callable[..., Settings], tmp_path: Path):
    """The values of a part depend on the lowest value and on the texts of the whole table."""
    folder = tmp_path / "t"
    write_rows(folder / "1.csv", simple_rows(70))
    names = {"label_column": "y", "dataset_name": "t", "on_mean": "continue"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.tables.extract.PART_LIMITS", PartLimits(rows=70))
        first = list_all(settings(folder, **names))
        write_rows(folder / "2.csv", [{"x": -1000, "color": "amber", "y": 0}] * 5)
        list_all(settings(folder, **names))
    plan = plan_shards(settings(folder, **names), first)
    facts = load_plan(plan).table["preprocessing"]
    assert 20 < facts["x"]["mean"] < 50
    assert set(facts["color"]["vocabulary"]) == {"blue", "red"}


@pytest.mark.long
def test_rows_with_one_key_have_one_order(
    settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also if they are in different parts, and the border of a shard is between them."""
    rows = [{"id": number // 40, "x": number, "y": number % 2} for number in range(200)]
    results = []
    for number, size in enumerate((1000, 3, 17)):
        monkeypatch.setattr("pipeline.tables.extract.PART_LIMITS", PartLimits(rows=size))
        random.Random(number).shuffle(rows)
        path = write_rows(tmp_path / f"{number}.csv", rows)
        places = {"workspace": str(tmp_path / f"w{number}"), "dataset_name": "t"}
        results.append(dataset_of(build(settings(path, label_column="y", key_column="id", **places))))
    assert len({dataset.version for dataset in results}) == 1
    shards = [[shard.crc32c for split in each.splits.values() for shard in split.shards] for each in results]
    assert shards[0] == shards[1] == shards[2]


@pytest.mark.long
def test_rejected_rows_in_another_order_give_the_same_version(settings: Callable[..., Settings], tmp_path: Path):
    lines = [f"{row['x']},{row['color']},{row['y']}" for row in simple_rows(60)] + ["1,red", "2,red,", "3,red,1,1"]
    results = []
    for number in range(2):
        random.Random(number).shuffle(lines)
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(["x,color,y", *lines]) + "\n")
        places = {"workspace": str(tmp_path / f"w{number}"), "dataset_name": "t"}
        results.append(build(settings(path, label_column="y", **places)))
    assert results[0]["version"] == results[1]["version"]
    assert results[0]["rejected"] == 3
    records = [records_of(result) for result in results]
    assert records[0] == records[1]


def test_long_codes_are_keys_of_their_own(settings: Callable[..., Settings], tmp_path: Path):
    rows = [{"id": f"{10**22 + number}", **row} for number, row in enumerate(simple_rows(50))]
    path = write_rows(tmp_path / "t.csv", rows)
    dataset = dataset_of(build(settings(path, label_column="y", key_column="id")))
    [key] = [column for column in dataset.table["columns"] if column["role"] == "key"]
    assert (key["type"], key["distinct"]) == ("string", 50)


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def runs_of(records: list[bytes]) -> int:
    """Return the length of the longest run of equal records."""
    return max(len(list(run)) for _, run in groupby(records))


@pytest.mark.core
def test_all_equal_rows_are_compared_and_only_named_ones_are_read(
    settings: Callable[..., Settings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """A first group of 500,001 rows used to end the comparison, and each row was read four times."""
    monkeypatch.setattr("pipeline.gate.equal_rows.MAX_NAMED", 2)
    read: list[int] = []
    placed = Order.placed
    monkeypatch.setattr(Order, "placed", lambda order, number: read.append(number) or placed(order, number))
    monkeypatch.setattr("pipeline.tables.extract.PART_LIMITS", PartLimits(rows=37))
    rows = [{"x": number % 8, "z": "a b", "y": int(number == 14) or number % 2} for number in range(160)]
    result = build(settings(write_rows(tmp_path / "t.csv", rows), label_column="y"))
    quality = dataset_of(result).quality
    assert quality["duplicates"] == {"images": 160, "groups": 8}
    lines = read_lines(Path(result["dataset"]) / "duplicates.jsonl")
    assert [line.get("values") for line in lines] == ["x=0; z=a b", "x=1; z=a b", *[None] * 4, "x=6; z=a b", None]
    groups = [line["images"] for line in lines]
    pair = {"paths": [groups[6][0]["path"]] * 2, "labels": [["0"], ["1"]]}
    assert quality["contradictions"] == {"images": 20, "groups": 1, "of": 160, "pairs": [pair]}
    assert read == [0, 1, 6]
    assert [sum(each["rows"] for each in group) for group in groups] == [20] * 8
    assert [(each["labels"], each["rows"]) for each in groups[6]] == [(["0"], 19), (["1"], 1)]
    assert len({group[0]["path"] for group in groups}) == 8
    card = (Path(result["dataset"]) / "card.html").read_text()
    assert "Equal rows with different labels" in card
    assert f"{groups[6][0]['path']} (0), 19 times" in card
    assert "The file duplicates.jsonl has its values" in card
    # Values may be personal data.
    texts = [card, caplog.text, (Path(result["dataset"]) / "dataset.json").read_text()]
    assert not any("x=6" in text for text in texts)
    assert verify(Path(result["dataset"]))["ok"]


def test_rows_with_a_key_are_equal_if_their_keys_are(settings: Callable[..., Settings], tmp_path: Path):
    rows = [{"id": number, "x": 1, "y": number % 2} for number in range(60)]
    rows += [{"id": 7, "x": 1, "y": 1}, {"id": 8, "x": 1, "y": 1}, {"id": 9, "x": 2, "y": 1}]
    quality = dataset_of(
        build(settings(write_rows(tmp_path / "t.csv", rows), label_column="y", key_column="id"))
    ).quality
    assert quality["duplicates"] == {"images": 4, "groups": 2}
    assert quality["contradictions"]["pairs"] == [{"paths": ["8", "8"], "labels": [["0"], ["1"]]}]


@pytest.mark.core
def test_equal_rows_are_spread_over_the_shards(
    settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They used to follow each other, in runs of 50 here. The order is the same for any order and division of rows."""
    rows = [{"x": number % 40, "y": number % 2} for number in range(2000)]
    results = []
    for number, size in enumerate((10_000, 300, 170)):
        monkeypatch.setattr("pipeline.tables.extract.PART_LIMITS", PartLimits(rows=size))
        path = write_rows(tmp_path / f"{number}.csv", rows)
        places = {"workspace": str(tmp_path / f"w{number}"), "dataset_name": "t"}
        results.append(build(settings(path, label_column="y", **places)))
        random.Random(number).shuffle(rows)
    records = [records_of(result) for result in results]
    assert records[0] == records[1] == records[2]
    assert runs_of(records[0]) < 6
    # An equal row is never on the other side.
    sides = [set(records_of(results[0], [split])) for split in ("train", "validation")]
    assert (len(sides[0] & sides[1]), len(sides[0] | sides[1])) == (0, 40)


@pytest.mark.core
@pytest.mark.parametrize("key", ["", "id"])
def test_the_order_does_not_depend_on_the_order_of_the_splits(
    settings: Callable[..., Settings], tmp_path: Path, key: str
):
    """Rows of several splits used to be numbered together, in the order of their files: same version, other bytes."""
    rows = [{"id": number % 30, "x": number % 30, "y": number % 2} for number in range(300)]
    results = []
    for number, (train, test) in enumerate((("a/train", "b/test"), ("b/train", "a/test"))):
        write_rows(tmp_path / f"{number}/{train}/t.csv", rows)
        write_rows(tmp_path / f"{number}/{test}/t.csv", rows[:100])
        places = {"workspace": str(tmp_path / f"w{number}"), "dataset_name": "t", "on_leak": "continue"}
        results.append(build(settings(tmp_path / str(number), label_column="y", key_column=key, **places)))
    assert results[0]["version"] == results[1]["version"]
    splits = ("train", "validation", "test")
    assert records_of(results[0], splits) == records_of(results[1], splits)


def test_a_row_that_a_column_states_twice_is_a_leak(settings: Callable[..., Settings], tmp_path: Path):
    """The column of the split was part of what is compared."""
    rows = [{"x": number, "y": "no", "s": "train"} for number in range(100)]
    rows += [{"x": 1, "y": "yes", "s": split} for split in ("train", "test")]
    path = write_rows(tmp_path / "t.csv", rows)
    made = settings(path, label_column="y", split_column="s", validation_fraction=0.01, on_leak="continue")
    quality = dataset_of(build(made)).quality
    assert quality["leaks"]["images"] == 1
    assert quality["duplicates"] == {"images": 3, "groups": 1}


@pytest.mark.parametrize("role", ["group_column", "key_column"])
def test_a_group_on_both_sides_of_a_stated_split_is_a_leak(
    settings: Callable[..., Settings], tmp_path: Path, role: str
):
    """Two rows of the patient p1 are in training, and another one is in test. The rows of q2 are in test alone."""
    rows = [{"x": number, "p": f"p{number // 2}", "y": "yn"[number % 2], "s": "train"} for number in range(100)]
    rows += [{"x": 1000 + number, "p": p, "y": "y", "s": "test"} for number, p in enumerate(("p1", "q1", "q2", "q2"))]
    rows.append({"x": 2000, "p": "v", "y": "n", "s": "validation"})
    path = write_rows(tmp_path / "t.csv", rows)
    made = settings(path, label_column="y", split_column="s", **{role: "p"})
    with pytest.raises(GateError, match=r"share a group with a training row \(1 only by group\)"):
        build(made)
    leaks = dataset_of(build(changed(made, on_leak="continue"))).quality["leaks"]
    assert (leaks["images"], leaks["only_by_group"], len(leaks["names"])) == (1, 1, 1)


@pytest.mark.parametrize("key", ["", "id"])
def test_a_row_without_any_feature_is_not_taken_for_a_rejected_one(
    settings: Callable[..., Settings], tmp_path: Path, key: str
):
    rows: list[dict[str, Any]] = [{"x": number, "y": number % 2} for number in range(100)]
    rows += [{"x": "", "y": 0}, {"x": "", "y": 1}]
    rows = [{"id": min(number, 100), **row} for number, row in enumerate(rows)] if key else rows
    quality = dataset_of(
        build(settings(write_rows(tmp_path / "t.csv", rows), label_column="y", key_column=key))
    ).quality
    assert quality["contradictions"]["images"] == 2
    assert quality["leaks"]["images"] == 0
    assert quality["split_values"]["rows"] == 102
    assert quality["split_values"]["values"] == 101


@pytest.mark.core
def test_rows_with_one_key_are_spread_over_the_shards(settings: Callable[..., Settings], tmp_path: Path):
    """They used to follow each other, sorted by class, so that shards had one class."""
    rows = [{"id": number % 5, "x": number, "y": number % 2} for number in range(2000)]
    path = write_rows(tmp_path / "t.csv", rows)
    result = build(settings(path, label_column="y", key_column="id", split_seed=1))
    for shard in dataset_of(result).splits["train"].shards:
        labels = [decode(record)["y"][0] for record in read_records(Path(result["dataset"]) / shard.name)]
        assert 0.4 < sum(labels) / len(labels) < 0.6
        keys = [bytes(decode(record)["id"]) for record in read_records(Path(result["dataset"]) / shard.name)]
        assert runs_of(keys) < 30
    # The split goes by key.
    keys = [{decode(record)["id"][0] for record in records_of(result, [split])} for split in ("train", "validation")]
    assert not keys[0] & keys[1]


def test_a_key_of_few_values_is_reported(
    settings: Callable[..., Settings], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rows = [{"id": number % 3, "x": number, "y": number % 2} for number in range(300)]
    path = write_rows(tmp_path / "t.csv", rows)
    result = build(settings(path, label_column="y", key_column="id"))
    share = result["examples"]["validation"] / 300
    facts = dataset_of(result).quality["split_values"]
    assert facts == {
        "column": "id",
        "setting": "key_column",
        "values": 3,
        "rows": 300,
        "shares": {"validation": [round(share, 4), 0.2]},
    }
    assert "the key column 'id' has only 3 different values in 300 rows" in caplog.text
    assert f"the validation split has {share:.1%} of the rows instead of 20.0% (validation_fraction)" in caplog.text
    assert "did you mean another key_column?" in (Path(result["dataset"]) / "card.html").read_text()


def test_one_key_of_all_rows_is_named(settings: Callable[..., Settings], tmp_path: Path):
    rows = [{"id": "all", "x": number, "y": number % 2} for number in range(50)]
    with pytest.raises(SourceError, match=r"all rows with one value of 'id' \(key_column\) are in the same split"):
        build(settings(write_rows(tmp_path / "t.csv", rows), label_column="y", key_column="id"))


def test_equal_rejected_rows_are_spread_over_the_shards(settings: Callable[..., Settings], tmp_path: Path):
    rows = [{"x": number, "y": number % 2} for number in range(300)] + [{"x": 1000, "y": ""}] * 300
    result = build(settings(write_rows(tmp_path / "t.csv", rows), label_column="y", max_rejected_fraction=1))
    assert (result["rejected"], sum(result["examples"].values())) == (300, 300)
    splits = dataset_of(result).splits.values()
    quality = dataset_of(result).quality
    assert quality["duplicates"]["images"] == 0
    assert (quality["split_values"]["rows"], quality["split_values"]["values"]) == (300, 300)
    for split in splits:
        assert min(shard.examples for shard in split.shards) > 5


def test_lines_are_stored_in_their_order_and_not_copied(table: Path, settings: Callable[..., Settings], tmp_path: Path):
    """The plan used to read all rows of the snapshot again, and to write them in its order."""
    build(settings(table, key_column="customer"))
    assert list(tmp_path.glob("workspace/**/*.index"))
    assert not list(tmp_path.glob("workspace/**/*.lines"))
