"""Which files of a folder are a table, what their names say about their rows, and what is named instead of lost."""

import bz2
import gzip
import io
import json
import logging
import lzma
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import Dataset, load
from pipeline.errors import SourceError
from pipeline.snapshot.part import rows_of
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.stages.build import build
from pipeline.stages.extract import divide, extract, list_all
from pipeline.storage import place_of
from pipeline.tables.files import facts_of_files, find_files, note_on_splits, table_files
from pipeline.tables.selection import Selection
from pipeline.tables.source import read_table
from standins.fake_gcs import FakeGcs
from tests.foreign_shards import example, write_file


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    def make(source: Path, **values: Any) -> Settings:
        defaults = {"label_column": "y", "workspace": str(tmp_path / "workspace"), "num_shards": 2}
        return settings_from({"example_kind": "table", "source_uri": str(source), **defaults, **values})

    return make


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def zipped(content: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("a.csv",):
            archive.writestr(name, content)
    return file.getvalue()


def csv_rows(first: int, count: int = 50, delimiter: str = ",") -> bytes:
    lines = [f"{number}{delimiter}{'yn'[number % 2]}" for number in range(first, first + count)]
    return "\n".join([f"x{delimiter}y", *lines, ""]).encode()


def rows_of_table(place: Path) -> list[dict[str, Any]]:
    return [row for raw in read_table(table_files(place), place=place) for row in raw.batch.to_pylist()]


def values_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return sorted((str(row["x"]), row["y"]) for row in rows)


COMPRESSED: Mapping[str, Callable[[bytes], bytes]] = {
    "a.csv": bytes,
    "b.csv.gz": gzip.compress,
    "c.csv.bz2": bz2.compress,
    "d.csv.zst": lambda content: pa.compress(content, "zstd", asbytes=True),
    "e.csv.xz": lzma.compress,
    "f.csv.zip": zipped,
    "g.csv.1": bytes,
    "h.csv.2.gz": gzip.compress,
    "i.txt": lambda content: content.replace(b",", b"\t"),
    "j.txt.gz": gzip.compress,
    # The first bytes decide. A bucket may compress a file under any name, or a program may decompress it.
    "k.csv": gzip.compress,
    "l.csv.gz": bytes,
    "m.tsv": lambda content: lzma.compress(content.replace(b",", b"\t")),
    "n.csv": lambda content: zipped(content, "__MACOSX/._n.csv", "n.csv"),
}


@pytest.mark.core
def test_all_files_of_a_folder_are_read_whatever_compressed_them(tmp_path: Path):
    expected = []
    for number, (name, compress) in enumerate(COMPRESSED.items()):
        write(tmp_path / "t" / name, compress(csv_rows(100 * number)))
        expected += [(str(x), "yn"[x % 2]) for x in range(100 * number, 100 * number + 50)]
    assert values_of(rows_of_table(tmp_path / "t")) == sorted(expected)


def test_files_that_are_not_read_are_counted_and_named(
    settings: Callable[..., Settings], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    write(tmp_path / "t/a.csv", csv_rows(0, 300))
    for name in ("README.md", "model.pkl", "_SUCCESS", ".a.csv.crc"):
        write(tmp_path / "t" / name, "a table of customers")
    write(tmp_path / "t/notes.txt", "These rows are real.\nAll of them.\n")
    write(tmp_path / "t/#recycle/old.csv", csv_rows(0))
    result = build(settings(tmp_path / "t"))
    dataset: Dataset = load(Path(result["dataset"]))
    assert dataset.source["skipped"] == {
        "hidden": 3,
        "not a table by its name": 2,
        "not a table: its first two lines are not rows of a table with several columns": 1,
    }
    lines = Path(result["dataset"], "skipped.jsonl").read_text().splitlines()
    assert {json.loads(line)["path"] for line in lines} == {
        "#recycle/old.csv",
        ".a.csv.crc",
        "README.md",
        "_SUCCESS",
        "model.pkl",
        "notes.txt",
    }
    assert "files skipped: 2 not a table by its name" in caplog.text
    assert "2 files in the folder of the table were skipped because of the suffix (.md 1, .pkl 1)" in caplog.text
    card = Path(result["dataset"], "card.html").read_text()
    assert "300 rows were read. Files that were not read: 3 (hidden), 2 (not a table by its name)" in card


UNREAD = "is a table in a format that Tenfold does not read: save it"
UNREAD_COMPRESSION = "is a table that is compressed in a way that Tenfold does not read: decompress it"
NO_LINES = "is no file of JSON lines: save it with one row in each line"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, UNREAD) for name in ("b.xlsx", "B.XLS", "deep/b.ods", "b.orc", "b.avro", "b.sas7bdat")),
        *((f"b.csv{suffix}", UNREAD_COMPRESSION) for suffix in (".lz4", ".br", ".7z", ".3.LZ4", ".tar.gz")),
        *((name, UNREAD_COMPRESSION) for name in ("b.jsonl.lz4", "b.parquet.gz", "b.arrow.gz", "b.feather.zip")),
        ("b.json.gz", NO_LINES),
    ],
)
def test_a_table_of_a_format_that_is_not_read_is_refused(name: str, message: str, tmp_path: Path):
    write(tmp_path / "a.csv", csv_rows(0))
    file = write(tmp_path / name, b"PK\3\4")
    for place in (tmp_path, file):
        with pytest.raises(SourceError, match=f"{name} {message}"):
            find_files(place)


@pytest.mark.parametrize(
    ("content", "has_rows"),
    [
        ('[{"x": 1}]', True),
        (' [\n  {"x": 1}]', True),
        ('{"x": 1}\n{"x": 2}\n', True),
        ('{"x": 1}\n', False),
        ('{\n  "features": {"x": "int"}\n}\n', False),
        ("", False),
    ],
)
def test_json_with_rows_is_refused_and_other_json_is_skipped(content: str, has_rows: bool, tmp_path: Path):
    file = write(tmp_path / "a.csv", csv_rows(0))
    other = write(tmp_path / "info.json", content)
    if has_rows:
        with pytest.raises(SourceError, match=f"info.json {NO_LINES}"):
            find_files(tmp_path)
    else:
        files, skipped = find_files(tmp_path)
        assert (files, [each.key for each in skipped]) == ([file], ["info.json"])
    with pytest.raises(SourceError, match=f"info.json {NO_LINES}"):
        find_files(other)


def test_the_lock_file_of_excel_is_no_table(tmp_path: Path):
    file = write(tmp_path / "a.csv", csv_rows(0))
    write(tmp_path / "~$b.xlsx", "")
    assert table_files(tmp_path) == [file]


@pytest.mark.parametrize(
    ("text", "is_table"),
    [
        ("a,b\n1,2\n", True),
        ("a\tb\n1\t2\n", True),
        ("a,b\r\n1,2", True),
        ('"a, b",c\n"1, 2",3\n', True),
        ('\ufeff"a, b",c\n"1, 2",3\n', True),
        ("a;b\n1,5;2\n", True),
        ("a|b\n1|2\n", True),
        (",".join(f"column {number}" for number in range(9000)) + "\n" + "1," * 8999 + "2\n", True),
        ("é,b\n…,2\n", True),
        ("a,b\n", False),
        ("a\n1\n", False),
        ("Dear reader, hello\nthis is prose\n", False),
        ("", False),
        ("x" * 200_000, False),
    ],
)
def test_the_first_lines_of_a_text_file_decide(text: str, is_table: bool, tmp_path: Path):
    file = write(tmp_path / "t/a.txt", text)
    other = write(tmp_path / "t/b.txt", "a,b\n1,2\n")
    assert table_files(tmp_path / "t") == ([file, other] if is_table else [other])
    if not is_table:
        with pytest.raises(SourceError, match=r"a.txt is not a table: its first two lines are not rows"):
            table_files(file)


@pytest.mark.parametrize("delimiter", "\t,;|")
def test_a_text_file_is_read_with_the_delimiter_of_its_first_lines(delimiter: str, tmp_path: Path):
    """A file whose rows had semicolons was accepted, and then read with commas."""
    place = write(tmp_path / "a.txt", f"a{delimiter}b, c\n1{delimiter}2, 3\n" if delimiter != "," else "a,b\n1,2\n")
    assert rows_of_table(place) == [{"a": "1", "b": "2"} if delimiter == "," else {"a": "1", "b, c": "2, 3"}]


@pytest.mark.parametrize("beside", ["a.parquet", "a.csv", "a.tsv", "a.tfrecord"])
def test_prose_with_commas_beside_a_table_is_skipped(beside: str, tmp_path: Path):
    """It used to stop the build."""
    write(tmp_path / "README.txt", "Hello, world\nThis is, text\n")
    if beside == "a.parquet":
        parquet.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / beside)
    elif beside == "a.tfrecord":
        write_file(tmp_path / beside, [example({"x": 1})])
    else:
        write(tmp_path / beside, csv_rows(0, delimiter="\t" if beside == "a.tsv" else ","))
    files, skipped = find_files(tmp_path)
    assert (files, [each.key for each in skipped]) == ([tmp_path / beside], ["README.txt"])
    assert re.match("not a table: (its columns are not those of a|the table has files of another)", skipped[0].reason)


@pytest.mark.parametrize("header", ["y;x", "\ufeffx,y", '"x","y"'])
def test_a_text_file_with_the_columns_of_the_others_is_read(header: str, tmp_path: Path):
    write(tmp_path / "a.csv", csv_rows(0))
    write(tmp_path / "b.txt", f"{header}\n1{';' if ';' in header else ','}n\n")
    assert len(table_files(tmp_path)) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv.zip", zipped(b"x,y\n1,2\n", "a.csv", "b.csv"), "the zip file has 2 files, and must have one"),
        ("a.csv", b"PK\3\4 is damaged", "a.csv cannot be read as a table"),
        ("a.csv.xz", lzma.compress(csv_rows(0, 5000))[:-50], "a.csv.xz cannot be read as a table"),
        ("a.csv.xz", b"\xfd7zXZ\0 is damaged", "a.csv.xz cannot be read as a table"),
        ("a.csv.gz", b"\x1f\x8b is damaged", "a.csv.gz cannot be read as a table"),
        ("a.parquet", gzip.compress(b"PAR1", mtime=0), "a.parquet cannot .* the file is compressed by gzip: decomp"),
        ("a.feather", gzip.compress(b"ARROW1", mtime=0), "the file is compressed by gzip: decompress it"),
        ("a.arrow", b"", "a.arrow cannot be read as a table"),
        ("a.feather", b"FEA1 is old", "a.feather cannot be read as a table: its format is version 1 of Feather: write"),
    ],
)
def test_a_damaged_or_compressed_file_is_refused(name: str, content: bytes, message: str, tmp_path: Path):
    write(tmp_path / name, content)
    with pytest.raises(SourceError, match=message):
        rows_of_table(tmp_path / name)


def test_objects_that_a_bucket_compressed_are_read(gcs: FakeGcs):
    gcs.put("bucket", "t/a.csv", gzip.compress(csv_rows(0)))
    place = place_of("gs://bucket/t")
    [raw] = read_table(table_files(place))
    assert raw.batch.num_rows == 50


# Parquet and Arrow.


def test_the_checksums_of_parquet_pages_are_verified(settings: Callable[..., Settings], tmp_path: Path):
    """Without it, this file gave 4,000 rows, some of them with other values."""
    path = tmp_path / "p.parquet"
    table = pa.table({"a": list(range(4000)), "y": [number % 2 for number in range(4000)]})
    parquet.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[9000] ^= 1
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"p.parquet cannot be read as a table: .*CRC"):
        build(settings(path))


def test_a_type_that_is_not_supported_is_refused_before_a_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "m.parquet"
    texts = pa.array([[("key", "large")]] * 100, pa.map_(pa.string(), pa.string()))
    parquet.write_table(pa.table({"y": range(100), "m": texts}), path)
    monkeypatch.delattr(parquet.ParquetFile, "iter_batches")
    with pytest.raises(SourceError, match=r"the column 'm' of .* holds map<string, string.*>, which is not supported"):
        list(read_table([path], selection=Selection(columns=("m",))))


def arrow_file(path: Path, table: pa.Table, is_stream: bool) -> None:
    with (ipc.new_stream if is_stream else ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=30_000)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", ["a.arrow", "a.feather", "a.ipc"])
def test_arrow_files_are_read_in_batches(name: str, is_stream: bool, tmp_path: Path):
    table = pa.table({"x": pa.array(range(50_000), pa.int32()), "y": ["yes", "no"] * 25_000})
    arrow_file(tmp_path / name, table, is_stream)
    batches = [raw.batch for raw in read_table(table_files(tmp_path))]
    assert pa.Table.from_batches(batches).equals(table)
    assert max(batch.num_rows for batch in batches) <= 20_000


def test_a_batch_of_an_arrow_file_is_not_loaded(tmp_path: Path):
    """A program may write a whole table as one batch."""
    table = pa.table({"x": pa.array(range(2_000_000), pa.int64())})
    with ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    del table
    before = pa.total_allocated_bytes()
    for raw in read_table(table_files(tmp_path)):
        assert raw.batch.num_rows == 20_000
        assert pa.total_allocated_bytes() - before < 1_000_000


def test_all_formats_give_the_same_dataset(settings: Callable[..., Settings], tmp_path: Path):
    # The columns of JSON lines are ordered by name.
    frame = pd.DataFrame({"x": range(200), "y": ["yes", "no"] * 100, "z": [number / 7 for number in range(200)]})
    frame["z"] = frame["z"].astype("float32").astype("float64")
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    frame.to_parquet(tmp_path / "b.pq", index=False)
    frame.to_feather(tmp_path / "c.feather")
    frame.to_json(tmp_path / "d.jsonl", orient="records", lines=True, double_precision=15)
    frame.to_csv(tmp_path / "e.csv", index=False)
    places = [path for path in sorted(tmp_path.iterdir()) if path.is_file()]
    snapshots = [load_snapshot(list_all(settings(place, dataset_name="all"))) for place in places]
    assert len(snapshots) == 5
    assert len({snapshot.fingerprint for snapshot in snapshots}) == 1
    assert all(snapshot.table == snapshots[0].table for snapshot in snapshots)


# Folders that are columns.


def partitioned(folder: Path, suffix: str) -> Path:
    """Write rows of two countries, and of none, into folders as Hive names them."""
    for number, country in enumerate(["de", "a%20b", "__HIVE_DEFAULT_PARTITION__"]):
        path = folder / f"country={country}" / f"year=202{number}" / f"part-0{suffix}"
        path.parent.mkdir(parents=True)
        values = {"x": list(range(100 * number, 100 * number + 90)), "y": ["yes", "no", "no"] * 30}
        if suffix == ".parquet":
            parquet.write_table(pa.table(values), path)
        elif suffix == ".csv":
            pd.DataFrame(values).to_csv(path, index=False)
        elif suffix == ".jsonl":
            pd.DataFrame(values).to_json(path, orient="records", lines=True)
        else:
            write_file(path, [example({"x": x, "y": y}) for x, y in zip(values["x"], values["y"], strict=True)])
    return folder


@pytest.mark.core
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tfrecord", ".jsonl"])
def test_folders_of_hive_become_columns(suffix: str, settings: Callable[..., Settings], tmp_path: Path):
    folder = partitioned(tmp_path / "t", suffix)
    rows = rows_of_table(folder)
    assert {(row["country"], row["year"]) for row in rows} == {("de", "2020"), ("a b", "2021"), (None, "2022")}
    assert {int(row["x"]) // 100 for row in rows if row["country"] == "a b"} == {1}
    table = load_snapshot(list_all(settings(folder))).table
    columns = {column["name"]: column for column in table["columns"]}
    assert columns["country"]["type"] == "string"
    assert tuple(columns["country"]["values"]) == ("a b", "de")
    assert columns["country"]["missing"] == 90
    # The type is inferred as for CSV.
    assert (columns["year"]["type"], columns["year"]["low"], columns["year"]["high"]) == ("int", 2020, 2022)


def test_a_folder_can_be_the_label(settings: Callable[..., Settings], tmp_path: Path):
    for label in ("spam", "fine"):
        write(tmp_path / f"t/class={label}/a.csv", csv_rows(0))
    snapshot = load_snapshot(list_all(settings(tmp_path / "t", label_column="class")))
    assert snapshot.classes == {"fine": 50, "spam": 50}


def test_ranges_have_the_columns_of_folders_and_name_skipped_files(
    settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number, country in enumerate(("de", "fr")):
        rows = "".join(f"{x},{'text ' * 40},{'yn'[x % 2]}\n" for x in range(number * 9000, number * 9000 + 9000))
        write(tmp_path / f"t/country={country}/a.csv", f"x,text,y\n{rows}")
    write(tmp_path / "t/README.md", "a table")
    made = settings(tmp_path / "t")
    alone = load_snapshot(list_all(made))
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    assert len(divide(made)) > 2
    joined = load_snapshot(extract(made))
    assert joined.fingerprint == alone.fingerprint
    assert joined.skipped == alone.skipped == {"not a table by its name": 1}


def test_one_folder_is_a_column_too(tmp_path: Path):
    write(tmp_path / "t/country=de/a.csv", csv_rows(0, 1))
    assert rows_of_table(tmp_path / "t") == [{"x": "0", "y": "y", "country": "de"}]
    # The name of the table itself is no column.
    assert rows_of_table(tmp_path / "t/country=de") == [{"x": "0", "y": "y"}]
    assert rows_of_table(tmp_path / "t/country=de/a.csv") == [{"x": "0", "y": "y"}]


def test_a_column_of_the_files_comes_before_one_of_the_folders(tmp_path: Path):
    write(tmp_path / "country=de/a.csv", "x,country\n1,DE\n")
    assert rows_of_table(tmp_path) == [{"x": "1", "country": "DE"}]


@pytest.mark.parametrize("name", ["a", "z"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".tfrecord"])
def test_files_must_have_the_same_columns_of_folders(suffix: str, name: str, tmp_path: Path):
    """In JSON lines and TFRecord, the column vanished, or a KeyError ended the run."""
    for path in (tmp_path / f"{name}{suffix}", tmp_path / f"country=de/b{suffix}"):
        path.parent.mkdir(exist_ok=True)
        if suffix == ".tfrecord":
            write_file(path, [example({"x": 1})])
        else:
            write(path, "x,y\n1,2\n" if suffix == ".csv" else '{"x": 1}\n')
    message = f"country=de/b{suffix} has a column 'country', which its folder states, but {name}{suffix} has none"
    with pytest.raises(SourceError, match=message):
        rows_of_table(tmp_path)


# Splits that the names of files state.


@pytest.mark.parametrize(
    ("keys", "splits"),
    [
        (["train.csv", "test.csv"], ["train", "test"]),
        (["Split-train/0.gz", "Split-eval/0.gz"], ["train", "validation"]),
        (["data/train/0.csv", "data/train/1.csv", "data/dev/0.csv"], ["train", "train", "validation"]),
        (["mnist_train.csv.gz", "mnist_test.csv.gz"], ["train", "test"]),
        (["train-00000-of-00001.parquet", "validation-00000-of-00001.parquet"], ["train", "validation"]),
        (["a.csv", "test.csv"], ["", ""]),
        (["train-0.csv", "train-1.csv"], ["", ""]),
        (["val.csv", "test.csv"], ["", ""]),
        (["trains.csv", "testimony.csv"], ["", ""]),
    ],
)
def test_names_state_splits_if_all_do(keys: list[str], splits: list[str]):
    assert [facts.split for facts in facts_of_files(keys)] == splits


@pytest.mark.parametrize("log", ["_delta_log/00000000000000000000.json", ".hoodie/hoodie.properties"])
def test_a_folder_with_the_log_of_a_table_is_refused(log: str, tmp_path: Path):
    """Its other files may hold deleted rows, and rows twice."""
    write(tmp_path / "t/part-0.parquet", b"PAR1")
    write(tmp_path / "t" / log, b"{}")
    with pytest.raises(SourceError, match=r"t is a table of (Delta Lake|Apache Hudi): its folder also has files with"):
        find_files(tmp_path / "t")


@pytest.mark.parametrize(
    ("keys", "column", "note"),
    [
        (["train.csv", "test.csv"], "", "the names of the files state their splits: 1 test, 1 train"),
        (["train.csv", "test.csv"], "s", r"the names of files state splits \(1 test, 1 train\), but split_column"),
        (
            ["a.csv", "test.csv"],
            "",
            "the name of test.csv states a split that is not used, because a.csv states none: to keep the splits, name",
        ),
        (
            ["a.csv", "train.csv", "val.csv"],
            "",
            "the names of train.csv, val.csv state splits that are not used, because a.csv states none",
        ),
        (
            ["val.csv", "test.csv"],
            "",
            "the names of val.csv, test.csv state splits that are not used, because none is for training",
        ),
        (["train-0.csv", "train-1.csv"], "", ""),
        (["a.csv", "b.csv"], "", ""),
    ],
)
def test_a_line_says_whether_the_splits_of_names_are_used(keys: list[str], column: str, note: str):
    found = note_on_splits(keys, column)
    assert re.match(note, found.text) if found and note else not found and not note
    assert not found or found.are_used == ("state their splits" in note)


def test_splits_that_are_not_used_are_a_warning(
    settings: Callable[..., Settings], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for name in ("a.csv", "test.csv"):
        write(tmp_path / "t" / name, csv_rows(0))
    list_all(settings(tmp_path / "t"))
    [warning] = [each for each in caplog.records if "test.csv states a split" in each.getMessage()]
    assert warning.levelname == "WARNING"


@pytest.mark.core
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".tfrecord"])
@pytest.mark.parametrize("column", ["", "split"])
def test_a_folder_of_a_split_is_no_feature(column: str, suffix: str, settings: Callable[..., Settings], tmp_path: Path):
    """The column was constant in training and unknown in validation, and `predict` asked for it."""
    for number, split in enumerate(("train", "validation")):
        path = tmp_path / f"t/split={split}/country=de/a{suffix}"
        path.parent.mkdir(parents=True)
        rows = [{"x": x, "y": "yn"[x % 2]} for x in range(number * 100, number * 100 + 50)]
        if suffix == ".tfrecord":
            write_file(path, [example(row) for row in rows])
        elif suffix == ".jsonl":
            write(path, "".join(json.dumps(row) + "\n" for row in rows))
        else:
            write(path, csv_rows(number * 100))
    snapshot = load_snapshot(list_all(settings(tmp_path / "t", split_column=column)))
    roles = {each["name"]: each["role"] for each in snapshot.table["columns"]}
    expected = {"x": "feature", "y": "label", "country": "feature"}
    assert roles == (expected | {"split": "split"} if column else expected)
    numbered = [part.row(number).example.split for part in snapshot.parts for number in range(part.listed)]
    assert numbered == ["train"] * 50 + ["validation"] * 50


@pytest.mark.core
@pytest.mark.parametrize(
    ("train", "test"),
    [("Split-train/a.csv", "Split-test/a.csv"), ("train.jsonl", "test.jsonl")],
)
def test_the_splits_of_files_are_kept(
    train: str, test: str, settings: Callable[..., Settings], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)

    def rows(first: int, count: int) -> str:
        if train.endswith(".csv"):
            return csv_rows(first, count).decode()
        return "".join(f'{{"x": {x}, "y": "{"yn"[x % 2]}"}}\n' for x in range(first, first + count))

    write(tmp_path / "t" / train, rows(0, 200))
    write(tmp_path / "t" / test, rows(1000, 30))
    dataset = load(Path(build(settings(tmp_path / "t"))["dataset"]))
    assert dataset.splits["test"].examples == 30
    assert dataset.splits["train"].examples + dataset.splits["validation"].examples == 200
    assert "the names of the files state their splits: 1 test, 1 train" in caplog.text
    # The split is no column: equal rows in training and test are found as a leak.
    assert [column["name"] for column in dataset.table["columns"]] == ["x", "y"]


def test_a_leak_between_the_files_of_two_splits_is_found(settings: Callable[..., Settings], tmp_path: Path):
    write(tmp_path / "t/train.csv", csv_rows(0, 200))
    write(tmp_path / "t/test.csv", csv_rows(190, 30))
    # Few rows of train.csv are chosen for validation, and none that test.csv has.
    made = settings(tmp_path / "t", on_leak="continue", validation_fraction=0.01)
    dataset = load(Path(build(made)["dataset"]))
    assert dataset.quality["leaks"]["images"] == 10


def test_a_split_column_comes_before_the_names_of_files(settings: Callable[..., Settings], tmp_path: Path):
    text = "x,y,s\n" + "".join(f"{x},{'yn'[x % 2]},train\n" for x in range(100))
    write(tmp_path / "t/train.csv", text)
    write(tmp_path / "t/test.csv", text.replace("train", "validation"))
    snapshot = load_snapshot(list_all(settings(tmp_path / "t", split_column="s")))
    assert {row.split for row in rows_of(snapshot.parts)} == {"train", "validation"}


def test_a_file_without_the_label_is_named_beside_one_with_it(settings: Callable[..., Settings], tmp_path: Path):
    write(tmp_path / "kag/train.csv", "a,b,label\n1,2,x\n3,4,y\n")
    write(tmp_path / "kag/test.csv", "a,b\n5,6\n")
    message = (
        r"test.csv has no column 'label', but .*train.csv has one: all files of a table must have the same columns. "
        "If test.csv has rows to predict, move it out of the folder"
    )
    with pytest.raises(SourceError, match=message):
        list_all(settings(tmp_path / "kag", label_column="label"))
