from pathlib import Path

import pytest
from scipy.io import savemat

from pipeline.errors import SourceError
from pipeline.sources import MISSING, Box, Classes, Found, Listed, Skipped, SourceOptions
from pipeline.sources.stanford_cars import list_images, recognizes
from tests.sources.examples import CARS, stanford_cars, write_annotations, write_images, write_meta

HUMMER, RAM = CARS
NO_LABEL = "has no label: for prediction, not for validation (cars_test_annos_withlabels.mat has them)"


def entries_of(place: Path) -> list[Found]:
    return list(list_images(place, SourceOptions()))


def listed(place: Path) -> list[tuple[str, tuple[str, ...], str]]:
    return [(item.key, item.labels, item.split) for item in entries_of(place) if isinstance(item, Listed)]


def skipped(place: Path) -> dict[str, str]:
    return {item.key: item.reason for item in entries_of(place) if isinstance(item, Skipped)}


def test_classes_follow_the_order_of_the_meta_file(tmp_path: Path):
    write_meta(stanford_cars(tmp_path) / "devkit/cars_meta.mat", ["Z 2012", "A/C 2012"])
    assert entries_of(tmp_path)[0] == Classes(("Z 2012", "A/C 2012"), {})


def test_unlabeled_test_images_are_skipped_and_no_split_is_stated(tmp_path: Path):
    assert listed(stanford_cars(tmp_path)) == [
        ("cars_train/00001.jpg", (RAM,), ""),
        ("cars_train/00002.jpg", (HUMMER,), ""),
        ("cars_train/00003.jpg", (HUMMER,), ""),
    ]
    assert skipped(tmp_path) == {"cars_test/00001.jpg": NO_LABEL, "cars_train/x.jpg": "not in the annotations"}


@pytest.mark.parametrize("folder", ["devkit", "."])
def test_labeled_test_images_become_the_validation_split(folder: str, tmp_path: Path):
    stanford_cars(tmp_path)
    write_annotations(tmp_path / folder / "cars_test_annos_withlabels.mat", [(1, 1, 24, 16, 1, "00001.jpg")])
    images = listed(tmp_path)
    assert images[0] == ("cars_test/00001.jpg", (HUMMER,), "validation")
    assert [split for _, _, split in images[1:]] == ["train"] * 3


def test_labels_of_missing_test_images_state_no_split(tmp_path: Path):
    stanford_cars(tmp_path)
    (tmp_path / "cars_test/00001.jpg").unlink()
    (tmp_path / "cars_test").rmdir()
    write_annotations(tmp_path / "cars_test_annos_withlabels.mat", [(1, 1, 24, 16, 1, "00001.jpg")])
    assert {split for _, _, split in listed(tmp_path)} == {""}


def test_boxes_are_converted_to_zero_based_coordinates(tmp_path: Path):
    stanford_cars(tmp_path)
    boxes = {item.key: item.boxes for item in entries_of(tmp_path) if isinstance(item, Listed)}
    assert boxes["cars_train/00002.jpg"] == (Box(0, 0, 24, 16, HUMMER),)
    assert boxes["cars_train/00001.jpg"] == (Box(38, 115, 569, 375, RAM),)


def test_an_annotated_image_without_a_file_is_listed_as_missing(tmp_path: Path):
    stanford_cars(tmp_path)
    sizes = {item.key: item.size for item in entries_of(tmp_path) if isinstance(item, Listed)}
    assert sizes["cars_train/00003.jpg"] == MISSING
    assert sizes["cars_train/00001.jpg"] > 0


@pytest.mark.parametrize("devkit", ["", "devkit", "car_devkit/devkit"])
@pytest.mark.parametrize("below", ["", "cars_train/"])
def test_common_layouts_of_copies_are_recognized_and_listed(devkit: str, below: str, tmp_path: Path):
    write_images(tmp_path, f"cars_train/{below}00001.jpg")
    write_meta(tmp_path / devkit / "cars_meta.mat")
    write_annotations(tmp_path / devkit / "cars_train_annos.mat", [(1, 1, 24, 16, 2, "00001.jpg")])
    assert recognizes(tmp_path)
    assert listed(tmp_path) == [(f"cars_train/{below}00001.jpg", (RAM,), "")]


@pytest.mark.parametrize("lost", ["devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_train"])
def test_an_incomplete_copy_is_not_recognized(lost: str, tmp_path: Path):
    stanford_cars(tmp_path)
    (tmp_path / lost).rename(tmp_path / "elsewhere")
    assert not recognizes(tmp_path)


@pytest.mark.parametrize("number", [0, 3])
def test_a_class_missing_in_the_meta_file_is_refused(number: int, tmp_path: Path):
    write_annotations(stanford_cars(tmp_path) / "devkit/cars_train_annos.mat", [(1, 1, 24, 16, number, "00001.jpg")])
    with pytest.raises(SourceError, match=rf"cars_train_annos\.mat .*\(class {number}\).*class \(1 to 2"):
        entries_of(tmp_path)


@pytest.mark.parametrize("name", ["cars_meta.mat", "cars_train_annos.mat"])
@pytest.mark.parametrize("content", [b"", b"junk" * 100, b"<html>" * 200])
def test_a_file_that_is_not_in_matlab_format_is_refused(name: str, content: bytes, tmp_path: Path):
    (stanford_cars(tmp_path) / "devkit" / name).write_bytes(content)
    with pytest.raises(SourceError, match=rf"{name} cannot be read \(.*download it again"):
        entries_of(tmp_path)


def test_a_file_with_other_variables_is_refused(tmp_path: Path):
    savemat(stanford_cars(tmp_path) / "devkit/cars_train_annos.mat", {"annotations": [1, 2]})
    with pytest.raises(SourceError, match=r"cars_train_annos\.mat does not have the format of the devkit"):
        entries_of(tmp_path)
    savemat(tmp_path / "devkit/cars_train_annos.mat", {"other": 1})
    with pytest.raises(SourceError, match="it has no annotations"):
        entries_of(tmp_path)


def test_an_image_with_two_different_annotations_is_refused(tmp_path: Path):
    stanford_cars(tmp_path)
    one, again, other = (
        (1, 1, 24, 16, 1, "00002.jpg"),
        (1, 1, 24, 16, 1, "00002.jpg"),
        (2, 1, 24, 16, 1, "00002.jpg"),
    )
    write_annotations(tmp_path / "devkit/cars_train_annos.mat", [one, again])
    assert [item.key for item in entries_of(tmp_path) if isinstance(item, Listed)].count("cars_train/00002.jpg") == 1
    write_annotations(tmp_path / "devkit/cars_train_annos.mat", [one, other])
    with pytest.raises(SourceError, match=r"lists '00002\.jpg' twice, with different annotations"):
        entries_of(tmp_path)
