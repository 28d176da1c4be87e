"""The features of TFRecord files of other programs: they are read, or the reason names what to set."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SourceError
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


@pytest.mark.parametrize(("feature", "options"), [("target", {}), ("label", {"label_column": "kind_of"})])
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


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("0:daisy\n1:rose\n2:tulip\n", ("daisy", "rose", "tulip")),  # As TF-Slim writes them.
        ("2: tulip\r\n1: rose\r\n", ("rose", "tulip")),
        ("0:daisy\nrose\ntulip\n", ("0:daisy", "rose", "tulip")),
        ("0:daisy\n0:rose\n0:tulip\n", ("0:daisy", "0:rose", "0:tulip")),
    ],
)
def test_the_lines_of_a_label_file_may_have_numbers(lines: str, names: tuple[str, ...], tmp_path: Path, copies: str):
    (tmp_path / "labels.txt").write_bytes(lines.encode())
    found = Found(write(tmp_path, {"image": jpeg(1), "label": 1}, {"image": jpeg(2), "label": 2}), copies)
    assert found.classes == names
    assert list(found.labels.values()) == [(name,) for name in names[-2:]]


def test_a_number_that_no_line_of_the_label_file_has_is_named(tmp_path: Path, copies: str):
    (tmp_path / "labels.txt").write_text("0:daisy\n2:rose\n")
    with pytest.raises(SourceError, match="a label is 1, but none of the 2 lines of the label file has this number"):
        Found(write(tmp_path, {"image": jpeg(1), "label": 1}), copies)


@pytest.mark.parametrize("feature", ["image/encoded", "image"])
def test_a_record_with_an_empty_image_holds_images(feature: str, tmp_path: Path, copies: str):
    place = write(tmp_path, {feature: b"", "label": b"cat"}, {feature: jpeg(1), "label": b"dog"})
    found = Found(place, copies, kind="auto")
    assert [image.size for image in found.images.values()] == [0, len(jpeg(1))]
