"""The features of TFRecord files of other programs: they are read, or the reason names what to set."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.records.example import encode
from pipeline.records.tfrecord import frame
from pipeline.sources import containers
from tests.conftest import jpeg
from tests.kinds.containers.examples import Found


@pytest.fixture
def copies(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("copies"))


def write(folder: Path, *records: dict[str, Any], name: str = "a.tfrecord") -> Path:
    path = folder / name
    path.write_bytes(b"".join(frame(encode(each)) for each in records))
    return path


def test_path_column_names_the_feature_of_the_images(tmp_path: Path, copies: str):
    place = write(tmp_path, {"image_data": jpeg(1), "label": b"cat"}, {"image_data": jpeg(2), "label": b"dog"})
    found = Found(place, copies, kind="auto", path_column="image_data")
    assert list(found.labels.values()) == [("cat",), ("dog",)]


def test_without_it_the_reason_names_the_setting_and_the_features(tmp_path: Path, copies: str):
    place = write(tmp_path, {"image_data": jpeg(1), "label": b"cat"}, {"image_data": jpeg(2), "label": b"dog"})
    [reason] = set(Found(place, copies).skipped.values())
    assert reason == "no image: name the feature of the images in path_column (image_data, label)"


def test_a_text_that_begins_as_a_bitmap_is_no_image(tmp_path: Path):
    place = write(tmp_path, {"maker": b"BMW", "label": 1})
    assert not containers.recognizes(place)


@pytest.mark.parametrize(("feature", "options"), [("target", {}), ("label", {"label_column": "lable"})])
def test_without_a_label_the_reason_names_the_setting_and_the_features(
    feature: str, options: dict[str, str], tmp_path: Path, copies: str
):
    place = write(tmp_path, {"image": jpeg(1), feature: b"cat"}, {"image": jpeg(2), feature: b"dog"})
    [reason] = set(Found(place, copies, **options).skipped.values())
    assert reason == f"no label: name the feature of the labels in label_column (image, {feature})"


def test_an_image_whose_label_is_empty_needs_no_advice(tmp_path: Path, copies: str):
    place = write(tmp_path, {"image": jpeg(1), "label": b"cat"}, {"image": jpeg(2), "label": b""})
    assert list(Found(place, copies).skipped.values()) == ["no label"]


def test_an_empty_text_is_no_label(tmp_path: Path, copies: str):
    records = [{"image/encoded": jpeg(n), "image/class/text": b"", "image/class/label": n} for n in range(2)]
    assert list(Found(write(tmp_path, *records), copies).labels.values()) == [("0",), ("1",)]
