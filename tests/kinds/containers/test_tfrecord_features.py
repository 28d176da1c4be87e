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


TEXT, NUMBER = "image/class/text", "image/class/label"


@pytest.mark.parametrize("unnamed", [{TEXT: b""}, {}], ids=["an empty text", "no text"])
@pytest.mark.parametrize("files", [1, 2])
def test_labels_of_which_some_are_texts_and_some_are_numbers_are_refused(
    unnamed: dict[str, Any], files: int, tmp_path: Path, copies: str
):
    """The number 3 would be another class than cat."""
    named = [{"image/encoded": jpeg(n), TEXT: b"cat", NUMBER: 3} for n in range(2)]
    others = [{"image/encoded": jpeg(2), **unnamed, NUMBER: 3}]
    write(tmp_path, *named, *others * (files == 1))
    if files == 2:
        write(tmp_path, *others, name="b.tfrecord")
    with pytest.raises(
        SourceError,
        match=r"a\.tfrecord has the label 'cat' in image/class/text, but .*[ab]\.tfrecord has the label '3' in "
        r"image/class/label, without a text: one class would become two\. Name one of these features in label_column",
    ):
        Found(tmp_path, copies)
    assert list(Found(tmp_path, copies, label_column=NUMBER).labels.values()) == [("3",)] * 3
    assert list(Found(tmp_path, copies, label_column=TEXT).labels.values()) == [("cat",)] * 2


def test_the_boxes_of_a_source_have_labels_of_one_form(tmp_path: Path, copies: str):
    sides = {f"image/object/bbox/{side}": [0.25, 0.5] for side in ("xmin", "ymin", "xmax", "ymax")}
    image = {"image/encoded": jpeg(1), "image/width": 10, "image/height": 10, TEXT: b"street", **sides}
    texts, numbers = "image/object/class/text", "image/object/class/label"
    place = write(tmp_path, {**image, texts: [b"cat", b""], numbers: [3, 3]}, {**image, numbers: [3, -1]})
    message = f"the label 'cat' in {texts}, but .* has the label '3' in {numbers}, without"
    with pytest.raises(SourceError, match=message):
        Found(place, copies)
    found = Found(place, copies, label_column=numbers)
    assert [[box.label for box in image.boxes] for image in found.images.values()] == [["3", "3"], ["3"]]


def test_a_negative_number_is_no_label(tmp_path: Path, copies: str):
    records = [{"image/encoded": jpeg(n), TEXT: b"", NUMBER: n - 1} for n in range(3)]
    found = Found(write(tmp_path, *records), copies)
    assert (list(found.labels.values()), list(found.skipped.values())) == ([("0",), ("1",)], ["no label"])
    records = [{"image/encoded": jpeg(n), "label": n - 1} for n in range(3)]
    found = Found(write(tmp_path, *records), copies)
    assert (list(found.labels.values()), list(found.skipped.values())) == ([("0",), ("1",)], ["no label"])


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("0:daisy\n1:rose\n2:tulip\n", ("daisy", "rose", "tulip")),  # As TF-Slim writes them.
        ("2: tulip\r\n1: rose\r\n", ("rose", "tulip")),
        ("\ufeff1:daisy\r\n2:rose\r\n", ("daisy", "rose")),  # As Notepad writes them.
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


def test_a_feature_that_some_records_lack_is_empty_there(tmp_path: Path, copies: str, monkeypatch: pytest.MonkeyPatch):
    """Many programs write no feature for a value that is missing."""
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    records: list[dict[str, Any]] = [{"image": jpeg(n) + bytes(90_000), "label": b"cat"} for n in range(40)]
    place = write(tmp_path, {**records[0], "patient": b"p1", "part": b"val"}, *records[1:])
    found = Found(place, copies, group_column="patient", split_column="part")
    assert len(list(Path(copies).glob("*.arrow"))) > 3  # In most pieces, no record has them.
    assert [(image.group, image.split) for image in found.images.values()] == [("p1", "validation"), *[("", "")] * 39]
    message = r"'patiant', but no record with an image in .*\(image, label, part, patient\)"
    with pytest.raises(SourceError, match=message):
        Found(place, copies, group_column="patiant")
