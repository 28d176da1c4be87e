"""The index of containers: sorted in small runs, read in pieces, and read by several processes."""

import errno
import gzip
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.config.settings import settings_from
from pipeline.engines import local
from pipeline.engines.task import Outcome, Task
from pipeline.errors import SourceError
from pipeline.records.example import encode
from pipeline.records.tfrecord import frame
from pipeline.sources import Listed, SourceOptions, container_index, container_rows, containers, measure, sorted_rows
from pipeline.sources.container_formats import Bound, ContainerFile, format_of
from pipeline.sources.container_rows import Container, Piece, pieces_of
from pipeline.sources.detection import images_of, key_ranges
from pipeline.sources.key_range import KeyRange, range_bytes
from pipeline.stages.extract import extract
from tests.conftest import jpeg
from tests.damage import DAMAGES
from tests.kinds.containers.examples import drawn, hub_metadata, write_hub, write_tar
from tests.sources.examples import EXAMPLES

MEGABYTE = 1_000_000


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort and merge a few rows at a time, as a million rows are in runs of the usual size."""
    monkeypatch.setattr(sorted_rows, "RUN_ROWS", 8)
    monkeypatch.setattr(sorted_rows, "PART_ROWS", 2)


def listed(place: Path, copies: Path) -> list[Any]:
    return list(images_of(place, SourceOptions(copies=str(copies))))


def without_place(item: Any) -> Any:
    """Return an image without the place of its bytes, which another piece of its container has."""
    return item._replace(extent=None) if isinstance(item, Listed) else item


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


def test_no_step_of_the_merge_holds_all_rows_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Some data sets have the path image.png in each row."""
    rows, steps = 40_000, list[int]()
    images = pa.array([{"bytes": b"x", "path": "image.png"}] * rows)
    parquet.write_table(pa.table({"image": images, "label": ["a"] * rows}), tmp_path / "a.parquet")

    def counted(place: Path, tables: Iterator[pa.Table], renamed: sorted_rows.Rename) -> None:
        def step(table: pa.Table) -> pa.Table:
            steps.append(len(table))
            return renamed(table)

        sorted_rows.write_sorted(place, tables, step)

    monkeypatch.setattr(container_index, "write_sorted", counted)
    keys = [each.key for each in listed(tmp_path / "a.parquet", tmp_path / "copies")]
    assert keys == [f"a.parquet/{number:08d}.png" for number in range(rows)]
    assert max(steps) < 1.5 * sorted_rows.RUN_ROWS


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
    pieces = pieces_in(tmp_path / "a.parquet", tmp_path / "pieces")
    assert len(pieces) > 3
    assert [piece.end for piece in pieces[:-1]] == [piece.first for piece in pieces[1:]]
    in_pieces = listed(tmp_path / "a.parquet", tmp_path / "pieces")
    assert [without_place(each) for each in in_pieces] == [without_place(each) for each in whole]
    assert contents_of(in_pieces, tmp_path) == expected


def pieces_in(file: Path, copies: Path) -> list[Piece]:
    form = format_of(file.name)
    assert form
    copies.mkdir(exist_ok=True)
    container = Container(file.name, file, *measure(file)[:2], form)
    return list(pieces_of([container], SourceOptions(copies=str(copies)), range_bytes()))


def contents_of(items: list[Any], root: Path) -> dict[str, bytes]:
    contents = {}
    for each in items:
        if isinstance(each, Listed):
            assert each.extent
            contents[each.key] = (root / each.extent.file).read_bytes()[each.extent.offset :][: each.size]
    return contents


def large_jpeg(number: int) -> bytes:
    return jpeg(number) + random.Random(number).randbytes(60_000)


def odd_files(count: int = 100) -> list[tuple[str, bytes]]:
    """Return files of an archive in class folders, and among them what moves the numbers of the images."""
    files: list[tuple[str, bytes]] = []
    for number in range(count):
        folder = ("cats", "a folder with a long name and an ö" * 4)[number % 2]
        # Names are repeated in other pieces.
        files.append((f"{folder}/{number % 70}.jpg", large_jpeg(number)))
        if number % 7 == 0:
            files += [(f"notes/{number}.md", b"# skipped"), (f"alone/{number}.txt", b"skipped, too"), ("notes/", b"")]
        if number % 11 == 0:  # Whether the text belongs to an image is known by its first bytes.
            files += [(f"odd/{number}", (b"no image", jpeg(number))[number % 2]), (f"odd/{number}.txt", b"cats")]
    return files


def samples(count: int = 80) -> list[tuple[str, bytes]]:
    """Return images with the files of their labels before or after them, as WebDataset has them."""
    files: list[tuple[str, bytes]] = []
    for number in range(count):
        label, image = b"a class with a long name %d" % (number % 20), large_jpeg(number)
        of_sample = [(f"{number:04d}.txt", label), (f"{number:04d}.jpg", image), (f"{number:04d}.seg.png", b"mask")]
        files += of_sample[:: 1 if number % 2 else -1]
    return files


def of_one_name(files: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return files whose names are the same before the first point."""
    return [(f"cats/i.{number:04d}{Path(name).suffix}", content) for number, (name, content) in enumerate(files)]


def write_zip_of(path: Path, files: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> None:
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files:
            archive.writestr(name, content)


def write_zip64(path: Path, files: list[tuple[str, bytes]]) -> None:
    """Write an archive whose directory has sizes and offsets of 64 bits, as if it had many gigabytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipfile, "ZIP64_LIMIT", 50_000)  # Smaller than an image, and larger than the other files.
        write_zip_of(path, files)


def write_zip_after_a_program(path: Path, files: list[tuple[str, bytes]]) -> None:
    path.write_bytes(b"#!/bin/sh" + bytes(5000))
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"a comment"
        for name, content in dict(files).items():
            archive.writestr(name, content)


def write_tar_of(path: Path, files: list[tuple[str, bytes]], **options: Any) -> None:
    with tarfile.open(path, "w", **options) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.type, info.size = (tarfile.DIRTYPE, 0) if name.endswith("/") else (tarfile.REGTYPE, len(content))
            archive.addfile(info, io.BytesIO(content))


def write_tfrecord(path: Path, files: list[tuple[str, bytes]]) -> None:
    """Write some records without an image, without a name, and with a name that another record has."""
    with path.open("wb") as file:
        for number, (name, content) in enumerate(files):
            features: dict[str, Any] = {"image/class/text": name.partition("/")[0].encode(), "image/encoded": content}
            features |= {"image/filename": name.encode()} if number % 5 else {}
            file.write(frame(encode({"x": 1} if number % 9 == 4 else features)))


DIVIDED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "zip": ("a.zip", lambda path: write_zip_of(path, odd_files())),
    "zip, compressed": ("a.zip", lambda path: write_zip_of(path, odd_files(), zipfile.ZIP_DEFLATED)),
    "zip, samples": ("a.zip", lambda path: write_zip_of(path, samples())),
    "zip with numbers of 64 bits": ("a.zip", lambda path: write_zip64(path, odd_files())),
    "zip after a program": ("a.zip", lambda path: write_zip_after_a_program(path, odd_files())),
    "tar": ("a.tar", lambda path: write_tar_of(path, odd_files())),
    "tar of GNU": ("a.tar", lambda path: write_tar_of(path, odd_files(), format=tarfile.GNU_FORMAT)),
    "tar, samples": ("a.tar", lambda path: write_tar_of(path, samples())),
    "tfrecord": ("a.tfrecord", lambda path: write_tfrecord(path, odd_files())),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_the_pieces_of_a_container_give_what_the_whole_one_gives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "source").mkdir()
    file, write = DIVIDED[name]
    path = tmp_path / "source" / file
    write(path)
    whole = listed(path, tmp_path / "whole")
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    pieces = pieces_in(path, tmp_path / "pieces")
    assert len(pieces) > 3
    assert [piece.end for piece in pieces[:-1]] == [piece.first for piece in pieces[1:]]
    in_pieces = listed(path, tmp_path / "pieces")
    assert len(list((tmp_path / "pieces").glob("*.arrow"))) == len(pieces) + 1
    assert [without_place(each) for each in in_pieces] == [without_place(each) for each in whole]
    assert contents_of(in_pieces, path.parent) == contents_of(whole, path.parent)


def write_tar_with_a_global_header(path: Path) -> None:
    write_tar_of(path, odd_files(), pax_headers={"comment": "of all files"})


def write_zip_in_another_order(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in dict(odd_files()).items():
            archive.writestr(name, content)
        archive.filelist.reverse()


UNDIVIDED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "tar.gz": ("a.tar.gz", lambda path: path.write_bytes(write_to_bytes(path, "tar"))),
    "tar with a header for all files": ("a.tar", write_tar_with_a_global_header),
    "tar with one long sample": ("a.tar", lambda path: write_tar_of(path, of_one_name(samples()))),
    "zip with another order": ("a.zip", write_zip_in_another_order),
    "tfrecord.gz": ("a.tfrecord.gz", lambda path: path.write_bytes(write_to_bytes(path, "tfrecord"))),
}


def write_to_bytes(path: Path, form: str) -> bytes:
    plain = path.with_name("plain")
    DIVIDED[form][1](plain)
    content = plain.read_bytes()
    plain.unlink()
    return gzip.compress(content, 0)


@pytest.mark.parametrize("name", UNDIVIDED)
def test_other_containers_are_one_piece(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    (tmp_path / "source").mkdir()
    file, write = UNDIVIDED[name]
    write(tmp_path / "source" / file)
    assert (tmp_path / "source" / file).stat().st_size > 4 * MEGABYTE
    assert len(pieces_in(tmp_path / "source" / file, tmp_path / "copies")) == 1
    assert listed(tmp_path / "source" / file, tmp_path / "copies")


@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_captions_in_a_divided_archive_are_refused(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each piece alone has too few images to tell."""
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    {"tar": write_tar_of, "zip": write_zip_of}[suffix](tmp_path / f"a.{suffix}", captions())
    with pytest.raises(SourceError, match=r"80 of 80 \.txt files beside its images differ: they look like captions"):
        listed(tmp_path / f"a.{suffix}", tmp_path / "copies")


def captions() -> list[tuple[str, bytes]]:
    files = [(name, content) for name, content in samples() if not name.endswith("png")]
    return [(name, content if name.endswith("jpg") else b"cat on %s" % name.encode()) for name, content in files]


@pytest.mark.parametrize("megabytes", ["1", "1000"])
@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_captions_after_many_other_files_are_refused(
    suffix: str, megabytes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", megabytes)
    others = [(f"Annotations/{number:05d}.xml", b"<a/>") for number in range(10_001)]
    {"tar": write_tar_of, "zip": write_zip_of}[suffix](tmp_path / f"a.{suffix}", [*others, *captions()])
    with pytest.raises(SourceError, match=r"80 of 80 \.txt files beside its images differ: they look like captions"):
        listed(tmp_path / f"a.{suffix}", tmp_path / "copies")


def test_an_encrypted_zip_file_of_the_size_of_some_pieces_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, content in samples():
            archive.writestr(name, content)
        for info in archive.filelist:
            info.flag_bits |= 1
    with pytest.raises(
        SourceError, match=r"a\.zip cannot be read as a zip file of images: 0000.* is encrypted: unpack"
    ):
        listed(tmp_path / "a.zip", tmp_path / "copies")


def test_a_container_that_is_smaller_than_two_pieces_is_not_divided(tmp_path: Path):
    write_hub(tmp_path / "a.parquet", drawn(), ["cats", "dogs", "eels"])
    assert [(piece.first, piece.end) for piece in pieces_in(tmp_path / "a.parquet", tmp_path)] == [(Bound(), None)]


def test_the_bounds_of_a_container_are_kept_while_its_folder_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    source, copies = tmp_path / "source", tmp_path / "copies"
    source.mkdir()
    write_tar_of(source / "0.tar", samples(60))
    listed(source, copies)
    kept = {path: path.stat().st_ino for path in copies.glob("*-*")}
    assert any(path.suffix == ".bounds" for path in kept)
    for days in range(2, 9, 2):
        for path in copies.iterdir():
            os.utime(path, (path.stat().st_mtime - 2 * 86_400,) * 2)
        write_tar(source / f"{days}.tar", {f"cats/{days}.jpg": jpeg(days)})
        listed(source, copies)
    assert {path: path.stat().st_ino for path in copies.glob("*-*") if path in kept} == kept


def test_bounds_are_not_kept_after_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    write_tar_of(tmp_path / "a.tar", samples(60))

    def failing(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failure:
        failure.setattr("pipeline.kinds.images.containers.tar.bounds", failing)
        with pytest.raises(OSError, match="Input/output error"):
            pieces_in(tmp_path / "a.tar", tmp_path / "copies")
    assert len(pieces_in(tmp_path / "a.tar", tmp_path / "copies")) > 3


@pytest.mark.parametrize("lost", ["", "{}", "[1]", "[1, 2]", "null"])
def test_bounds_that_a_power_loss_damaged_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str):
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    write_tar_of(tmp_path / "a.tar", samples(60))
    pieces = pieces_in(tmp_path / "a.tar", tmp_path / "copies")
    [bounds] = (tmp_path / "copies").glob("*.bounds")
    bounds.write_text(lost)
    assert pieces_in(tmp_path / "a.tar", tmp_path / "copies") == pieces
    assert len(pieces) > 3


def test_damaged_bounds_that_can_be_read_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Images would be missing, or listed twice."""
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    write_tar_of(tmp_path / "a.tar", samples(60))
    pieces = pieces_in(tmp_path / "a.tar", tmp_path / "copies")
    [bounds] = (tmp_path / "copies").glob("*.bounds")
    content = bounds.read_text()
    bounds.write_text(content.replace(f"[0, {pieces[1].first.offset}]", f"[0, {pieces[1].first.offset + 512}]"))
    assert bounds.read_text() != content
    assert pieces_in(tmp_path / "a.tar", tmp_path / "copies") == pieces


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", [".json", ".arrow"])
@pytest.mark.parametrize("of", ["index", "piece"])
def test_a_damaged_file_of_the_index_is_made_again(
    of: str,
    suffix: str,
    damage: Callable[[bytes], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Only the container of a damaged piece is read again."""
    place, copies = many_tars(tmp_path / "source", ["cats/1.jpg", "dogs/2.jpg"], files=2), tmp_path / "copies"
    expected = listed(place, copies)
    of_index = {path.suffix: path for path in copies.iterdir() if "-" not in path.name}
    damaged = of_index[suffix] if of == "index" else min(copies.glob(f"*-*{suffix}"))
    content = damaged.read_bytes()
    damaged.write_bytes(damage(content))
    if of == "piece":  # With a new index, its rows are read again.
        of_index[".json"].unlink()
    read, real = list[Piece](), container_rows._read
    monkeypatch.setattr(container_rows, "_read", lambda piece, *others: read.append(piece) or real(piece, *others))
    assert len(containers.unread(place, SourceOptions(copies=str(copies)), 100)) == (of == "piece")
    assert listed(place, copies) == expected
    assert len(read) == (of == "piece")
    assert f"{damaged} is damaged: it is made again" in caplog.text
    assert damaged.read_bytes() == content


def test_a_task_divides_into_pieces_of_the_size_of_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The machines of a cluster may have another environment."""
    monkeypatch.setattr("pipeline.sources.container_index.DIVIDED_BYTES", MEGABYTE)
    options = SourceOptions(copies=str(tmp_path / "copies"))
    (tmp_path / "source").mkdir()
    for number in range(2):
        write_tar_of(tmp_path / "source" / f"{number}.tar", samples(60))

    def unread() -> list[Any]:
        monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
        return containers.unread(tmp_path / "source", options, 100)

    parts = json.loads(json.dumps(unread()))
    assert [part["divide"] for part in parts] == [["0.tar"], ["1.tar"]]
    monkeypatch.delenv("TENFOLD_RANGE_MEGABYTES")
    assert [containers.read(tmp_path / "source", options, part) for part in parts] == [4, 4]
    assert not any("divide" in part for part in unread())


def test_a_range_notes_no_use_of_the_index(tmp_path: Path):
    """Many tasks list a range each, and the task that divided the source noted it."""
    source, copies = many_tars(tmp_path / "source", ["cats/1.jpg", "dogs/2.jpg"], files=2), tmp_path / "copies"
    options = SourceOptions(copies=str(copies))
    listed(source, copies)

    def used_by(work: Callable[[], object]) -> set[bool]:
        for path in copies.iterdir():
            os.utime(path, (1e9, 1e9))
        work()
        return {path.stat().st_mtime > 1e9 for path in copies.iterdir()}

    assert used_by(lambda: list(images_of(source, options, KeyRange("", "d")))) == {False}
    assert used_by(lambda: key_ranges(source, options, 2, 1)) == {True}
    assert used_by(lambda: listed(source, copies)) == {True}


LATER: dict[str, Callable[[bytes], bytes]] = {
    "damaged.tar": lambda content: content.replace(b"0070.jpg", b"0070.jp\xff", 1),
    "cut.tar": lambda content: content[: content.index(b"0070.jpg") + 3000],
    "joined.tar": lambda content: content + content[:20_480],
    "damaged.zip": lambda content: content.replace(large_jpeg(70), large_jpeg(70)[::-1], 1),
}


@pytest.mark.parametrize("name", LATER)
def test_damage_in_a_later_piece_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    # Without texts, nothing but the headers is read before the pieces are.
    files = [(f"cats/{number:04d}.jpg", large_jpeg(number)) for number in range(80)]
    {".tar": write_tar_of, ".zip": write_zip_of}[Path(name).suffix](tmp_path / name, files)
    place = tmp_path / name
    place.write_bytes(LATER[name](place.read_bytes()))
    assert len(pieces_in(place, tmp_path / "copies")) > 3
    with pytest.raises(SourceError, match=rf"{name} cannot be read as a {name[-3:]} file of images"):
        listed(place, tmp_path / "copies")


def test_the_processes_of_the_engine_divide_and_read_large_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    monkeypatch.setattr("pipeline.sources.container_index.DIVIDED_BYTES", MEGABYTE)
    (tmp_path / "source").mkdir()
    for number in range(2):
        write_tar_of(tmp_path / "source" / f"{number}.tar", samples(60))
    calls = counted_calls(monkeypatch)
    # Only in this process: the others import them.
    monkeypatch.setattr("pipeline.sources.container_rows.divide", None)
    monkeypatch.setattr("pipeline.sources.container_rows._read", None)
    settings = {"source_uri": str(tmp_path / "source"), "workspace": str(tmp_path / "w"), "dataset_name": "x"}
    extract(settings_from(settings))
    assert calls[:2] == [f"examine_range_file {number:04d}.json" for number in (1, 2)]
    assert len(calls) >= 6


def test_the_processes_of_the_engine_read_many_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The stage itself reads none of them."""
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    source = tmp_path / "source"
    source.mkdir()
    for file in range(4):
        names = [f"{label}/{file}-{number}.jpg" for number in range(10) for label in "ab"]
        content = {name: jpeg(number) + bytes(60_000) for number, name in enumerate(names)}
        write_tar(source / f"{file}.tar", content)
    calls = counted_calls(monkeypatch)
    monkeypatch.setattr("pipeline.sources.container_rows._read", None)  # Only in this process: the others import it.
    searched, unread = [], containers.unread
    monkeypatch.setattr(containers, "unread", lambda *args: searched.append(args) or unread(*args))
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "w"), "dataset_name": "x"})
    extract(settings)
    assert calls == [f"examine_range_file {number:04d}.json" for number in range(1, 5)]
    extract(settings)  # Nothing is left to read.
    assert len(calls) == 4
    assert len(searched) == 2  # The source is walked once for it in each run.


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the calls of the engine of this machine, while they are made."""
    calls: list[str] = []
    real = local.Workers.outcomes

    def counted(workers: local.Workers, task: Task, places: list[str]) -> Iterator[Outcome]:
        calls.extend(f"{task.function.__name__} {Path(place).name}" for place in places)
        return real(workers, task, places)

    monkeypatch.setattr(local.Workers, "outcomes", counted)
    return calls


def test_the_index_of_a_source_needs_no_pandas(tmp_path: Path):
    """Arrow would import it by itself, which takes 25 MB in the process that sorts the index."""
    (tmp_path / "source").mkdir()
    many_tars(tmp_path / "source" / "a", [f"{name}/{number}.jpg" for name in "ab" for number in range(9)], files=2)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.kinds.containers.test_index import listed\n"
        "assert len(listed(Path(sys.argv[1]), Path(sys.argv[2]))) == 18\n"
        "assert 'pandas' not in sys.modules\n"
    )
    place, copies = tmp_path / "source" / "a", tmp_path / "copies"
    listed(place, copies)  # The pieces are read by other processes, which cannot import pandas.
    for path in copies.iterdir():
        if "-" not in path.name:
            path.unlink()
    subprocess.run([sys.executable, "-c", code, place, copies], check=True)


@pytest.mark.parametrize("kind", ["containers", "listing"])
def test_a_command_that_lists_images_with_arrow_needs_no_pandas(kind: str, tmp_path: Path):
    (tmp_path / "source").mkdir()
    values = {"source_uri": EXAMPLES[kind](tmp_path / "source"), "workspace": tmp_path / "w", "dataset_name": "x"}
    arguments = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    code = (
        "import sys\n"
        "from pipeline.__main__ import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert 'pyarrow' in sys.modules\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, "extract", *arguments], check=True)


def test_a_zip_file_that_is_not_divided_takes_no_memory_for_each_file(tmp_path: Path):
    def peak_of(count: int) -> int:
        path = tmp_path / f"{count}.zip"
        write_zip_of(path, [(f"cats/{'a long name' * 90}{number}.jpg", b"image") for number in range(count)])
        form = format_of(path.name)
        assert form
        tracemalloc.start()
        images = form.images(ContainerFile(path, path, lambda name: None), SourceOptions())
        assert sum(1 for _ in images) == count
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    # The directory of the smaller one is already read in several parts.
    assert peak_of(1200) < 1.2 * peak_of(600)
