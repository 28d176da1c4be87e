"""Each format of containers: what it reads, and what it says about what it cannot read."""

import gzip
import importlib
import inspect
import io
import json
import logging
import os
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import pipeline.kinds.images.containers
from pipeline.errors import SourceError
from pipeline.records.example import encode
from pipeline.records.tfrecord import frame
from pipeline.sources import Listed, SourceOptions
from pipeline.sources import container_formats as formats_module
from pipeline.sources.container_formats import formats
from pipeline.sources.detection import find_source, images_of, layout_of
from pipeline.sources.split_names import split_of_path
from pipeline.sources.suffixes import has_suffix, suffix_of
from tests.conftest import jpeg
from tests.kinds.containers.examples import (
    FORMS,
    Found,
    beside,
    drawn,
    folder,
    hub_metadata,
    records,
    write_hub,
    write_tar,
    write_zip,
)

IMAGES = {"cats/a.jpg": jpeg(1), "cats/b.jpg": jpeg(2), "dogs/c.jpg": jpeg(3)}


@pytest.fixture
def copies(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("copies"))


def test_each_format_has_an_example():
    names = {each.__name__.rpartition(".")[2] for each in formats()}
    assert names == {form.split()[0].split(",")[0].split(".")[0] for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
class TestContract:
    def test_it_lists_the_images_of_the_folder(self, form: str, tmp_path: Path, copies: str):
        place = FORMS[form](tmp_path, drawn())
        found = Found(place, copies)
        assert {key: found.content(tmp_path, key) for key in found.images} == drawn()
        assert found.labels == {key: (key.split("/")[0],) for key in drawn()}
        assert set(found.splits.values()) == {""}
        assert find_source(place, "auto").__name__ == "pipeline.sources.containers"

    def test_a_second_listing_reads_no_container(
        self, form: str, tmp_path: Path, copies: str, monkeypatch: pytest.MonkeyPatch
    ):
        place = FORMS[form](tmp_path, drawn())
        first = Found(place, copies).items
        for each in formats():
            monkeypatch.setattr(each, "images", None)
        assert Found(place, copies).items == first

    def test_a_file_of_the_index_that_was_removed_is_made_again(self, form: str, tmp_path: Path, copies: str):
        place = FORMS[form](tmp_path, drawn())
        first = Found(place, copies).items
        for path in sorted(Path(copies).iterdir()):
            path.unlink()
            assert Found(place, copies).items == first, path.suffix

    def test_a_file_that_is_cut_off_is_named(self, form: str, tmp_path: Path, copies: str):
        place = FORMS[form](tmp_path, drawn())
        files = [place] if place.is_file() else [path for path in sorted(place.rglob("*")) if path.suffix != ".md"]
        file = next(path for path in files if path.is_file())
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        message = rf"{file.name} cannot be read as a [a-z]+ file of images: .|source_uri .* is not what source_kind"
        with pytest.raises(SourceError, match=message):
            Found(place, copies, kind="containers")


def test_the_folders_of_an_archive_can_be_splits(tmp_path: Path, copies: str):
    files = {"train/cats/a.jpg": jpeg(1), "train/dogs/b.jpg": jpeg(2), "val/cats/c.jpg": jpeg(3), "notes.txt": b""}
    found = Found(write_zip(tmp_path / "a.zip", files), copies)
    assert found.splits == {"train/cats/a.jpg": "train", "train/dogs/b.jpg": "train", "val/cats/c.jpg": "validation"}
    assert found.labels["val/cats/c.jpg"] == ("cats",)
    assert found.skipped == {"a.zip/notes.txt": "not an image by its name"}
    here = {item.key: item for item in images_of(folder(tmp_path / "folder", files), SourceOptions())}
    assert {key: item.labels for key, item in here.items() if isinstance(item, Listed)} == found.labels


@pytest.mark.parametrize("stray", ["packed/top.jpg", "top.jpg"])
@pytest.mark.parametrize("above", ["packed", "p\udcff"])
def test_images_beside_the_classes_of_a_packed_folder_name_no_class(
    stray: str, above: str, tmp_path: Path, copies: str
):
    files = {f"{above}/{key}": content for key, content in IMAGES.items()}
    stray = stray.replace("packed", above)
    found = Found(write_tar(tmp_path / "a.tar", {**files, stray: jpeg(9)}), copies)
    assert found.labels == {key: (key.split("/")[0],) for key in IMAGES}
    assert found.skipped == {"top.jpg": "not in a class folder"}


def test_files_of_systems_in_an_archive_are_skipped(tmp_path: Path, copies: str):
    files = IMAGES | {"__MACOSX/cats/._a.jpg": b"x", "cats/.DS_Store": b"x", "cats/Thumbs.db": b"x", "top.jpg": jpeg(9)}
    found = Found(write_zip(tmp_path / "a.zip", files), copies)
    assert found.labels.keys() == IMAGES.keys()
    assert found.skipped == {
        "a.zip/__MACOSX/cats/._a.jpg": "hidden",
        "a.zip/cats/.DS_Store": "hidden",
        "a.zip/cats/Thumbs.db": "hidden",
        "top.jpg": "not in a class folder",
    }


@pytest.mark.parametrize(("suffix", "content"), [("json", b"{bad"), ("cls", b"\xff")])
def test_a_label_that_cannot_be_read_is_named(suffix: str, content: bytes, tmp_path: Path, copies: str):
    place = write_zip(tmp_path / "a.zip", {"0001.jpg": jpeg(1), f"0001.{suffix}": content})
    with pytest.raises(SourceError, match=rf"0001\.{suffix}, which is beside an image, holds no label: ."):
        Found(place, copies)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_in_a_tar_file_are_whole(form: int, tmp_path: Path, copies: str):
    """The header of a plain file is read in a faster way, which must leave the other ones to `tarfile`."""
    images = {"cats/a.jpg": jpeg(1), f"dogs/{'d' * 90}/{'x' * 90}.jpg": jpeg(2), "cats/é.jpg": jpeg(3)}
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as archive:
        for name, content in images.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    found = Found(tmp_path / "a.tar", copies)
    assert {key: found.content(tmp_path, key) for key in found.images} == images


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a/b.JPG", ".jpg"), ("a.b/c", ""), (".jpg", ""), ("a/..jpg", ""), ("a/.b.jpg", ".jpg"), ("a.", "."), ("", "")],
)
def test_the_suffix_of_a_name_is_that_of_python(name: str, suffix: str):
    assert suffix_of(name) == suffix == os.path.splitext(name)[1].lower()  # noqa: PTH122 - a key, not a path
    assert has_suffix(name.rpartition("/")[2]) == bool(suffix)


@pytest.mark.parametrize(
    ("kind", "target", "reason"),
    [
        (tarfile.SYMTYPE, "/etc/passwd", "a link or another special file in the archive"),
        (tarfile.LNKTYPE, "cats/a.jpg", "a hard link in the archive: pack it with tar --hard-dereference"),
    ],
)
def test_links_in_a_tar_file_are_skipped_by_name(kind: bytes, target: str, reason: str, tmp_path: Path, copies: str):
    place = write_tar(tmp_path / "a.tar", IMAGES)
    with tarfile.open(place, "a") as archive:
        link = tarfile.TarInfo("cats/link.jpg")
        link.type, link.linkname = kind, target
        archive.addfile(link)
    found = Found(place, copies)
    assert found.labels.keys() == IMAGES.keys()
    assert found.skipped == {"a.tar/cats/link.jpg": reason}


def test_names_that_are_not_unique_get_the_container_and_a_number(tmp_path: Path, copies: str):
    write_tar(tmp_path / "a.tar", {"cats/0.jpg": jpeg(1), "cats/1.jpg": jpeg(2)})
    write_tar(tmp_path / "b.tar", {"cats/1.jpg": jpeg(3), "dogs/2.png": jpeg(4)})
    found = Found(tmp_path, copies)
    assert found.labels == {
        "a.tar/00000001.jpg": ("cats",),
        "b.tar/00000000.jpg": ("cats",),
        "cats/0.jpg": ("cats",),
        "dogs/2.png": ("dogs",),
    }
    assert found.content(tmp_path, "b.tar/00000000.jpg") == jpeg(3)


def test_a_name_that_is_no_text_is_kept(tmp_path: Path, copies: str):
    found = Found(write_tar(tmp_path / "a.tar", IMAGES | {"cats/\udcff.jpg": jpeg(5)}), copies)
    assert found.labels["cats/\udcff.jpg"] == ("cats",)


def test_images_without_a_label_beside_them_are_skipped(tmp_path: Path, copies: str):
    files = {"1.jpg": jpeg(1), "1.cls": b"3", "2.jpg": jpeg(2), "3.cls": b"4", "4.jpg": jpeg(4), "4.cls": b" 7\n"}
    found = Found(write_tar(tmp_path / "a.tar", files), copies)
    assert found.labels == {"1.jpg": ("3",), "4.jpg": ("7",)}
    assert found.skipped == {"2.jpg": "no label", "a.tar/3.cls": "not an image by its name"}


def test_a_field_beside_an_image_can_be_chosen(tmp_path: Path, copies: str):
    files = beside(IMAGES, ".json", lambda name: json.dumps({"label": 1, "kinds": [name, "pet"]}).encode())
    found = Found(write_tar(tmp_path / "a.tar", files), copies, label_column="kinds")
    assert found.labels["dogs/c.jpg"] == ("dogs", "pet")


def test_a_tar_file_that_is_cut_off_between_two_images_is_refused(tmp_path: Path, copies: str):
    place = write_tar(tmp_path / "a.tar", IMAGES)
    with tarfile.open(place) as archive:
        end = archive.getmembers()[1].offset
    place.write_bytes(place.read_bytes()[:end])
    with pytest.raises(
        SourceError, match=r"a\.tar cannot be read as a tar file of images: it has no end: it is cut off"
    ):
        Found(place, copies)


def _with_damaged_header(content: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        begin = archive.getmembers()[1].offset
    return content[: begin + 148] + b"x" + content[begin + 149 :]


def _without_last_files(content: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return content[: archive.getmembers()[1].offset + 100]


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (_with_damaged_header, "the header of a file in it is damaged"),
        (_without_last_files, "it has no end: it is cut off"),
        (lambda content: content + content, "more follows after its end"),
    ],
    ids=["header", "cut off", "joined"],
)
def test_no_image_of_a_damaged_tar_file_vanishes(
    damaged: Callable[[bytes], bytes], message: str, is_compressed: bool, tmp_path: Path, copies: str
):
    content = damaged(write_tar(tmp_path / "a.tar", IMAGES).read_bytes())
    (tmp_path / "a.tar").write_bytes(gzip.compress(content) if is_compressed else content)
    with pytest.raises(SourceError, match=message):
        Found(tmp_path / "a.tar", copies)


def test_damage_in_a_compressed_tar_file_is_found(tmp_path: Path, copies: str):
    place = write_tar(tmp_path / "a.tar", IMAGES)
    content = bytearray(gzip.compress(place.read_bytes()))
    content[-8] ^= 1  # The checksum.
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(SourceError, match="CRC"):
        Found(tmp_path / "a.tar.gz", copies)


def test_a_compressed_tar_file_is_named_in_the_log(tmp_path: Path, copies: str, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        Found(write_tar(tmp_path / "a.tar.gz", IMAGES, "w:gz"), copies)
    assert (
        "a.tar.gz is compressed: one process reads it from front to back, and its images are copied to the workspace"
        in caplog.text
    )


def test_a_compressed_tar_file_can_have_any_name(tmp_path: Path, copies: str):
    assert Found(write_tar(tmp_path / "a.tar", IMAGES, "w:xz"), copies).labels.keys() == IMAGES.keys()


def test_an_encrypted_zip_file_is_refused(tmp_path: Path, copies: str):
    place = write_zip(tmp_path / "a.zip", IMAGES)
    content = bytearray(place.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    place.write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.zip cannot be read as a zip file of images: cats/a\.jpg is encrypted"):
        Found(place, copies)


def test_a_zip_file_without_its_beginning_is_refused(tmp_path: Path, copies: str):
    place = write_zip(tmp_path / "a.zip", IMAGES)
    place.write_bytes(place.read_bytes()[-300:])
    with pytest.raises(SourceError, match=r"a\.zip cannot be read as a zip file of images: Bad offset"):
        Found(place, copies, kind="containers")


def test_damage_in_a_zip_file_is_found(tmp_path: Path, copies: str):
    place = write_zip(tmp_path / "a.zip", IMAGES, zipfile.ZIP_STORED)
    content = place.read_bytes()
    place.write_bytes(content.replace(jpeg(2), jpeg(2)[::-1]))
    with pytest.raises(SourceError, match=r"a\.zip cannot be read as a zip file of images: Bad CRC-32"):
        Found(place, copies)


@pytest.mark.parametrize(
    ("key", "split"),
    [
        ("train-00000-of-00012.parquet", "train"),
        ("data/validation-00000-of-00001-abc123.parquet", "validation"),
        ("default/test/0000.parquet", "test"),
        ("flowers-train.tfrecord-00000-of-00002", "train"),
        ("imagenet_val-17.tar", "validation"),
        ("training.zip", "train"),
        ("v1.0-test.zip", "test"),
        ("flowers.val.tar", "validation"),
        ("flowers-1.0-train-00000-of-00012.tar.gz", "train"),
        ("train_000.tar", "train"),
        ("flowers_val_3.tar", "validation"),
        ("default/partial-train/0000.parquet", "train"),
        ("test/train-0.parquet", "test"),
        ("trains.zip", ""),
        ("data-00000-of-00012.parquet", ""),
    ],
)
def test_the_name_of_a_container_can_name_a_split(key: str, split: str):
    assert split_of_path(key) == split


def test_the_splits_and_classes_of_the_hub(tmp_path: Path, copies: str):
    names = ["dogs", "cats", "eels"]
    write_hub(tmp_path / "train-00000-of-00002.parquet", {"cats/a.jpg": jpeg(1)}, names)
    write_hub(tmp_path / "train-00001-of-00002.parquet", {"dogs/b.jpg": jpeg(2)}, names)
    write_hub(tmp_path / "test-00000-of-00001.parquet", {"cats/a.jpg": jpeg(3)}, names)
    found = Found(tmp_path, copies)
    assert found.classes == ("dogs", "cats", "eels")
    assert found.splits == {
        "dogs/b.jpg": "train",
        "test-00000-of-00001.parquet/00000000.jpg": "test",
        "train-00000-of-00002.parquet/00000000.jpg": "train",
    }
    write_hub(tmp_path / "train-00001-of-00002.parquet", {"dogs/b.jpg": jpeg(2)}, names[::-1])
    with pytest.raises(SourceError, match="name different classes, or in another order"):
        Found(tmp_path, copies)


IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
THREE = [{"bytes": jpeg(number), "path": None} for number in range(3)]
VIEWS = pa.array(["a", "b", "c"], pa.string_view())
LAYOUTS: dict[str, tuple[pa.Table, dict[str, str], list[tuple[str, ...]]]] = {
    "numbers without names": (
        pa.table({"image": pa.array(THREE, IMAGE), "label": [3, 4, None]}),
        {},
        [("3",), ("4",)],
    ),
    "texts": (pa.table({"img": pa.array(THREE, IMAGE), "label": ["a", "b", "a"]}), {}, [("a",), ("b",), ("a",)]),
    "another column of labels": (
        pa.table({"image": pa.array(THREE, IMAGE), "fine_label": [0, 1, -1]}).replace_schema_metadata(
            hub_metadata(["x", "y"], "fine_label")
        ),
        {"label_column": "fine_label"},
        [("x",), ("y",)],
    ),
    "whole numbers as floats": (
        pa.table({"image": pa.array(THREE, IMAGE), "label": [0.0, 1.0, None]}).replace_schema_metadata(
            hub_metadata(["x", "y"], "label")
        ),
        {},
        [("x",), ("y",)],
    ),
    "several labels": (
        pa.table({"image": pa.array(THREE, IMAGE), "labels": [[0, 1], [], [1]]}).replace_schema_metadata(
            hub_metadata(["x", "y"], "labels", several=True)
        ),
        {},
        [("x", "y"), ("y",)],
    ),
    "large binary": (
        pa.table({"jpg": pa.array([each["bytes"] for each in THREE], pa.large_binary()), "class": ["a", "b", "c"]}),
        {},
        [("a",), ("b",), ("c",)],
    ),
    "views": (
        pa.table({"jpg": pa.array([each["bytes"] for each in THREE], pa.binary_view()), "class": VIEWS}),
        {},
        [("a",), ("b",), ("c",)],
    ),
    "a struct of views": (
        pa.table(
            {
                "image": pa.array(THREE, pa.struct({"bytes": pa.binary_view(), "path": pa.string_view()})),
                "label": pa.array([["a", "b"], ["b"], ["c"]], pa.list_(pa.string_view())),
            }
        ),
        {},
        [("a", "b"), ("b",), ("c",)],
    ),
    "any name of the bytes": (
        pa.table({"blob": [each["bytes"] for each in THREE], "class": ["a", "b", "c"]}),
        {"path_column": "blob", "kind": "containers"},
        [("a",), ("b",), ("c",)],
    ),
    "no image in a row": (
        pa.table({"image": pa.array([None, *THREE[1:]], IMAGE), "label": ["a", "b", "c"]}),
        {},
        [("b",), ("c",)],
    ),
    "a column of splits": (
        pa.table({"image": pa.array(THREE, IMAGE), "label": ["a", "b", "c"], "split": ["train", "val", "test"]}),
        {},
        [("a",), ("b",), ("c",)],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_usual_layouts_of_columns(layout: str, tmp_path: Path, copies: str):
    table, options, expected = LAYOUTS[layout]
    parquet.write_table(table, tmp_path / "a.parquet")
    found = Found(tmp_path / "a.parquet", copies, **options)
    assert list(found.labels.values()) == expected
    assert len(found.items) - (found.classes is not None) == 3
    assert all(key.endswith(".jpg") for key in found.images)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"image": pa.array(THREE, IMAGE), "kind": ["a", "b", "c"]},
            r"name the column that holds the labels in label_column \(kind\)",
        ),
    ],
)
def test_what_is_missing_in_the_columns_is_named(columns: dict[str, Any], message: str, tmp_path: Path, copies: str):
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=rf"a\.parquet .*{message}"):
        Found(tmp_path / "a.parquet", copies)


def test_a_column_of_paths_beside_the_images_is_named(tmp_path: Path, copies: str):
    columns = {"image": pa.array(THREE, IMAGE), "path": ["1.jpg", "2.jpg", "3.jpg"], "label": ["a", "b", "c"]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="path_column is 'path', which holds string instead of the bytes of images"):
        Found(tmp_path / "a.parquet", copies, path_column="path")


@pytest.mark.parametrize("labels", [["x", "y", "x"], [0, 1, 2], [0.0, 0.5, 1.0]])
def test_a_label_that_is_no_class_of_the_hub_is_named(labels: list[Any], tmp_path: Path, copies: str):
    table = pa.table({"image": pa.array(THREE, IMAGE), "label": labels})
    parquet.write_table(table.replace_schema_metadata(hub_metadata(["x", "y"], "label")), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"a label is .*, but the file names 2 classes"):
        Found(tmp_path / "a.parquet", copies)


def test_sound_in_the_structs_of_the_hub_is_no_image(tmp_path: Path):
    audio = json.dumps({"info": {"features": {"audio": {"_type": "Audio"}}}})
    table = pa.table({"audio": pa.array(THREE, IMAGE), "label": [1, 2, 3]}).replace_schema_metadata(
        {"huggingface": audio}
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    assert find_source(tmp_path / "a.parquet", "auto").__name__ == "pipeline.sources.listing"


def test_a_list_in_a_parquet_file_is_still_a_list(tmp_path: Path, copies: str):
    parquet.write_table(pa.table({"path": ["a.jpg"], "label": ["x"]}), tmp_path / "a.parquet")
    assert find_source(tmp_path / "a.parquet", "auto").__name__ == "pipeline.sources.listing"
    parquet.write_table(pa.table({"age": [1], "label": ["x"]}), tmp_path / "a.parquet")
    message = (
        r"name the column that holds the path in path_column\. If each row is an example itself, set TABLE and LABEL"
    )
    with pytest.raises(SourceError, match=message):
        list(images_of(tmp_path / "a.parquet", SourceOptions(copies=copies)))


def test_memory_does_not_grow_with_a_row_group(tmp_path: Path, copies: str):
    """One row group of 64 MB. Arrow's own memory is measured, which holds the decoded rows."""
    size, rows = 64_000, 1000
    generator = np.random.default_rng(0)
    images = [{"bytes": jpeg(number) + generator.bytes(size), "path": None} for number in range(rows)]
    table = pa.table({"image": pa.array(images, IMAGE), "label": [number % 2 for number in range(rows)]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=rows, compression="none")
    del images, table
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    assert len(Found(tmp_path / "a.parquet", copies).images) == rows
    assert pa.default_memory_pool().max_memory() <= max(peak, before + 40_000_000)


def test_records_of_tenfold_with_pixels_are_refused(tmp_path: Path, copies: str):
    features = {"image/encoded": b"123", "image/format": b"RAW", "image/class/label": 1}
    (tmp_path / "a.tfrecord").write_bytes(frame(encode(features)))
    with pytest.raises(SourceError, match=r"a\.tfrecord .*build that dataset with prepare=keep"):
        Found(tmp_path / "a.tfrecord", copies)


def test_a_changed_file_of_labels_is_read_again(tmp_path: Path, copies: str):
    place = FORMS["tfrecord with a file of labels"](tmp_path, IMAGES)
    assert Found(place, copies).classes == ("cats", "dogs")
    (tmp_path / "label.labels.txt").write_text("kittens\ndogs\n\n")
    assert Found(place, copies).classes == ("kittens", "dogs")
    assert Found(place, copies).labels["cats/a.jpg"] == ("kittens",)
    (tmp_path / "label.labels.txt").write_text("kittens\n")
    with pytest.raises(SourceError, match="a label is 1, but none of the 1 lines of the label file has this number"):
        Found(place, copies)


def test_records_of_a_table_are_no_images(tmp_path: Path):
    (tmp_path / "a.tfrecord").write_bytes(frame(encode({"x": 1.0, "label": 1})))
    with pytest.raises(SourceError, match="is not what source_kind 'auto' looks for"):
        find_source(tmp_path / "a.tfrecord", "auto")


def test_a_folder_with_images_is_a_folder_even_with_an_archive_in_it(tmp_path: Path):
    folder(tmp_path, {f"train/{key}": content for key, content in IMAGES.items()})
    write_zip(tmp_path / "a.zip", IMAGES)
    write_zip(tmp_path / "train" / "a.zip", IMAGES)
    assert find_source(tmp_path, "auto").__name__ == "pipeline.sources.folder"


def test_the_first_shard_can_be_empty(tmp_path: Path):
    for number, content in enumerate((b"", b"", records(IMAGES))):
        (tmp_path / f"train-0000{number}-of-00003.tfrecord").write_bytes(content)
    assert find_source(tmp_path, "auto").__name__ == "pipeline.sources.containers"


def test_a_few_images_beside_containers_are_skipped(tmp_path: Path, copies: str):
    """Data sets of the Hub have pictures for their pages."""
    write_zip(tmp_path / "a.zip", IMAGES)
    write_zip(tmp_path / "b.zip", {"eels/d.jpg": jpeg(4)})
    folder(tmp_path, {"thumbnail.jpg": jpeg(5), "logo.png": jpeg(6), "assets/sample.jpg": jpeg(7)})
    found = Found(tmp_path, copies)
    assert found.labels.keys() == {*IMAGES, "eels/d.jpg"}
    assert found.skipped.keys() == {"thumbnail.jpg", "logo.png", "assets/sample.jpg"}


def test_the_layout_changes_with_a_container(tmp_path: Path):
    place = write_zip(tmp_path / "a.zip", IMAGES)
    before = layout_of(place, SourceOptions())
    assert before == layout_of(place, SourceOptions())
    write_zip(place, IMAGES | {"cats/new.jpg": jpeg(7)})
    assert layout_of(place, SourceOptions()) != before


def test_the_format_in_the_documentation_works_as_written(tmp_path: Path, copies: str):
    """A reader adds the IDX files of MNIST, in one file."""
    text = inspect.getdoc(pipeline.kinds.images.containers)
    assert text
    code = textwrap.dedent("\n".join(line for line in text.split("\n") if line.startswith("    ") or not line))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "idx.py").write_text(code)
    pipeline.kinds.images.containers.__path__.append(str(tmp_path / "own"))
    importlib.invalidate_caches()
    formats_module.formats.cache_clear()
    try:
        pixels = np.random.default_rng(0).integers(0, 255, (5, 28, 28), np.uint8)
        header = np.array([0x803, 5, 28, 28], ">i4").tobytes()
        (tmp_path / "mnist").mkdir()
        (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(bytes(8) + bytes([0, 1, 2, 3, 4]))
        (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        with pytest.raises(SourceError, match=r"t10k-images-idx3-ubyte .* the file of its labels is not beside it"):
            Found(tmp_path / "mnist", copies)
        (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(bytes(8) + bytes([0, 1, 2, 3, 4]))
        found = Found(tmp_path / "mnist", copies)
    finally:
        pipeline.kinds.images.containers.__path__.remove(str(tmp_path / "own"))
        formats_module.formats.cache_clear()
        sys.modules.pop("pipeline.kinds.images.containers.idx", None)
    assert list(found.labels.values()) == [(str(number),) for number in range(5)] * 2
    assert list(found.splits.values()) == ["test"] * 5 + ["train"] * 5
    assert list(found.images)[5] == "train-images-idx3-ubyte/00000000.png"


def test_records_with_several_labels(tmp_path: Path, copies: str):
    features = {"image": jpeg(1), "labels": [b"a", b"b"]}
    (tmp_path / "a.tfrecord").write_bytes(frame(encode(features)) + records(IMAGES))
    assert next(iter(Found(tmp_path / "a.tfrecord", copies).labels.values())) == ("a", "b")


def with_boxes(**others: Any) -> bytes:
    """Return a record with two boxes."""
    features = {"image/encoded": jpeg(1), "image/width": 10, "image/height": 10}
    sides = {f"image/object/bbox/{side}": [0.5, 0.25] for side in ("xmin", "ymin", "xmax", "ymax")}
    return frame(encode(features | sides | {name.replace("__", "/"): value for name, value in others.items()}))


def test_boxes_of_a_record_may_have_texts_alone_and_those_without_a_label_are_left_out(tmp_path: Path, copies: str):
    record = with_boxes(image__object__class__text=[b"cat", b""])
    (tmp_path / "a.tfrecord").write_bytes(record)
    [image] = Found(tmp_path / "a.tfrecord", copies).images.values()
    assert image.labels == ("cat",)
    assert [(box.xmin, box.label) for box in image.boxes] == [(5.0, "cat")]


def test_a_record_with_more_labels_than_boxes_is_refused(tmp_path: Path, copies: str):
    (tmp_path / "a.tfrecord").write_bytes(with_boxes(image__object__class__text=[b"cat", b"dog", b"eel"]))
    with pytest.raises(SourceError, match=r"a record has boxes without image/width, image/height, or all of"):
        Found(tmp_path / "a.tfrecord", copies)


def test_a_vector_of_classes_in_a_record_is_refused(tmp_path: Path, copies: str):
    (tmp_path / "a.tfrecord").write_bytes(frame(encode({"image/encoded": jpeg(1), "label": [0, 1, 0]})))
    with pytest.raises(SourceError, match=r"the label \[0, 1, 0\] looks like a vector with 0 or 1 for each class"):
        Found(tmp_path / "a.tfrecord", copies)
