"""A large table is listed by several tasks: the same dataset as by one, whatever the files look like."""

import csv
import gzip
import io
import itertools
import json
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.engines import local, opened_engine
from pipeline.engines.task import Task
from pipeline.errors import FileSystemError, SettingsError, SourceError
from pipeline.snapshot.part import rows_of
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.stages.build import build
from pipeline.stages.extract import describe_range, divide, extract, join, list_all, list_range_file
from pipeline.storage import place_of
from pipeline.tables import convert, pieces, row_ranges
from pipeline.tables.dialect import Dialect
from pipeline.tables.files import table_files
from pipeline.tables.pieces import FilePiece, bytes_of_each, csv_pieces, grouped, parquet_pieces
from pipeline.tables.source import TableReader, pieces_of_table, read_table
from standins.fake_gcs import FakeGcs

ROWS = 40_000
TEXTS = ("plain", 'a "quoted" one', "two\nlines", "two\r\nlines, and a comma", "", "é")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")

    def make(source: Path, **values: Any) -> Settings:
        defaults = {"label_column": "y", "workspace": str(tmp_path / "workspace"), "num_shards": 2}
        return settings_from({"example_kind": "table", "source_uri": str(source), **defaults, **values})

    return make


def rows(first: int, count: int) -> Iterator[list[str]]:
    generator = random.Random(0)
    for number in range(first, first + count):
        text = generator.choice(TEXTS)
        yield [str(number), f"{generator.random():.12f}", text, "yes" if generator.random() < 0.5 else "no"]


def csv_text(count: int, newline: str = "\n", first: int = 0) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=newline)
    writer.writerow(["id", "x", "text", "y"])
    writer.writerows(rows(first, count))
    return file.getvalue()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of three ranges, with quoted line breaks. One row has no label, and two are ragged."""
    path = tmp_path / "table.csv"
    more = csv_text(ROWS, first=ROWS).partition("\n")[2]
    path.write_text(csv_text(ROWS) + "too,few\n-1,0.5,plain,\n" + more + "too,few\n", newline="")
    return path


def content_of(pieces: list[FilePiece], encoding: str = "utf-8") -> list[dict[str, Any]]:
    reader = TableReader([Path(pieces[0].file)], Dialect(encoding))
    return [row for piece in pieces for raw in reader.read(piece) for row in raw.batch.to_pylist()]


def shards_of(result: dict[str, Any]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(result["dataset"]).glob("*.tfrecord")}


@pytest.mark.core
def test_several_processes_build_the_dataset_of_one(
    table: Path, settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    divided = build(settings(table))
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1000")
    alone = build(settings(table, workspace=str(tmp_path / "alone")))
    assert divided["version"] == alone["version"]
    assert shards_of(divided) == shards_of(alone) != {}
    rejected = [Path(result["dataset"], "rejected.jsonl").read_bytes() for result in (divided, alone)]
    assert sorted(rejected[0].splitlines()) == sorted(rejected[1].splitlines())
    # A person looks for the row with this number in the whole file, whose header is row 1 for parsers of CSV.
    places = {json.loads(line)["path"] for line in rejected[0].splitlines()}
    assert places == {f"row {ROWS + 2}", f"table.csv:{ROWS + 2}", f"table.csv:{2 * ROWS + 4}"}
    manifests = [json.loads(Path(result["dataset"], "dataset.json").read_bytes()) for result in (divided, alone)]
    assert manifests[0]["table"] == manifests[1]["table"]


@pytest.mark.long
def test_a_snapshot_of_ranges_is_that_of_one_task(table: Path, settings: Callable[..., Settings]):
    paths = divide(settings(table))
    assert len(paths) == 3
    for path in paths:
        list_range_file(path)
    joined = load_snapshot(join(settings(table), paths))
    alone = load_snapshot(list_all(settings(table)))
    for field in ("fingerprint", "listed", "classes", "bytes", "table"):
        assert getattr(joined, field) == getattr(alone, field), field
    assert sorted(rows_of(joined.parts)) == sorted(rows_of(alone.parts))


def test_ranges_are_named_for_people(table: Path, settings: Callable[..., Settings]):
    paths = divide(settings(table))
    first, second, third = map(describe_range, paths)
    assert first == "1 of 3"
    assert second.startswith("2 of 3, from row ")
    assert 0 < int(second.rpartition(" ")[2].replace(",", "")) < int(third.rpartition(" ")[2].replace(",", ""))


def test_a_small_table_is_not_divided(tmp_path: Path, settings: Callable[..., Settings]):
    path = tmp_path / "small.csv"
    path.write_text(csv_text(10), newline="")
    assert divide(settings(path)) == []


MB = 1_000_000


@pytest.mark.parametrize(
    ("total", "max_bytes", "processes", "ranges"),
    [
        (1, 32 * MB, 2, 1),
        (15 * MB, 32 * MB, 2, 1),
        (16 * MB, 32 * MB, 2, 2),
        (267 * MB, 32 * MB, 2, 10),
        (267 * MB, 32 * MB, 1, 9),
        (267 * MB, 32 * MB, 64, 33),
        (20_000 * MB, 32 * MB, 64, 640),
        (10 * MB, MB, 3, 10),
    ],
)
def test_processes_of_this_machine_get_equally_many_ranges(total: int, max_bytes: int, processes: int, ranges: int):
    size = bytes_of_each(total, max_bytes, processes)
    assert size <= max_bytes
    assert -(-total // size) == ranges


def test_a_table_is_divided_for_the_processes_of_this_machine(
    settings: Callable[..., Settings], table: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_ranges, "usable_cores", lambda: 7)
    monkeypatch.setattr(pieces, "MIN_BYTES_OF_PROCESS", 1)
    with opened_engine("local") as engine:
        assert len(divide(settings(table), engine)) == 7


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("max_bytes", [1, 7, 50, 333, 5000])
def test_a_csv_file_is_divided_between_rows(tmp_path: Path, max_bytes: int, newline: str):
    path = tmp_path / "a.csv"
    path.write_text(csv_text(200, newline), newline="")
    pieces = csv_pieces(path, max_bytes)
    assert len(pieces) > 1
    assert (pieces[0].begin, pieces[-1].end) == (0, path.stat().st_size)
    assert content_of(pieces) == content_of([FilePiece(str(path))])


def test_a_file_without_rows_after_the_last_piece_has_no_empty_piece(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,2\n3,4\n")
    assert [(piece.begin, piece.end) for piece in csv_pieces(path, 4)] == [(0, 4), (4, 8), (8, 12)]
    assert [(piece.begin, piece.end) for piece in csv_pieces(path, 12)] == [(0, 12)]


@pytest.mark.parametrize("row_group_size", [7, 100, 1000])
@pytest.mark.parametrize("max_bytes", [1, 100, 1000, 10**9])
def test_a_parquet_file_is_divided_between_rows(tmp_path: Path, row_group_size: int, max_bytes: int):
    path = tmp_path / "a.parquet"
    table = pa.table({"x": range(500), "y": [str(number) for number in range(500)]})
    parquet.write_table(table, path, row_group_size=row_group_size)
    pieces = parquet_pieces(path, max_bytes)
    assert len(pieces) > 1 or max_bytes == 10**9
    assert content_of(pieces) == table.to_pylist()


def test_a_parquet_file_without_rows_is_one_piece(tmp_path: Path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": pa.array([], pa.int64())}), path)
    [piece] = parquet_pieces(path, 1)
    assert content_of([piece]) == []


def test_files_that_have_no_place_to_begin_are_one_piece_each(tmp_path: Path):
    text = csv_text(100)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    (tmp_path / "b.csv").write_text(text, newline="")
    files = table_files(tmp_path)
    assert [Path(piece.file).name for piece in pieces_of_table(files, Dialect("utf-8"), 1000)].count("a.csv.gz") == 1
    assert len(pieces_of_table(files, Dialect("utf-8"), 1000)) > 2
    assert len(pieces_of_table(files, Dialect("latin-1"), 1000)) > 2
    # In UTF-16, a byte of another character may look like a line break.
    assert len(pieces_of_table(files, Dialect("utf-16"), 1000)) == 2


def test_small_files_share_a_range(tmp_path: Path):
    pieces = [FilePiece(str(number), size) for number, size in enumerate([10, 20, 70, 5, 100, 1, 300, 1])]
    found = [[piece.size for piece in group] for group in grouped(pieces, 100)]
    assert found == [[10, 20, 70], [5], [100], [1], [300], [1]]


def test_a_stray_quote_is_refused_before_a_file_is_divided(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + '5" pipe,1\n' + 1000 * "plain,1\n")
    with pytest.raises(SourceError, match="quote"):
        pieces_of_table([path], Dialect(), 100)


def test_pieces_need_the_same_columns(tmp_path: Path, settings: Callable[..., Settings]):
    for name, header in (("a.csv", "x,y\n"), ("b.csv", "x,z\n")):
        (tmp_path / "t").mkdir(exist_ok=True)
        (tmp_path / "t" / name).write_text(header + 200_000 * "1,2\n")
    with pytest.raises(SourceError, match=r"b\.csv has no column 'y', but .*a\.csv has one"):
        divide(settings(tmp_path / "t"))


@pytest.mark.parametrize("when", ["between the ranges", "while a range is listed"])
def test_a_table_that_changes_is_refused(
    table: Path, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, when: str
):
    paths = divide(settings(table))
    if when == "between the ranges":
        list_range_file(paths[0])
        os.utime(table, ns=(1, 1))
    else:
        from pipeline.tables import row_ranges as ranges

        real = ranges.extract.list_rows

        def changing(*arguments: Any, **options: Any) -> Any:
            os.utime(table, ns=(2, 2))
            return real(*arguments, **options)

        monkeypatch.setattr(ranges.extract, "list_rows", changing)
    with pytest.raises(SourceError, match=r"table\.csv changed while it was read: run again"):
        list_range_file(paths[1])
    with pytest.raises(FileSystemError, match="was not listed"):
        join(settings(table), paths)


@pytest.mark.long
def test_the_command_line_divides_too(table: Path, settings: Callable[..., Settings]):
    snapshot = load_snapshot(extract(settings(table, key_column="")))
    assert snapshot.listed == 2 * ROWS + 3
    assert len(snapshot.parts) == 3


def test_a_wrong_size_is_refused(table: Path, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch):
    made = settings(table)
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "0.5")
    with pytest.raises(SettingsError, match=r"TENFOLD_RANGE_MEGABYTES must be a number above 0, got '0\.5'"):
        divide(made)


def test_every_row_is_read_once_from_pieces(table: Path):
    whole = [row for raw in read_table([table]) for row in raw.batch.to_pylist()]
    assert content_of(pieces_of_table([table], Dialect("utf-8"), 300_000)) == whole


def test_a_byte_order_mark_and_a_quoted_header_are_no_stray_quote(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text('"x","y"\r\n' + '"1","2"\r\n' * 1000, "utf-8-sig", newline="")
    pieces = pieces_of_table([path], Dialect(), 1000)
    assert len(pieces) > 2
    assert content_of(pieces) == [{"x": "1", "y": "2"}] * 1000


def test_a_byte_order_mark_within_a_file_stays_in_its_value(tmp_path: Path):
    """As `cat a.csv b.csv` makes it. Arrow would drop it at the start of a piece."""
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "\ufeff1,2\n" * 100, "utf-8")
    assert content_of(csv_pieces(path, 20)) == content_of([FilePiece(str(path))])
    assert content_of([FilePiece(str(path))])[-1]["x"] == "\ufeff1"


@pytest.mark.parametrize("encoding", ["iso2022_jp", "hz", "utf-7", "utf-16"])
def test_a_file_whose_characters_contain_bytes_of_quotes_is_one_piece(tmp_path: Path, encoding: str):
    path = tmp_path / "a.csv"
    path.write_text('x,y\n"a\nb",2\n' * 500, encoding)
    assert len(pieces_of_table([path], Dialect(encoding), 1000)) == 1


@pytest.mark.parametrize("text", ["x,y\r" + "1,2\r" * 3_000_000, 'x,y\n1,"' + "a\n" * 2_000_000 + '"\n3,4\n'])
def test_a_very_long_line_takes_no_quadratic_time(tmp_path: Path, text: str):
    path = tmp_path / "a.csv"
    path.write_text(text, newline="")
    assert len(csv_pieces(path, 100_000)) in (1, 2)


def test_a_row_group_has_few_pieces(tmp_path: Path):
    """To read a piece, the rows before it in its row group are decoded."""
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": range(3000)}), path, row_group_size=1000)
    pieces = parquet_pieces(path, 10)
    assert len(pieces) == 3 * 8
    assert {1000, 2000} < {piece.begin for piece in pieces}
    assert sum(piece.rows or 0 for piece in pieces) == 3000


def test_a_range_file_cannot_name_a_file_of_others(
    table: Path, settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Anyone who can write to the workspace can write a range file."""
    path = Path(divide(settings(table))[0])
    other = tmp_path / "other.csv"
    other.write_text("id,x,text,y\n1,2,secret,yes\n")
    content = json.loads(path.read_text())
    content["content"]["pieces"][0]["file"] = str(other)
    path.write_text(json.dumps(content))
    with pytest.raises(SourceError, match=r"other\.csv is no file of the table any more"):
        list_range_file(str(path))
    content["content"]["pieces"] = []
    content["content"]["schema"] = str(other)
    path.write_text(json.dumps(content))
    for name in ("WORKSPACES", "PUBLISH"):
        monkeypatch.setenv(f"TENFOLD_ALLOWED_{name}", str(tmp_path / "workspace"))
    with pytest.raises(SettingsError, match=r"other\.csv"):
        list_range_file(str(path))


def test_pieces_are_read_with_the_project_that_pays(gcs: FakeGcs):
    gcs.put("bucket", "a.csv", b"x,y\n1,2\n")
    place = place_of("gs://bucket/a.csv", "project")
    reader = TableReader([place])
    assert reader.place_of(FilePiece(str(place))) is place
    [raw] = reader.read(FilePiece(str(place)))
    assert raw.rows == 1


@pytest.mark.parametrize("label", ["y", "z"])
def test_an_error_of_a_setting_opens_no_further_file(
    tmp_path: Path, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, label: str
):
    """A label without a value used to open up to 19 files, and to check their quotes."""
    opened: list[str] = []
    names_of = TableReader.names_of
    monkeypatch.setattr(
        TableReader, "names_of", lambda reader, place: opened.append(place.name) or names_of(reader, place)
    )
    for number in range(5):
        (tmp_path / f"{number}.csv").write_text("x,y\n1,\n2,\n")
    with pytest.raises(SettingsError, match="no value in any row" if label == "y" else "no such column"):
        list_all(settings(tmp_path, label_column=label))
    assert opened == ([f"{number}.csv" for number in range(5)] if label == "z" else ["0.csv"])


def test_a_table_of_one_class_is_refused_before_its_ranges(tmp_path: Path, settings: Callable[..., Settings]):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "1,yes\n" * 400_000)
    with pytest.raises(SourceError, match="a class needs at least two"):
        divide(settings(path))


def test_a_process_that_lists_a_table_takes_more_memory_than_one_of_images(
    settings: Callable[..., Settings],
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(local, "usable_cores", lambda: 2)
    monkeypatch.setattr(local, "available_memory", lambda: 700_000_000)
    extract(settings(table))
    assert "1 worker process instead of 2, because 700 MB of memory are free, and each may take 600 MB" in caplog.text
    counts = [message for message in caplog.messages if message.startswith("extract: ")]
    assert counts[-1].startswith(f"extract: {2 * ROWS + 3} rows")


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_converted_by_as_many_threads_as_arrow_may_have(
    threads: int, settings: Callable[..., Settings], table: Path, monkeypatch: pytest.MonkeyPatch
):
    """The local engine has a process for each core, and gives each one thread."""
    before, found = pa.cpu_count(), set()

    def converted(*arguments: Any) -> Any:
        found.add(threading.get_ident())
        if next(calls) < threads:
            together.wait()
        return convert.converted(*arguments)

    calls, together = itertools.count(), threading.Barrier(threads, timeout=60)
    monkeypatch.setattr("pipeline.tables.extract.converted", converted)
    pa.set_cpu_count(threads)
    try:
        list_all(settings(table))
    finally:
        pa.set_cpu_count(before)
    assert len(found) == threads


def test_a_task_of_any_engine_has_one_thread_of_arrow(
    settings: Callable[..., Settings], table: Path, monkeypatch: pytest.MonkeyPatch
):
    """Spark, Beam and Airflow call these functions in processes that have loaded Arrow already."""
    found = []

    def counted(*arguments: Any) -> Any:
        found.append((pa.cpu_count(), pa.io_thread_count()))
        return convert.converted(*arguments)

    monkeypatch.setattr("pipeline.tables.extract.converted", counted)
    before = pa.cpu_count()
    pa.set_cpu_count(4)
    try:
        paths = divide(settings(table))
        Task(list_range_file, {}).attempt(paths[0])
        list_range_file(paths[1])
        assert pa.cpu_count() == 4
    finally:
        pa.set_cpu_count(before)
    assert set(found) == {(1, 1)}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_several_processes_infer_the_schema_of_one(suffix: str, settings: Callable[..., Settings], tmp_path: Path):
    """Notes name places in the later ranges of a file."""
    (tmp_path / "t").mkdir()
    for name in "abc":
        path = tmp_path / f"t/{name}{suffix}"
        numbers, texts = range(ROWS), [TEXTS[number % 6] for number in range(ROWS)]
        late = [number / 7 for number in numbers]
        if suffix == ".parquet":
            parquet.write_table(pa.table({"number": numbers, "late": late, "text": texts, "y": texts}), path)
            continue
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["number", "late", "text", "y"])
            cells = [f"{value}" for value in late[:-5]] + ["-"] * 5
            writer.writerows(zip(numbers, cells, texts, texts, strict=True))
    options = settings(tmp_path / "t", workspace=str(tmp_path / "w"))
    one, examined = divide(options), []

    def engine(task: Task, places: Any, advance: Any) -> None:
        """Call the task as a cluster does."""
        examined.extend(places)
        for place in places:
            task.attempt(place).require_success()

    ranges = divide(options, engine)
    assert len(ranges) == len(one) == len(examined) > 2
    contents = [[json.loads(Path(path).read_text())["content"] for path in paths] for paths in (ranges, one)]
    schemas = [json.loads(Path(each[0].pop("schema")).read_text()) for each in contents]
    assert schemas[0] == schemas[1]
    if suffix == ".csv":
        assert f"such as '-' (a.csv:{ROWS - 3})" in " ".join(schemas[0]["notes"])
    there, here = (
        [[piece["begin"], piece["end"], piece["rows"], piece["rows_before"]] for each in of for piece in each["pieces"]]
        for of in contents
    )
    assert there == here


def test_an_error_in_a_late_range_names_its_row_in_the_file(settings: Callable[..., Settings], tmp_path: Path):
    lines = [
        f"{number},{'train' if number != ROWS - 2 else 'practice'},{'yn'[number % 2]}," + "x" * 60
        for number in range(ROWS)
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["number,part,y,text", *lines]))
    with pytest.raises(SourceError, match=rf"t\.csv:{ROWS} has 'practice'"):
        extract(settings(path, split_column="part"))
