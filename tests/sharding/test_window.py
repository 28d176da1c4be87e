"""A window is the newest partitions as one dataset. It holds each example once and copies no shard."""

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from PIL import Image

from pipeline.__main__ import main
from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import name_folder
from pipeline.dataset.index_files import index_name
from pipeline.dataset.manifest import Dataset, images_at, last_version, list_shards, load, require_shards, save
from pipeline.dataset.partitions import Partition, newest_partitions, save_partition
from pipeline.dataset.shard_cache import remote_shards
from pipeline.dataset.shards import Shards
from pipeline.dataset.verify import verify
from pipeline.errors import DatasetError, GateError
from pipeline.records.format import RecordFormat
from pipeline.rendezvous.servers import Server
from pipeline.sharding import window as windows
from pipeline.sharding.window import _difference
from pipeline.storage import BucketPath, Place, objects
from pipeline.training.inputs import ServerData
from standins.fake_gcs import FakeGcs
from tests.dataset.test_dataset_schema import problems
from tests.published import changed, newest_dataset, publish, set_options
from tests.writes import writes

DAYS = {"2026-01-01": range(12), "2026-01-02": range(20, 32), "2026-01-10": range(40, 55)}
"""Dates and the numbers of their images. The color of an image is its number."""
IMAGES = sorted(number for numbers in DAYS.values() for number in numbers)


def put(number: int, path: Path) -> None:
    """Write the image of a number, which is its color."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 9), (number, 4 * number, 0)).save(path)


def make_day(folder: Path, numbers: range) -> None:
    """Write the images of a date and a broken file. The last date has a class that the dates before do not have."""
    for number in numbers:
        put(number, folder / ("zebras" if number >= 50 else "abc"[number % 3]) / f"{number}.png")
    (folder / "a" / "broken.png").write_bytes(b"no image")


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a version of each date, oldest first. Tests must not change it."""
    root = tmp_path_factory.mktemp("dates")
    for day, numbers in DAYS.items():
        make_day(root / "source" / day, numbers)
        publish(root / "source" / "{date}", root / "w", data_date=day, num_shards=2, max_leaked_fraction=1)
    return root / "w"


@pytest.fixture(params=["disk", "bucket"])
def settings(request: pytest.FixtureRequest, on_disk: Path, tmp_path: Path) -> Settings:
    """Settings of a copy of this workspace, with a window of all three dates."""
    place = {"disk": str(tmp_path / "w"), "bucket": "gs://bucket/w"}[request.param]
    if request.param == "disk":
        shutil.copytree(on_disk / "datasets", tmp_path / "w" / "datasets")
    else:
        request.getfixturevalue("gcs").put_folder("bucket", "w/datasets/", on_disk / "datasets")
    return settings_from(
        {"workspace": place, "dataset_name": "images", "local_folder": str(tmp_path / "local"), "window": 3}
    )


def point(settings: Settings, day: str, version: str) -> None:
    save_partition(name_folder(settings), Partition(day, version, time.time_ns()), lambda _: 0)


def remove(place: Place) -> None:
    if isinstance(place, Path):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        return
    for key, _ in [*objects(place)] or [("", None)]:
        (place / key).unlink()


def trained_and_validated(settings: Settings, folder: Place) -> list[list[int]]:
    """Return the numbers of the training and of the validation images, as the input pipeline reads them."""
    values = {"image_size": 32, "batch_size": 4, "epochs": 1, "crop": "whole"}
    data = ServerData(settings.model_copy(update=values), folder, load(folder), Server(), lambda: False)
    with data.open(start=0) as inputs:
        both = [*inputs.training], [*inputs.validation]
    return [numbers(batches) for batches in both]


def numbers(batches: list[tuple[tf.Tensor, ...]]) -> list[int]:
    """Return the numbers of the images, which are their colors, without the images that pad a batch."""
    return [
        int(image[16, 16, 0])
        for images, _, weights, *_ in batches
        for image, weight in zip(images.numpy(), weights.numpy(), strict=True)
        if weight
    ]


def test_a_window_reads_each_example_of_its_dates_once(settings: Settings):
    window = newest_dataset(settings)
    train, validation = trained_and_validated(settings, window)
    assert sorted(train + validation) == IMAGES
    versions = [name_folder(settings) / version for version in load(window).window.values()]
    apart = [trained_and_validated(settings, version) for version in versions]
    assert Counter(train) == sum((Counter(each[0]) for each in apart), Counter())
    if isinstance(window, BucketPath):  # Shards that were read before are not fetched again.
        assert [{shard.copy for shard in remote_shards(window, load(window)).values()}] == [
            {shard.copy for version in versions for shard in remote_shards(version, load(version)).values()}
        ]


def test_records_of_a_window_are_read_by_the_indexes_of_its_versions(settings: Settings):
    window = newest_dataset(settings)
    versions = [name_folder(settings) / version for version in sorted(set(load(window).window.values()))]
    assert list(Shards(window)) == [record for version in versions for record in Shards(version)]
    removed = versions[1] / index_name(load(versions[1]).splits["train"].shards[0].name)
    removed.unlink()
    assert verify(window)["problems"] == [
        f"{window / f'../../{versions[1].name}/index/{removed.name}'} is missing: `index` writes it again"
    ]
    assert main(["index", str(window)]) == 0
    assert removed.is_file()
    assert verify(window)["ok"]


def test_a_window_is_a_dataset_without_shards_of_its_own(settings: Settings):
    window = newest_dataset(settings)
    assert window.parent == name_folder(settings) / "windows"
    names = ["card.html", "dataset.json", "duplicates.jsonl", "rejected.jsonl"]
    assert sorted(path.name for path in window.iterdir()) == names
    dataset = load(window)
    assert problems(json.loads((window / "dataset.json").read_bytes())) == []
    assert verify(window) == {"ok": True, "records": len(IMAGES), "problems": []}
    assert list(dataset.window) == sorted(DAYS, reverse=True)
    assert dataset.labels == ("a", "b", "c", "zebras")
    assert dataset.rejected["count"] == len(DAYS)
    assert (window / "rejected.jsonl").read_bytes().count(b"\n") == len(DAYS)
    together = sum((Counter(split.classes) for split in dataset.splits.values()), Counter())
    assert together == Counter("zebras" if number >= 50 else "abc"[number % 3] for number in IMAGES)


def test_a_window_of_versions_with_many_shards(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    """Lists beside `dataset.json` have the shards of the versions, and those of the window."""
    without = load(newest_dataset(settings))
    remove(name_folder(settings) / "windows")
    for version in without.window.values():
        folder = name_folder(settings) / version
        dataset = load(folder)
        (folder / "dataset.json").unlink()
        save(folder, list_shards(folder, dataset, max_listed=1), {})
    # More than 10,000 real shards would take minutes.
    monkeypatch.setattr(windows, "list_shards", partial(list_shards, max_listed=4))
    window = newest_dataset(settings)
    assert load(window) == without
    content = json.loads((window / "dataset.json").read_bytes())
    assert [listed["shards"] for listed in content["splits"]["train"]["shard_lists"]] == [4, 2]
    assert problems(content) == []
    assert verify(window) == {"ok": True, "records": len(IMAGES), "problems": []}
    require_shards(window, load(window))
    rows = (window / "card.html").read_text("utf-8")
    assert all(day in rows for day in DAYS)


def test_the_same_versions_give_the_same_window_without_a_write(settings: Settings):
    window = newest_dataset(settings)
    before = writes(window.iterdir())
    assert newest_dataset(settings) == window
    point(settings, "2026-01-11", load(window).window["2026-01-10"])
    assert newest_dataset(changed(settings, window=4)) == window  # a date with the images of another one
    assert writes(window.iterdir()) == before
    assert newest_dataset(changed(settings, window=3)) != window  # without the first date


def test_an_existing_window_is_read_and_not_written(gcs: FakeGcs, on_disk: Path):
    gcs.put_folder("bucket", "w/datasets/", on_disk / "datasets")
    settings = settings_from({"workspace": "gs://bucket/w", "dataset_name": "images", "window": 3})
    newest_dataset(settings)
    before = Counter(gcs.requests)
    newest_dataset(settings)
    assert gcs.requests["insert"] == before["insert"]
    assert (
        gcs.requests["download"] == before["download"] + 2 * len(DAYS) + 1
    )  # each partition and its version, and the window


@pytest.mark.parametrize("window", [1, 9])
def test_a_window_of_a_single_version_is_that_version(settings: Settings, window: int):
    newest = load(newest_dataset(settings)).window["2026-01-10"]
    for day in DAYS if window > 1 else ():
        point(settings, day, newest)
    assert newest_dataset(changed(settings, window=window)) == name_folder(settings) / newest


def test_the_last_version_is_never_a_window(settings: Settings):
    newest_dataset(settings)
    found = last_version(name_folder(settings), but="none")
    assert found is not None
    assert not found.window


def test_a_name_without_partitions_is_refused(settings: Settings):
    with pytest.raises(
        DatasetError,
        match=r"no partition of 'other' is published in .*datasets/other, or all are withdrawn: .*bring one back",
    ):
        newest_dataset(changed(settings, dataset_name="other"))


@pytest.mark.parametrize("before", ["gone", "gone after the window was made"])
@pytest.mark.parametrize("window", [1, 3])
def test_a_missing_version_is_named(settings: Settings, before: str, window: int):
    made = newest_dataset(settings)
    version = load(made).window["2026-01-10"]
    if before == "gone":
        remove(made)
    remove(name_folder(settings) / version)
    with pytest.raises(DatasetError, match=f"partition 2026-01-10 is version {version}, .*{version} has no dataset"):
        newest_dataset(changed(settings, window=window))


def test_a_missing_shard_of_a_version_is_named(settings: Settings):
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
        newest_dataset(settings)  # A new window needs the shard, too.


def test_incompatible_versions_are_named(settings: Settings, tmp_path: Path):
    window = load(newest_dataset(settings)).window
    make_day(tmp_path / "source" / "2026-01-12", range(14))
    values = {"data_date": "2026-01-12", "max_leaked_fraction": 1, "prepare": "raw"}
    other = publish(tmp_path / "source" / "{date}", settings.workspace, **values).name
    with pytest.raises(DatasetError) as error:
        newest_dataset(settings)
    for phrase in (
        f"version {other} (partition 2026-01-12)",
        f"version {window['2026-01-10']} (partition 2026-01-10)",
        "pixels is 'raw' in the first and 'encoded' in the second",
        "set window=1",
    ):
        assert phrase in str(error.value)
    assert newest_dataset(changed(settings, window=1)).name == other


SPLIT = {"split_seed": 0, "validation_fraction": 0.2}
DATASET = Dataset("images", "1" * 16, ("a", "b"), {}, RecordFormat(), {}, {}, {}, {}, {}, {}, SPLIT, {})


@pytest.mark.parametrize(
    ("values", "difference"),
    [
        ({}, ""),
        ({"labels": ("a", "b", "c")}, ""),
        ({"labels": ("a",)}, ""),
        ({"labels": ("a", "c")}, "label 1 is 'b' in the first and 'c' in the second"),
        ({"records": RecordFormat(pixels="raw")}, "pixels is 'encoded' in the first and 'raw' in the second"),
        ({"records": RecordFormat(label_offset=1)}, "label_offset is 0 in the first and 1 in the second"),
        ({"settings": {**SPLIT, "split_seed": 1}}, "split_seed is 0 in the first and 1 in the second"),
        (
            {"settings": {**SPLIT, "validation_fraction": 0.5}},
            "validation_fraction is 0.2 in the first and 0.5 in the second",
        ),
        (
            {"settings": {**SPLIT, "test_fraction": 0.1}},
            "test_fraction is 0.0 in the first and 0.1 in the second",
        ),
        ({"settings": {**SPLIT, "check": "header"}, "version": "2" * 16, "software": {"pillow": "1"}}, ""),
    ],
)
def test_the_difference_between_two_versions(values: Mapping[str, Any], difference: str):
    assert _difference(DATASET, replace(DATASET, **values)) == difference


# --- leaks and shared images ------------------------------------------------------------------------------------------


def make_dates(source: Path, kind: str) -> None:
    """Write two dates with equal images. Some of them change sides, or (`cumulative`) the second date has four more."""
    first, second = source / "2026-01-01", source / "2026-01-02"
    for number in range(30, 34) if kind == "cumulative" else ():
        put(number, second / "a" / f"{number}.png")
    for number in range(30):
        label, name = "ab"[number % 2], f"{number // 4}_{number}.png"
        if kind == "stated splits":
            put(number, first / ("validation" if number < 8 else "train") / label / name)
            put(number, second / ("validation" if number >= 20 else "train") / label / name)
        else:
            put(number, first / label / name)
            put(number, second / label / name)


def keep_two_of_training(first: Place, second: Path) -> None:
    """Keep two images of the second date that are training images of the first. The second date holds one back."""
    dataset = load(first)
    found = images_at(first, dataset, "train", range(dataset.splits["train"].examples))
    names = {label: next(name for name, _ in found if name.startswith(label)) for label in "ab"}
    for path in second.glob("*/*.png"):
        if str(path.relative_to(second)) not in names.values():
            path.unlink()


@pytest.fixture(params=["disk", "bucket"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "bucket":
        request.getfixturevalue("gcs")
    return {"disk": str(tmp_path / "w"), "bucket": "gs://bucket/w"}[request.param]


def built(workspace: str, source: Path, kind: str) -> Settings:
    """Build both dates, and return settings of a window of them."""
    make_dates(source, kind)
    first = publish(source / "{date}", workspace, data_date="2026-01-01", num_shards=2)
    if kind == "a tiny date":
        keep_two_of_training(first, source / "2026-01-02")
    grouped = {"group_pattern": r"^(\d+)_"} if kind == "groups" else {}
    publish(source / "{date}", workspace, data_date="2026-01-02", num_shards=2, **grouped)
    return settings_from({"workspace": workspace, "dataset_name": "images", "window": 2})


def stored_images(settings: Settings) -> list[tuple[str, bool, bytes]]:
    """Return the version, whether it is held back, and the stored bytes of each example of all versions."""
    folder = name_folder(settings)
    return [
        (version, split != "train", encoded)
        for version in newest_partitions(name_folder(settings), 9).values()
        for split, held in load(folder / version).splits.items()
        for _, encoded in images_at(folder / version, load(folder / version), split, range(held.examples))
    ]


def leaked(settings: Settings) -> int:
    """Return the number of examples that are held back in one version and in training in another."""
    examples = stored_images(settings)
    trained = {encoded for _, held_back, encoded in examples if not held_back}
    return sum(held_back and encoded in trained for _, held_back, encoded in examples)


@pytest.mark.parametrize("kind", ["stated splits", "groups", "a tiny date"])
def test_a_window_that_trains_on_its_validation_images_is_refused(workspace: str, tmp_path: Path, kind: str):
    settings = built(workspace, tmp_path / "source", kind)
    count, of = leaked(settings), sum(held_back for _, held_back, _ in stored_images(settings))
    assert count
    with pytest.raises(GateError) as error:
        newest_dataset(settings)
    assert f"{count} of {of} " in str(error.value)
    assert "on_leak=continue" in str(error.value)
    assert not [*(name_folder(settings) / "windows").glob("*/dataset.json")]
    window = newest_dataset(changed(settings, on_leak="continue"))
    assert problems(json.loads((window / "dataset.json").read_bytes())) == []
    leaks = load(window).quality["leaks"]
    assert (leaks["images"], leaks["of"]) == (count, of)
    for pair in leaks["names"]:
        assert sorted(name.partition(": ")[0] for name in pair) == ["2026-01-01", "2026-01-02"]
        assert len({name.rpartition("/")[2] for name in pair}) == 1
    assert 1 <= len(leaks["names"]) <= 5
    with pytest.raises(GateError, match=f"{count} of {of} "):
        newest_dataset(settings)  # The gate also checks an existing window.
    assert newest_dataset(changed(settings, max_leaked_fraction=1)) == window


def test_a_window_with_a_group_on_both_sides_is_refused(workspace: str, tmp_path: Path):
    """The hash selects no group of a small date, so the date holds one back that is in training on another date."""
    source, pattern = tmp_path / "source", r"^(\d+)_"
    for number in range(30):
        put(number, source / "2026-01-01" / "ab"[number % 2] / f"{number // 3}_{number}.png")
    first = publish(source / "{date}", workspace, data_date="2026-01-01", num_shards=2, group_pattern=pattern)
    dataset = load(first)
    trained = images_at(first, dataset, "train", range(dataset.splits["train"].examples))
    groups = sorted({name.partition("/")[2].partition("_")[0] for name, _ in trained})[:2]
    for number in range(4):
        put(50 + number, source / "2026-01-02" / "ab"[number % 2] / f"{groups[number // 2]}_{50 + number}.png")
    publish(source / "{date}", workspace, data_date="2026-01-02", num_shards=2, group_pattern=pattern)
    settings = settings_from({"workspace": workspace, "dataset_name": "images", "window": 2})
    assert leaked(settings) == 0
    of = dataset.splits["validation"].examples + 2
    with pytest.raises(GateError, match=rf"2 of {of} .* or share a group with a training image \(2 only by group\), "):
        newest_dataset(settings)
    window = newest_dataset(changed(settings, on_leak="continue"))
    assert problems(json.loads((window / "dataset.json").read_bytes())) == []
    leaks = load(window).quality["leaks"]
    assert (leaks["images"], leaks["only_by_group"], leaks["of"]) == (2, 2, of)
    [(training, other)] = leaks["names"]
    assert re.fullmatch(r"2026-01-01: ./(\d+)_\d+.png 2026-01-02: ./\1_\d+.png", f"{training} {other}")
    assert "Equal images, or images of one group, on both sides" in (window / "card.html").read_text("utf-8")


def test_leaks_of_a_window_need_an_answer(tmp_path: Path):
    settings = changed(built(str(tmp_path / "w"), tmp_path / "source", "stated splits"), on_leak="ask")
    questions: list[str] = []
    with pytest.raises(GateError, match="where a person can be asked"):
        newest_dataset(settings)
    with pytest.raises(GateError, match="a person answered no"):
        newest_dataset(settings, lambda _: False)
    assert not (name_folder(settings) / "windows").exists()
    window = newest_dataset(settings, lambda sentence: not questions.append(sentence))
    assert ["validation and test images are in training too" in sentence for sentence in questions] == [True]
    assert load(window).quality["findings"] == questions


def test_images_of_several_dates_are_counted_and_on_the_card(
    workspace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    settings = built(workspace, tmp_path / "source", "cumulative")
    window = newest_dataset(settings)
    quality = load(window).quality
    assert leaked(settings) == quality["leaks"]["images"] == 0
    assert quality["shared"] == {"images": 30, "examples": 60, "of": 64}
    assert quality["duplicates"] == {"images": 60, "groups": 30}
    notice = "30 images are in several dates of the window. This accounts for 60 of its 64 examples"
    assert notice in caplog.text
    card = (window / "card.html").read_text()
    assert notice in card
    for day, version in load(window).window.items():
        assert re.search(rf"{day}</th><td>{version}</td><td>\d+</td><td>\d+</td>", card)


def test_the_command_line_makes_and_verifies_a_window(settings: Settings, capsys: pytest.CaptureFixture[str]):
    options = set_options(**{name: getattr(settings, name) for name in ("workspace", "dataset_name", "window")})
    assert main(["window", *options, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made == {"dataset": str(newest_dataset(settings)), "partitions": load(newest_dataset(settings)).window}
    assert list(made["partitions"]) == sorted(DAYS, reverse=True)
    assert main(["verify", made["dataset"], "--json"]) == 0
    assert main(["window", *options, "--set", "dataset_name=other"]) == 1
    assert "no partition of 'other'" in capsys.readouterr().err
