"""Several containers that do not fit each other, or of which one cannot be read."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.errors import SourceError
from pipeline.snapshot.groups import with_groups
from pipeline.sources.detection import find_source
from tests.conftest import jpeg
from tests.kinds.containers.examples import Found, beside, drawn, hub_metadata, records, write_hub, write_tar, write_zip


@pytest.fixture
def copies(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("copies"))


def test_splits_are_not_used_if_none_is_for_training(
    tmp_path: Path, copies: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = write_zip(tmp_path / "speed-test.zip", drawn())
    assert set(Found(place, copies).splits.values()) == {""}
    assert "speed-test.zip names a split that is not used, because no file is for training" in caplog.text
    caplog.clear()
    write_zip(tmp_path / "train_0.zip", {"cats/1.jpg": jpeg(1), "dogs/1.jpg": jpeg(2)})
    assert set(Found(tmp_path, copies).splits.values()) == {"test", "train"}
    assert "names a split" not in caplog.text


@pytest.mark.parametrize("gap", ["no file", "no field"])
def test_an_image_that_lacks_its_label_is_skipped(gap: str, tmp_path: Path, copies: str) -> None:
    labels = {f"images/{number}.jpg": ("cat", "dog")[number % 2] for number in range(6)}
    files = {}
    for number, (key, label) in enumerate(labels.items()):
        files |= {key: jpeg(number), f"images/{number}.json": json.dumps({"label": label}).encode()}
    if gap == "no file":
        del files["images/3.json"]
    else:
        files["images/3.json"] = b'{"width": 3}'
    found = Found(write_tar(tmp_path / "a.tar", files), copies)
    assert found.labels == {key: (label,) for key, label in labels.items() if key != "images/3.jpg"}
    assert found.skipped == {"images/3.jpg": "no label"}


def test_an_archive_with_class_folders_may_stand_beside_one_with_labels(tmp_path: Path, copies: str) -> None:
    write_zip(tmp_path / "a.zip", {"cats/1.jpg": jpeg(1), "dogs/1.jpg": jpeg(2)})
    write_tar(tmp_path / "b.tar", beside({"dogs/2.jpg": jpeg(3)}, ".cls", str.encode))
    found = Found(tmp_path, copies)
    assert found.labels == {"cats/1.jpg": ("cats",), "dogs/1.jpg": ("dogs",), "dogs/2.jpg": ("dogs",)}


@pytest.mark.parametrize(
    ("folders", "warns"),
    [
        ((("part1", "part2"), ("cats", "dogs"), ("cats", "dogs")), True),
        ((("cats", "dogs"), ("",), ("",)), False),
        ((("cats", "dogs"), ("indoors",), ("outdoors",)), False),
    ],
)
def test_archives_that_were_packed_with_their_own_folder_are_named(
    folders: tuple[tuple[str, ...], ...], warns: bool, tmp_path: Path, copies: str, caplog: pytest.LogCaptureFixture
) -> None:
    tops, *inner = folders
    for top, names in zip(tops, inner, strict=True):
        files = {f"{top}/{name}/{top}.jpg".replace("//", "/"): jpeg(number) for number, name in enumerate(names)}
        write_zip(tmp_path / f"{top}.zip", files)
    Found(tmp_path, copies)
    words = "such as 'part1' and 'part2'. Each is in one archive only, and all of them have a folder 'cats': if that"
    assert (words in caplog.text) is warns
    assert ("become the classes" in caplog.text) is warns


def test_labels_with_and_without_the_names_of_classes_are_refused(tmp_path: Path, copies: str) -> None:
    write_hub(tmp_path / "train-0.parquet", {"cats/a.jpg": jpeg(1), "dogs/b.jpg": jpeg(2)}, ["cats", "dogs"])
    table = parquet.read_table(tmp_path / "train-0.parquet")
    parquet.write_table(table.replace_schema_metadata(None), tmp_path / "train-1.parquet")
    with pytest.raises(SourceError, match=r"train-0\.parquet names the classes, but .*train-1\.parquet names none and"):
        Found(tmp_path, copies)
    texts = table.set_column(1, "label", pa.array(["cats", "dogs"])).replace_schema_metadata(None)
    parquet.write_table(texts, tmp_path / "train-1.parquet")
    assert set(Found(tmp_path, copies).labels.values()) == {("cats",), ("dogs",)}


def test_numbers_that_are_names_of_classes_are_labels(tmp_path: Path, copies: str) -> None:
    write_hub(tmp_path / "train-0.parquet", {"7/a.jpg": jpeg(1), "8/b.jpg": jpeg(2)}, ["7", "8"])
    table = parquet.read_table(tmp_path / "train-0.parquet")
    numbers = table.set_column(1, "label", pa.array(["7", "8"])).replace_schema_metadata(hub_metadata(["7", "8"], "x"))
    parquet.write_table(numbers, tmp_path / "train-1.parquet")
    assert set(Found(tmp_path, copies).labels.values()) == {("7",), ("8",)}


def test_an_empty_file_of_records_has_no_images(tmp_path: Path, copies: str) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    (tmp_path / "b.tfrecord").write_bytes(records({"cats/1.jpg": jpeg(1), "dogs/2.jpg": jpeg(2)}))
    assert Found(tmp_path, copies).labels == {"cats/1.jpg": ("cats",), "dogs/2.jpg": ("dogs",)}


def test_groups_are_found_in_the_names_of_images_that_are_not_unique(tmp_path: Path, copies: str) -> None:
    for name in ("a", "b"):
        write_zip(tmp_path / f"{name}.zip", {"cats/p1_0.jpg": jpeg(1), "dogs/p2_0.jpg": jpeg(2)})
    found = Found(tmp_path, copies)
    assert "a.zip/00000000.jpg" in found.images
    groups = {image.key: image.group for image in with_groups(found.images.values(), r"^(p\d)_")}
    assert groups == {f"{name}.zip/0000000{number}.jpg": f"p{number + 1}" for name in ("a", "b") for number in range(2)}


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def damaged(path: Path) -> None:
    path.with_suffix(".parquet").write_bytes(b"PAR1" + 100 * b"\0" + b"PAR1")


def fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [dangling, damaged, fifo])
def test_the_first_container_does_not_decide_alone(
    make: Callable[[Path], None], tmp_path: Path, copies: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make(tmp_path / "a.tar")
    write_tar(tmp_path / "b.tar", {"cats/1.jpg": jpeg(1), "dogs/2.jpg": jpeg(2)})
    assert find_source(tmp_path, "auto").__name__.endswith(".containers")
    if make is damaged:
        with pytest.raises(SourceError, match=r"a\.parquet cannot be read as a parquet file of images"):
            Found(tmp_path, copies)
    else:
        assert len(Found(tmp_path, copies).images) == 2
