"""The files for TensorFlow Datasets, as far as tests/records/test_readers.py does not test them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.dataset.manifest import Dataset, load
from pipeline.dataset.tfds_metadata import class_names, tfds_files
from pipeline.records.format import RecordFormat
from tests.published import publish_case

AWKWARD = ("", " ", "\u3000", "\n", "\r", "\r\n", "\t", "\u2028", "\x85", "\udcff", "#", "\\")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load(publish_case("keep", tmp_path_factory.mktemp("keep"))[0])


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("red rose", "red rose"),
        ("菊 #2, \\n", "菊 #2, \\n"),
        (" rose\t", r"\u0020rose\u0009"),
        (" ", r"\u0020"),
        ("red\nrose", r"red\u000arose"),
        ("red\r\nrose", r"red\u000d\u000arose"),
        (os.fsdecode(b"caf\xe9"), r"caf\udce9"),
    ],
)
def test_a_name_is_the_label_escaped_if_a_line_cannot_hold_it(dataset: Dataset, label: str, name: str):
    assert class_names(replace(dataset, labels=("a", label))) == ["a", name]


def write(folder: Path, dataset: Dataset) -> None:
    for name, content in tfds_files(dataset).items():
        (folder / name).write_bytes(content)


def test_ids_from_1_reserve_a_name_for_0(dataset: Dataset):
    records = RecordFormat(label_offset=1)
    assert class_names(replace(dataset, labels=("a", "b"), records=records)) == ["background", "a", "b"]


@pytest.mark.parametrize(
    ("labels", "offset"), [(("a\n", "a\\u000a"), 0), (("background", "a"), 1)], ids=["escaped", "background"]
)
def test_names_that_are_not_unique_are_left_out(dataset: Dataset, tmp_path: Path, labels: tuple[str], offset: int):
    """TFDS would refuse them in a thread without reporting the error, and name the classes wrongly."""
    write(tmp_path, replace(dataset, labels=labels, records=RecordFormat(label_offset=offset)))
    assert {path.name for path in tmp_path.iterdir()} == {"features.json", "dataset_info.json"}


def test_tensorflow_datasets_reads_every_name_back(dataset: Dataset, tmp_path: Path):
    from tensorflow_datasets import features

    labels = (label for odd in AWKWARD for label in (f"{odd}a", f"b{odd}c", f"d{odd}"))
    awkward = replace(dataset, labels=tuple(dict.fromkeys(labels)))
    write(tmp_path, awkward)
    read = features.FeaturesDict.from_config(tmp_path)
    assert read["image"]["class"]["label"].names == class_names(awkward)


def test_box_ids_have_the_same_names(dataset: Dataset, tmp_path: Path):
    records = RecordFormat(feature_keys="plain", boxes=True)
    write(tmp_path, replace(dataset, records=records, features=records.features()))
    class_file, box_file = tmp_path / "class.labels.txt", tmp_path / "box_class.labels.txt"
    assert class_file.read_bytes() == box_file.read_bytes() == "".join(f"{name}\n" for name in dataset.labels).encode()


def test_nothing_is_written_for_compressed_shards(dataset: Dataset, tmp_path: Path):
    write(tmp_path, replace(dataset, records=RecordFormat(compression="gzip")))
    assert list(tmp_path.iterdir()) == []
