"""The index of containers: sorted in small runs, read in pieces, and read by several processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.config.settings import settings_from
from pipeline.engines import local
from pipeline.engines.task import Outcome, Task
from pipeline.kinds.images.containers import parquet as parquet_format
from pipeline.sources import Listed, SourceOptions, sorted_rows
from pipeline.sources.container_rows import Container, pieces_of
from pipeline.sources.detection import images_of, key_ranges
from pipeline.stages.extract import extract
from tests.conftest import jpeg
from tests.kinds.containers.examples import drawn, hub_metadata, write_hub, write_tar

MEGABYTE = 1_000_000


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort and merge a few rows at a time, as a million rows are in runs of the usual size."""
    monkeypatch.setattr(sorted_rows, "RUN_ROWS", 8)
    monkeypatch.setattr(sorted_rows, "PART_ROWS", 2)


def listed(place: Path, copies: Path) -> list[Any]:
    return list(images_of(place, SourceOptions(copies=str(copies))))


def many_tars(root: Path, names: Iterator[str] | list[str], files: int) -> Path:
    """Write images in some tar files, whose names are in no order."""
    root.mkdir()
    images = {name: jpeg(number) for number, name in enumerate(names)}
    for number in range(files):
        some = dict(sorted(list(images.items())[number::files], key=lambda item: item[0][::-1]))
        write_tar(root / f"{number}.tar", some)
    return root


def test_small_runs_give_the_same_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = [f"packed/{name}/{number:03d}.jpg" for name in ("cats", "dogs") for number in range(60)]
    place = many_tars(tmp_path / "source", names, files=5)
    at_once = listed(place, tmp_path / "at once")
    monkeypatch.setattr(sorted_rows, "RUN_ROWS", 8)
    monkeypatch.setattr(sorted_rows, "PART_ROWS", 2)
    assert listed(place, tmp_path / "in runs") == at_once
    assert [each.key for each in at_once] == sorted(name.removeprefix("packed/") for name in names)


@pytest.mark.usefixtures("small_runs")
def test_equal_names_in_different_runs_become_numbers(tmp_path: Path):
    (tmp_path / "source").mkdir()
    for file in range(4):
        names = [f"cats/{number:03d}.jpg" for number in range(40)] + [
            f"dogs/{file}-{number}.jpg" for number in range(9)
        ]
        images = {name: jpeg(100 * file + number) for number, name in enumerate(names)}
        write_tar(tmp_path / "source" / f"{file}.tar", images)
    images = listed(tmp_path / "source", tmp_path / "copies")
    keys = [each.key for each in images]
    numbers = [f"{file}.tar/{number:08d}.jpg" for file in range(4) for number in range(40)]
    assert keys == sorted([*numbers, *(f"dogs/{file}-{number}.jpg" for file in range(4) for number in range(9))])
    assert {each.labels for each in images if ".tar" in each.key} == {("cats",)}


@pytest.mark.usefixtures("small_runs")
def test_ranges_of_keys_take_their_rows_from_several_batches(tmp_path: Path):
    names = [f"{name}/{number:03d}.jpg" for name in ("cats", "dogs") for number in range(60)]
    place, options = many_tars(tmp_path / "source", names, files=3), SourceOptions(copies=str(tmp_path / "copies"))
    ranges = key_ranges(place, options, 7, 1)
    assert len(ranges) == 7
    parts = [list(images_of(place, options, each)) for each in ranges]
    assert [item for part in parts for item in part] == listed(place, tmp_path / "copies")
    assert {len(part) for part in parts} <= {17, 18}


def write_large_parquet(path: Path, rows: int, row_group: int) -> dict[str, bytes]:
    """Write images of about 60 kB, of which some rows have no image and some no name."""
    images = [jpeg(number) + bytes(60_000) for number in range(rows)]
    structs = [
        None if number == 3 else {"bytes": image, "path": None if number % 10 == 5 else f"{number}.jpg"}
        for number, image in enumerate(images)
    ]
    table = pa.table({"image": structs, "label": pa.array([number % 2 for number in range(rows)])})
    parquet.write_table(
        table.replace_schema_metadata(hub_metadata(["a", "b"])), path, row_group_size=row_group, compression="none"
    )
    names = {n: f"{path.name}/{n:08d}.jpg" if n % 10 == 5 else f"{n}.jpg" for n in range(rows) if n != 3}
    return {name: images[number] for number, name in names.items()}


def test_pieces_of_a_parquet_file_give_the_rows_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected = write_large_parquet(tmp_path / "a.parquet", rows=100, row_group=7)
    whole = listed(tmp_path / "a.parquet", tmp_path / "whole")
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    status = (tmp_path / "a.parquet").stat()
    container = Container("a.parquet", tmp_path / "a.parquet", status.st_size, 1, parquet_format)
    pieces = list(pieces_of([container]))
    assert len(pieces) > 3
    assert [piece.end for piece in pieces[:-1]] == [piece.first for piece in pieces[1:]]
    in_pieces = listed(tmp_path / "a.parquet", tmp_path / "pieces")
    assert [each[:-1] for each in in_pieces] == [each[:-1] for each in whole]
    contents = {}
    for each in in_pieces:
        if isinstance(each, Listed):
            assert each.extent
            contents[each.key] = Path(each.extent.file).read_bytes()[each.extent.offset :][: each.size]
    assert contents == expected


def test_a_container_that_is_smaller_than_two_pieces_is_not_divided(tmp_path: Path):
    write_hub(tmp_path / "a.parquet", drawn(), ["cats", "dogs", "eels"])
    container = Container("a.parquet", tmp_path / "a.parquet", MEGABYTE, 1, parquet_format)
    assert [(piece.first, piece.end) for piece in pieces_of([container])] == [(0, None)]


def test_the_processes_of_the_engine_read_many_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The stage itself reads none of them."""
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    source = tmp_path / "source"
    source.mkdir()
    for file in range(4):
        names = [f"{label}/{file}-{number}.jpg" for number in range(10) for label in "ab"]
        content = {name: jpeg(number) + bytes(60_000) for number, name in enumerate(names)}
        write_tar(source / f"{file}.tar", content)
    calls: list[str] = []
    real = local.Workers.outcomes

    def counted(workers: local.Workers, task: Task, places: list[str]) -> Iterator[Outcome]:
        calls.extend(f"{task.function.__name__} {Path(place).name}" for place in places)
        return real(workers, task, places)

    monkeypatch.setattr(local.Workers, "outcomes", counted)
    monkeypatch.setattr("pipeline.sources.container_rows._read", None)  # Only in this process: the others import it.
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "w"), "dataset_name": "x"})
    extract(settings)
    assert calls == [f"examine_range_file {number:04d}.json" for number in range(1, 5)]
    extract(settings)  # Nothing is left to read.
    assert len(calls) == 4
