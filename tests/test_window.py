"""The newest partitions as one data set: all of their examples once, and no shard copied."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from PIL import Image

from pipeline.__main__ import main
from pipeline.config import Settings, settings_from
from pipeline.dataset import Dataset, last_version, load, require_shards
from pipeline.errors import DatasetError
from pipeline.partitions import Partition, save_partition
from pipeline.records import RecordFormat
from pipeline.servers import Server
from pipeline.shard_cache import remote_shards
from pipeline.storage import BucketPath, Place, objects
from pipeline.training.inputs import open_inputs
from pipeline.verify import verify
from pipeline.window import _difference, newest_dataset
from pipeline.workspace import name_folder
from tests.fake_gcs import FakeGcs
from tests.published import publish
from tests.test_dataset_schema import problems
from tests.writes import writes

DAYS = {"2026-01-01": range(12), "2026-01-02": range(20, 32), "2026-01-10": range(40, 55)}
"""Dates, and the numbers of their images: the colour of an image is its number."""
IMAGES = sorted(number for numbers in DAYS.values() for number in numbers)


def make_day(folder: Path, numbers: range) -> None:
    """The images of a date; the last one has a class that the dates before do not know, one image is none."""
    for number in numbers:
        path = folder / ("zebras" if number >= 50 else "abc"[number % 3]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 9), (number, 4 * number, 0)).save(path)
    (folder / "a" / "broken.png").write_bytes(b"no image")


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a version of each date, oldest first; nobody changes it."""
    root = tmp_path_factory.mktemp("dates")
    for day, numbers in DAYS.items():
        make_day(root / "source" / day, numbers)
        publish(root / "source" / "{date}", root / "w", data_date=day, num_shards=2, max_leaked_fraction=1)
    return root / "w"


@pytest.fixture(params=["disk", "bucket"])
def settings(request: pytest.FixtureRequest, on_disk: Path, tmp_path: Path) -> Settings:
    """Settings of a copy of it, with a window of all three dates."""
    place = {"disk": str(tmp_path / "w"), "bucket": "gs://bucket/w"}[request.param]
    if request.param == "disk":
        shutil.copytree(on_disk / "datasets", tmp_path / "w" / "datasets")
    else:
        request.getfixturevalue("gcs").put_folder("bucket", "w/datasets/", on_disk / "datasets")
    return settings_from({"workspace": place, "local_folder": str(tmp_path / "local"), "window": 3})


def changed(settings: Settings, **values: Any) -> Settings:
    return settings_from({**settings.model_dump(), **values})


def remove(place: Place) -> None:
    if isinstance(place, Path):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        return
    for key, _ in [*objects(place)] or [("", None)]:
        (place / key).unlink()


def trained_and_validated(settings: Settings, folder: Place) -> list[list[int]]:
    """The numbers of the images as the input pipeline reads them."""
    told = {"image_size": 32, "batch_size": 4, "epochs": 1, "crop": "whole"}
    with open_inputs(settings.model_copy(update=told), folder, load(folder), Server(), 0, lambda: False) as inputs:
        both = [*inputs.training], [*inputs.validation]
    return [numbers(batches) for batches in both]


def numbers(batches: list[tuple[tf.Tensor, ...]]) -> list[int]:
    """The numbers of the images, which are their colours, without those that pad."""
    return [
        int(image[16, 16, 0])
        for images, _, weights, *_ in batches
        for image, weight in zip(images.numpy(), weights.numpy(), strict=True)
        if weight
    ]


def test_a_window_trains_all_examples_of_its_dates_once(settings: Settings):
    window = newest_dataset(settings)
    train, validation = trained_and_validated(settings, window)
    assert sorted(train + validation) == IMAGES
    versions = [name_folder(settings) / version for version in load(window).window.values()]
    apart = [trained_and_validated(settings, version) for version in versions]
    assert Counter(train) == sum((Counter(each[0]) for each in apart), Counter())
    if isinstance(window, BucketPath):  # what was read here before is not fetched again
        assert [{shard.copy for shard in remote_shards(window, load(window)).values()}] == [
            {shard.copy for version in versions for shard in remote_shards(version, load(version)).values()}
        ]


def test_it_is_a_data_set_that_holds_no_shard(settings: Settings):
    window = newest_dataset(settings)
    assert window.parent == name_folder(settings) / "windows"
    assert sorted(path.name for path in window.iterdir()) == ["dataset.json", "duplicates.jsonl", "rejected.jsonl"]
    dataset = load(window)
    assert problems(json.loads((window / "dataset.json").read_bytes())) == []
    assert verify(window) == {"ok": True, "records": len(IMAGES), "problems": []}
    assert list(dataset.window) == sorted(DAYS, reverse=True)
    assert dataset.labels == ("a", "b", "c", "zebras")
    assert dataset.rejected["count"] == len(DAYS)
    assert (window / "rejected.jsonl").read_bytes().count(b"\n") == len(DAYS)
    together = sum((Counter(split.classes) for split in dataset.splits.values()), Counter())
    assert together == Counter("zebras" if number >= 50 else "abc"[number % 3] for number in IMAGES)


def test_the_same_versions_are_the_same_window_and_nothing_is_written(settings: Settings):
    window = newest_dataset(settings)
    before = writes(window.iterdir())
    assert newest_dataset(settings) == window
    save_partition(name_folder(settings), Partition("2026-01-11", load(window).window["2026-01-10"], 1))
    assert newest_dataset(changed(settings, window=4)) == window  # a date with the images of another one
    assert writes(window.iterdir()) == before
    assert newest_dataset(changed(settings, window=3)) != window  # without the first date


def test_a_window_that_stands_is_looked_at_and_no_more(gcs: FakeGcs, on_disk: Path):
    gcs.put_folder("bucket", "w/datasets/", on_disk / "datasets")
    settings = settings_from({"workspace": "gs://bucket/w", "window": 3})
    newest_dataset(settings)
    before = Counter(gcs.requests)
    newest_dataset(settings)
    assert gcs.requests["insert"] == before["insert"]
    assert gcs.requests["download"] == before["download"] + 2 * len(DAYS)  # the partitions and what they are


@pytest.mark.parametrize("window", [1, 9])
def test_a_single_version_is_no_window(settings: Settings, window: int):
    newest = load(newest_dataset(settings)).window["2026-01-10"]
    for day in DAYS if window > 1 else ():
        save_partition(name_folder(settings), Partition(day, newest, time.time_ns()))
    assert newest_dataset(changed(settings, window=window)) == name_folder(settings) / newest


def test_no_window_is_the_last_version(settings: Settings):
    newest_dataset(settings)
    found = last_version(name_folder(settings), but="none")
    assert found is not None
    assert not found.window


def test_a_name_without_partitions_is_told(settings: Settings):
    with pytest.raises(DatasetError, match=r"no partition of 'other' is published in .*datasets/other"):
        newest_dataset(changed(settings, dataset_name="other"))


@pytest.mark.parametrize("before", ["gone", "gone after the window was made"])
@pytest.mark.parametrize("window", [1, 3])
def test_a_version_that_is_gone_is_named(settings: Settings, before: str, window: int):
    made = newest_dataset(settings)
    version = load(made).window["2026-01-10"]
    if before == "gone":
        remove(made)
    remove(name_folder(settings) / version)
    with pytest.raises(DatasetError, match=f"partition 2026-01-10 is version {version}, .*{version} holds no data set"):
        newest_dataset(changed(settings, window=window))


def test_a_shard_of_a_version_that_is_gone_is_named(settings: Settings):
    window = newest_dataset(settings)
    dataset = load(window)
    require_shards(window, dataset)
    version = dataset.window["2026-01-02"]
    remove(name_folder(settings) / version / "train-00001-of-00002.tfrecord")
    with pytest.raises(DatasetError, match=rf"{version}/train-00001-of-00002\.tfrecord .*is missing"):
        require_shards(window, dataset)
    [problem] = verify(window)["problems"]
    assert problem.endswith(f"{version}/train-00001-of-00002.tfrecord is missing")
    remove(window)
    with pytest.raises(DatasetError, match=rf"{version}/train-00001-of-00002\.tfrecord .*is missing"):
        newest_dataset(settings)  # nor is one made of it


def test_versions_that_cannot_be_one_data_set_are_named(settings: Settings, tmp_path: Path):
    window = load(newest_dataset(settings)).window
    make_day(tmp_path / "source" / "2026-01-12", range(14))
    values = {"data_date": "2026-01-12", "max_leaked_fraction": 1, "prepare": "raw"}
    other = publish(tmp_path / "source" / "{date}", settings.workspace, **values).name
    with pytest.raises(DatasetError) as error:
        newest_dataset(settings)
    for words in (
        f"version {other} (partition 2026-01-12)",
        f"version {window['2026-01-10']} (partition 2026-01-10)",
        "pixels is 'raw' in the first and 'encoded' in the second",
        "set window=1",
    ):
        assert words in str(error.value)
    assert newest_dataset(changed(settings, window=1)).name == other


DATASET = Dataset("images", "1" * 16, ("a", "b"), {}, RecordFormat(), {}, {}, {}, {}, {}, {}, {"seed": 0}, {})


@pytest.mark.parametrize(
    ("values", "difference"),
    [
        ({}, ""),
        ({"labels": ("a", "b", "c")}, ""),
        ({"labels": ("a",)}, ""),
        ({"labels": ("a", "c")}, "label 1 is 'b' in the first and 'c' in the second"),
        ({"records": RecordFormat(pixels="raw")}, "pixels is 'encoded' in the first and 'raw' in the second"),
        ({"records": RecordFormat(label_offset=1)}, "label_offset is 0 in the first and 1 in the second"),
        ({"settings": {"seed": 1}}, "seed is 0 in the first and 1 in the second"),
        (
            {"settings": {"seed": 0, "validation_fraction": 0.5}},
            "validation_fraction is None in the first and 0.5 in the second",
        ),
        ({"settings": {"seed": 0, "check": "header"}, "version": "2" * 16, "software": {"pillow": "1"}}, ""),
    ],
)
def test_what_keeps_two_versions_apart(values: Mapping[str, Any], difference: str):
    assert _difference(DATASET, replace(DATASET, **values)) == difference


def test_the_command_line_makes_one_and_verifies_it(settings: Settings, capsys: pytest.CaptureFixture[str]):
    options = [option for name in ("workspace", "window") for option in ("--set", f"{name}={getattr(settings, name)}")]
    assert main(["window", *options, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made == {"dataset": str(newest_dataset(settings)), "partitions": load(newest_dataset(settings)).window}
    assert list(made["partitions"]) == sorted(DAYS, reverse=True)
    assert main(["verify", made["dataset"], "--json"]) == 0
    assert main(["window", *options, "--set", "dataset_name=other"]) == 1
    assert "no partition of 'other'" in capsys.readouterr().err
