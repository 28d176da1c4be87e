import bz2
import csv
import errno
import gzip
import io
import random
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.errors import FileSystemError, SourceError
from pipeline.storage import place_of
from pipeline.tables import source
from pipeline.tables.dialect import Dialect
from pipeline.tables.files import table_files
from pipeline.tables.source import RawBatch, read_table
from standins.fake_gcs import FakeGcs

Rows = list[dict[str, Any]]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


def rows_of(*places: Path, **options: Any) -> Rows:
    return [row for raw in read_table(places, **options) for row in raw.batch.to_pylist()]


def rejected_of(*places: Path) -> dict[str, str]:
    rows = [row for raw in read_table(places) for row in raw.rejected]
    assert len({row.key for row in rows}) == len(rows)
    return {row.key: row.reason for row in rows}


# Which files.


def test_a_folder_has_the_table_files_below_it_in_the_order_of_their_paths(tmp_path: Path):
    names = ["b.csv", "a/2.CSV", "a/10.tsv", "c.csv.gz", "d.tsv.bz2", "e.csv.zst"]
    others = [
        "_SUCCESS",
        ".a.csv.crc",
        "b.csv.crc",
        ".hidden.csv",
        "_temporary/0.csv",
        "a/.git/x.csv",
        "a/_x.csv",
        "README.md",
    ]
    for name in names + others:
        write(tmp_path, name, "x\n1\n")
    assert table_files(tmp_path) == [tmp_path / name for name in sorted(names)]


def test_a_table_can_be_one_file(tmp_path: Path):
    place = write(tmp_path, "_table.csv", "x\n1\n")
    assert table_files(place) == [place]


@pytest.mark.parametrize(
    ("files", "place", "message"),
    [
        ([], ".", "has no table file .the folder is empty.: add files"),
        (["_SUCCESS"], ".", "has no table file .the folder is empty."),
        (["data.json"], ".", "data.json is not one.: add files whose names end in .csv"),
        (["data.json"], "data.json", "data.json is no file of JSON lines: save it with one row"),
        (["data.bin"], "data.bin", "data.bin is not a table: use a file whose name ends in .csv"),
        (["data.parquet.gz"], "data.parquet.gz", "is compressed in a way that Tenfold does not read: decompress it"),
        (["a.csv", "b.parquet"], ".", "has Parquet files .b.parquet. and CSV files .a.csv.: keep one"),
        (["a.csv"], "b.csv", "b.csv does not exist: name"),
    ],
)
def test_a_place_without_a_table_is_refused(files: Sequence[str], place: str, message: str, tmp_path: Path):
    for name in files:
        write(tmp_path, name, "x\n1\n")
    with pytest.raises(SourceError, match=message):
        table_files(tmp_path / place)


def test_a_dangling_link_is_no_missing_part(tmp_path: Path):
    write(tmp_path, "1.csv", "x\n1\n")
    (tmp_path / "2.csv").symlink_to(tmp_path / "nowhere.csv")
    with pytest.raises(SourceError, match=r"2.csv cannot be read \(dangling link\): replace the file"):
        table_files(tmp_path)


@pytest.mark.parametrize(("link", "place"), [("2.csv", ""), ("2.csv", "2.csv"), ("parts", "")])
def test_a_link_to_a_place_that_is_not_allowed_is_refused(
    link: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    secret = write(tmp_path, "secret/a.csv", "x\n1\n")
    write(tmp_path, "table/1.csv", "x\n1\n")
    (tmp_path / "table" / link).symlink_to(secret if ".csv" in link else secret.parent)
    monkeypatch.setenv("TENFOLD_ALLOWED_SOURCES", str(tmp_path / "table"))
    with pytest.raises(SourceError, match=link):
        table_files(tmp_path / "table" / place)


def test_a_disk_that_fails_is_not_the_fault_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Failing(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    table = write(tmp_path, "a.csv", "x\n1\n")
    monkeypatch.setattr(Path, "open", lambda *_: Failing())
    with pytest.raises(FileSystemError, match=r"a.csv could not be read \(Input/output error\): run again"):
        rows_of(table)


def test_a_table_in_a_bucket_is_read_like_one_on_a_disk(tmp_path: Path, gcs: FakeGcs):
    write(tmp_path, "t/a/1.csv", "x,y\n1,2\n")
    write(tmp_path, "t/b.csv.gz", gzip.compress(b"y,x\n3,\n4\n", mtime=0))
    write(tmp_path, "t/_SUCCESS", "")
    gcs.put_folder("bucket", "t/", tmp_path / "t")
    files = table_files(place_of("gs://bucket/t"))
    assert list(map(str, files)) == ["gs://bucket/t/a/1.csv", "gs://bucket/t/b.csv.gz"]
    downloads = gcs.requests["download"]
    assert list(read_table(files)) == list(read_table(table_files(tmp_path / "t")))
    assert gcs.requests["download"] == downloads + 2
    assert table_files(files[0]) == files[:1]
    with pytest.raises(SourceError, match="gs://bucket/u does not exist"):
        table_files(place_of("gs://bucket/u"))


def test_a_parquet_table_in_a_bucket_is_read(tmp_path: Path, gcs: FakeGcs):
    parquet.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    gcs.put_folder("bucket", "t/", tmp_path)
    (raw,) = read_table(table_files(place_of("gs://bucket/t")))
    assert raw.batch.to_pydict() == {"x": [1, 2]}


# Their rows.


def test_every_field_stays_the_text_that_it_is(tmp_path: Path):
    place = write(tmp_path, "a.csv", 'a,b,c\n007,NA,\n1e5," x ",""\nnull,nan,"a ""b"""\n')
    assert rows_of(place) == [
        {"a": "007", "b": "NA", "c": None},
        {"a": "1e5", "b": " x ", "c": ""},
        {"a": "null", "b": "nan", "c": 'a "b"'},
    ]


@pytest.mark.parametrize("terminator", ["\n", "\r\n"])
@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
@pytest.mark.parametrize("block", [400, 1 << 20])
def test_random_fields_are_those_of_the_csv_module(
    suffix: str, delimiter: str, terminator: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # With small blocks, rows and fields with line breaks are at every border of two blocks.
    monkeypatch.setattr(source, "_BLOCK", block)
    monkeypatch.setattr(source, "MAX_BATCH_ROWS", 7)
    chosen = random.Random(delimiter)
    letters = ["a", "ü", "😀", ",", "\t", '"', "\n", " ", "7", "-"]
    rows = [["".join(chosen.choices(letters, k=chosen.randrange(1, 9))) for _ in range(5)] for _ in range(200)]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=terminator).writerows([list("abcde"), *rows])
    place = write(tmp_path, f"a{suffix}", text.getvalue())
    with place.open(newline="") as file:
        expected = list(csv.DictReader(file, delimiter=delimiter))
    assert rows_of(place) == expected
    assert len(expected) == 200
    assert all(raw.batch.num_rows <= 7 for raw in read_table([place]))


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.csv.gz", gzip.compress),
        ("a.csv.gz", lambda content: gzip.compress(content[:5]) + gzip.compress(content[5:])),
        ("a.tsv.bz2", bz2.compress),
        ("a.csv.zst", lambda content: pa.compress(content, "zstd", asbytes=True)),
    ],
)
@pytest.mark.parametrize("cell", ["2", '"2"'])
def test_compressed_files_are_read(name: str, compress: Callable[[bytes], bytes], cell: str, tmp_path: Path):
    text = f"x,y\n1,{cell}\n".replace(",", "\t" if ".tsv" in name else ",")
    assert rows_of(write(tmp_path, name, compress(text.encode()))) == [{"x": "1", "y": "2"}]


def test_batches_of_csv_have_a_limited_number_of_rows(tmp_path: Path):
    place = write(tmp_path, "a.csv", "x\n" + "".join(f"{number}\n" for number in range(50_000)))
    batches = list(read_table([place]))
    assert max(raw.batch.num_rows for raw in batches) == source.MAX_BATCH_ROWS
    assert [row["x"] for raw in batches for row in raw.batch.to_pylist()] == list(map(str, range(50_000)))


def test_batches_of_parquet_have_a_limited_number_of_rows_and_their_own_types(tmp_path: Path):
    table = pa.table({"x": pa.array(range(50_000), pa.int32()), "y": ["007"] * 50_000})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=30_000)
    batches = [raw.batch for raw in read_table([tmp_path / "a.parquet"])]
    assert pa.Table.from_batches(batches).equals(table)
    assert max(batch.num_rows for batch in batches) <= source.MAX_BATCH_ROWS


def test_files_may_differ_in_the_order_of_columns(tmp_path: Path):
    first, second = write(tmp_path, "1.csv", "x,y\n1,2\n"), write(tmp_path, "2.csv", "y,x\n3,4\n")
    assert rows_of(first, second) == [{"x": "1", "y": "2"}, {"x": "4", "y": "3"}]
    assert [raw.batch.schema.names for raw in read_table([first, second])] == [["x", "y"], ["x", "y"]]


def test_parquet_files_may_differ_in_the_order_of_columns(tmp_path: Path):
    parquet.write_table(pa.table({"x": [1], "y": ["a"]}), tmp_path / "1.parquet")
    parquet.write_table(pa.table({"y": ["b"], "x": [2]}), tmp_path / "2.parquet")
    expected = [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    assert rows_of(tmp_path / "1.parquet", tmp_path / "2.parquet") == expected


def test_ten_thousand_columns_are_read(tmp_path: Path):
    names = [f"column {number}" for number in range(10_000)]
    row = list(map(str, range(10_000)))
    place = write(tmp_path, "a.csv", "\n".join([",".join(names), *[",".join(row)] * 3]))
    assert rows_of(place) == [dict(zip(names, row, strict=True))] * 3


def test_many_rows_of_one_file_are_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "_BLOCK", 4 << 20)
    place = write(tmp_path, "a.csv", "x\n" + f"{'y' * 1000}\n" * 60_000)
    before, most = pa.total_allocated_bytes(), 0
    for _ in read_table([place]):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 30e6  # of 60 MB


def test_a_large_row_group_is_not_held_in_memory(tmp_path: Path):
    table = pa.table({name: np.random.default_rng(0).normal(size=1_500_000) for name in "abcd"})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1_500_000, use_dictionary=False)
    del table
    before, most = pa.total_allocated_bytes(), 0
    tracemalloc.start()  # The bytes that Arrow reads from a file of Python are objects of Python.
    for _ in read_table([tmp_path / "a.parquet"]):
        most = max(most, pa.total_allocated_bytes() - before)
    _, most_of_python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most + most_of_python < 20e6  # of 48 MB


# Dirty tables.


def test_a_row_with_other_fields_than_the_header_is_rejected_alone(tmp_path: Path):
    text = "x,y\n1,2\n3\n4,5,6\n7,8\n" + "9" * 200 + "\n"
    first, second = write(tmp_path, "t/1.csv", text), write(tmp_path, "t/u/2.csv", "x,y\n1,2\n3\n")
    assert [row["x"] for row in rows_of(first, second)] == ["1", "7", "1"]
    reasons = rejected_of(first, second)
    assert reasons == {
        "1.csv:3": "the row has 1 fields, but the header has 2 ('3')",
        "1.csv:4": "the row has 3 fields, but the header has 2 ('4,5,6')",
        "1.csv:6": f"the row has 1 fields, but the header has 2 ('{'9' * 80}...')",
        "u/2.csv:3": "the row has 1 fields, but the header has 2 ('3')",
    }


def test_rejected_rows_are_numbered_in_all_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "_BLOCK", 100)
    rows = [f"{number}" if number % 10 == 0 else f"{number},y" for number in range(2, 1000)]
    place = write(tmp_path, "a.csv", "\n".join(["x,y", *rows]))
    assert list(rejected_of(place)) == [f"a.csv:{number}" for number in range(10, 1000, 10)]
    assert len(rows_of(place)) == 899


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("header", [b"x,y", b'"x","y"'])
def test_a_byte_order_mark_is_dropped(mark: bytes, header: bytes, tmp_path: Path):
    assert rows_of(write(tmp_path, "a.csv", mark + header + b"\n1,2\n")) == [{"x": "1", "y": "2"}]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "UTF-8", "utf_8_sig"])
@pytest.mark.parametrize("cell", ["café", '"ca\nfé"'])
def test_other_encodings_are_read_if_they_are_named(encoding: str, cell: str, tmp_path: Path):
    place = write(tmp_path, "a.csv", f"é,y\n{cell},1\n".encode(encoding))
    assert rows_of(place, dialect=Dialect(encoding)) == [{"é": cell.strip('"'), "y": "1"}]


@pytest.mark.parametrize(
    "content",
    [
        b"x,y\ncaf\xe9,1\n",
        b"caf\xe9,y\n1,2\n",
        b'x,y\n"caf\xe9",1\n',
        b"x,y\n" + b"1,2\n" * 300_000 + b"3,\xff\n",
        "x,y\n1,2\n".encode("utf-16"),
    ],
)
def test_bytes_of_another_encoding_name_the_setting(content: bytes, tmp_path: Path):
    with pytest.raises(SourceError, match=r"a.csv has bytes that are not in its encoding .*list_encoding"):
        rows_of(write(tmp_path, "a.csv", content))


def test_bytes_that_a_named_encoding_lacks_are_refused(tmp_path: Path):
    with pytest.raises(SourceError, match=r"a.csv has bytes that are not in its encoding .*list_encoding"):
        rows_of(write(tmp_path, "a.csv", b"x,y\n\x81,1\n"), dialect=Dialect("cp1252"))


def test_a_parquet_file_with_bytes_for_text_is_refused(tmp_path: Path):
    text = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    parquet.write_table(pa.table({"good": ["a"], "bad": text}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"a.parquet has invalid values in the column 'bad' .*UTF"):
        rows_of(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "a.csv is empty: write a header"),
        ("a.csv", b"\xef\xbb\xbf", "a.csv is empty"),
        ("a.csv", b"\n\n", "a.csv is empty"),
        ("a.csv.gz", b"", "a.csv.gz is empty"),
        ("a.csv.gz", gzip.compress(b"", mtime=0), "a.csv.gz is empty"),
        ("a.csv", b"x,y\n", "a.csv has no valid row .there is only the header.: add rows"),
        ("a.csv", b"x,y", "a.csv has no valid row"),
        ("a.csv", b"x,y\n1\n2\n", "a.csv has no valid row .the first is a.csv:2: the row has 1 fields"),
        ("a.csv", b"x,y,x\n1,2,3\n", "a.csv has two columns 'x': rename one"),
        ("a.csv", b",y\n1,2\n", "a.csv has no name for column 1: name it"),
        ("a.csv", b'x," "\n1,2\n', "a.csv has no name for column 2"),
        ("a.csv", b'x,y\n1,2\n3,"4\n5,6\n', "a.csv cannot be read as a table: line 3 has a quote that does not belong"),
        ("a.csv", b'x,y\n1,2\n3,4"\n5,6\n', "line 3 has a quote"),
        ("a.csv", b'x,"y\n1,2\n', "line 1 has a quote"),
        ("a.csv.gz", gzip.compress(b'x,y\n1,"2\n', mtime=0), "a.csv.gz cannot be read as a table: line 2 has a quote"),
        ("a.csv.gz", gzip.compress(b"x,y\n" + bytes(range(32, 127)) * 100)[:-50], "a.csv.gz cannot be read as a table"),
        ("a.csv", b"x,y\n1," + b"2" * 40_000_000 + b"\n", "a row has more than 16 MiB"),
        ("a.parquet", b"", "a.parquet cannot be read as a table: .*0 bytes"),
        ("a.parquet", b"PAR1" + bytes(100) + b"PAR1", "a.parquet cannot be read as a table"),
    ],
)
def test_a_file_that_is_no_table_is_refused(name: str, content: bytes, message: str, tmp_path: Path):
    with pytest.raises(SourceError, match=message):
        rows_of(write(tmp_path, name, content))


def test_a_parquet_file_without_rows_is_refused(tmp_path: Path):
    parquet.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"a.parquet has no valid row"):
        rows_of(tmp_path / "a.parquet")


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(tmp_path: Path):
    table = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"a.parquet has two columns 'x'"):
        rows_of(tmp_path / "a.parquet")


def test_one_of_several_files_may_have_only_a_header(tmp_path: Path):
    files = [write(tmp_path, f"{number}.csv", text) for number, text in enumerate(["x\n", "x\n1\n", "x\n"])]
    assert rows_of(*files) == [{"x": "1"}]
    with pytest.raises(SourceError, match=r"the table of 2 files \(.*0.csv, ...\) has no valid row"):
        rows_of(files[0], files[2])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("x", "2.csv has no column 'y', but .*1.csv has one: correct the file"),
        ("x,y,z", "2.csv has a column 'z', but .*1.csv has none: correct the file"),
        ("x,Y", "2.csv has no column 'y'"),
    ],
)
def test_files_with_other_columns_are_refused(header: str, message: str, tmp_path: Path):
    first = write(tmp_path, "1.csv", "x,y\n1,2\n")
    second = write(tmp_path, "2.csv", header + "\n" + header + "\n")
    with pytest.raises(SourceError, match=message):
        rows_of(first, second)


@pytest.mark.long
def test_the_batches_are_the_same_in_every_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "_BLOCK", 100_000)
    place = write(tmp_path, "a.csv", "x,y\n" + "".join(f"{n},{n}\n" if n % 7 else f"{n}\n" for n in range(50_000)))

    def read() -> list[RawBatch]:
        return list(read_table([place]))

    first, second = read(), read()
    assert [raw.rejected for raw in first] == [raw.rejected for raw in second]
    assert all(one.batch.equals(other.batch) for one, other in zip(first, second, strict=True))


def test_the_index_of_pandas_is_refused(tmp_path: Path):
    frame = pd.DataFrame({"a": [1, 2]}, index=[5, 6])
    parquet.write_table(pa.Table.from_pandas(frame), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"__index_level_0__.* index=False"):
        list(read_table([tmp_path / "a.parquet"]))


@pytest.mark.long
def test_large_rows_of_parquet_come_in_small_batches(tmp_path: Path):
    table = pa.table({"a": ["x" * 1_000_000] * 120, "b": list(range(120))})
    parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")
    batches = [raw.batch for raw in read_table([tmp_path / "a.parquet"])]
    assert max(batch.num_rows for batch in batches) < 100
    assert sum(batch.num_rows for batch in batches) == 120
