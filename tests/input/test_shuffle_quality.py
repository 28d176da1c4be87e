import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import Dataset, load
from pipeline.errors import DatasetError, SettingsError
from pipeline.input import BatchOptions, training_batches
from pipeline.input.order import order_of_training
from pipeline.input.shuffle_quality import (
    beginning_of,
    class_distance,
    format_shuffle_quality,
    meet_again,
    shuffle_quality,
    shuffled_class_distances,
)
from pipeline.records.format import read_image
from pipeline.records.tfrecord import read_records
from tests.published import publish

SIDE = 8
KNOWN = {
    # labels in the order of training, batch size -> distance
    "each batch as the whole": ([0, 1, 0, 1, 0, 1], 2, 0.0),
    "sorted by class": ([0, 0, 0, 1, 1, 1], 3, 0.5),
    "sorted, rare class": ([0, 0, 0, 0, 0, 0, 1, 1], 2, (3 * 0.25 + 0.75) / 4),
    "four classes, one a batch": ([3, 3, 1, 1, 0, 0, 2, 2], 2, 0.75),
    "one batch": ([0, 1, 1, 2], 8, 0.0),
    "a short last batch": ([0, 1, 1, 0, 0], 2, (0.1 + 0.1 + 0.4) / 3),
    "a label that no example has": ([0, 2, 0, 2], 2, 0.0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_class_distance_of_known_orders(name: str):
    labels, batch_size, distance = KNOWN[name]
    assert class_distance(np.array(labels), batch_size) == pytest.approx(distance)


def test_a_random_order_has_the_ideal_distance_and_a_sorted_order_does_not():
    labels = np.random.default_rng(1).permutation(np.arange(20_000) % 10)
    ideal = shuffled_class_distances(labels, 64, seed=0)
    assert class_distance(labels, 64) == pytest.approx(ideal.mean(), rel=0.05)
    assert ideal.mean() == pytest.approx(0.15, abs=0.01)
    assert class_distance(np.sort(labels), 64) == pytest.approx(0.9, abs=0.01)


MATES = {
    # order of one epoch, order of the next, batch size -> ratio to chance
    "the same order twice": ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], 2, 5.0),
    "the same batches, in another order": ([0, 1, 2, 3, 4, 5], [5, 4, 1, 0, 3, 2], 2, 5.0),
    "none meet again": ([0, 1, 2, 3, 4, 5], [0, 2, 4, 1, 3, 5], 2, 0.0),
    "one pair of three": ([0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 3, 5], 2, 5 / 3),
    "one batch": ([0, 1, 2], [2, 1, 0], 4, 1.0),
    # One of two pairs meets again. By chance, 2 * 2 / 10 of them would.
    "a short last batch": ([0, 1, 2, 3, 4], [1, 0, 4, 2, 3], 2, 1 / 0.4),
}


@pytest.mark.parametrize("name", MATES)
def test_meet_again_of_known_orders(name: str):
    first, second, batch_size, times = MATES[name]
    assert meet_again(np.array(first), np.array(second), batch_size) == pytest.approx(times)


def test_meet_again_of_random_orders_is_that_of_chance():
    random = np.random.default_rng(1)
    assert meet_again(random.permutation(20_000), random.permutation(20_000), 64) == pytest.approx(1, abs=0.1)


# --- a dataset --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 images in three classes and twelve shards, more than are read at once. The red of an image is its number."""
    root = tmp_path_factory.mktemp("published")
    for number in range(80):
        path = root / "source" / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIDE + 3, SIDE), (number, 0, 0)).save(path)
    return Path(str(publish(root / "source", root / "workspace", num_shards=12)))


def settings_of(**values: object) -> Settings:
    return settings_from({"batch_size": 8, **values})


def red_of_each(folder: Path, dataset: Dataset) -> list[int]:
    """Return the red of the training images, in the order of the shards."""
    records = (record for shard in dataset.splits["train"].shards for record in read_records(folder / shard.name))
    names = (read_image(record, dataset.records).filename.decode() for record in records)
    return [int(Path(name).stem) for name in names]


def trained_on(folder: Path, options: BatchOptions, epochs: int) -> list[int]:
    """Return the red of the images that training sees, without padding."""
    batches = training_batches(folder, options, epochs=epochs).as_numpy_iterator()
    return [
        int(image[SIDE // 2, SIDE // 2, 0])
        for images, _, weights in batches
        for image, weight in zip(images, weights, strict=True)
        if weight
    ]


@pytest.mark.parametrize("shuffle_bytes", [1, 1500, 10**6])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_measured_order_is_the_order_of_training(published: Path, shuffle_bytes: int, seed: int):
    dataset = load(published)
    options = BatchOptions(image_size=SIDE, batch_size=8, seed=seed, crop="whole", shuffle_bytes=shuffle_bytes)
    reds = red_of_each(published, dataset)
    order = list(order_of_training(published, dataset, options, epochs=3).as_numpy_iterator())
    assert [reds[number] for number in order] == trained_on(published, options, epochs=3)
    assert sorted(order[: len(reds)]) == list(range(len(reds)))


def test_the_result_for_a_dataset(published: Path):
    examples = load(published).splits["train"].examples
    result = shuffle_quality(published, settings_of(shuffle_megabytes=2))
    assert (result["examples"], result["batch_size"], result["shuffle_megabytes"]) == (examples, 8, 2)
    assert result["shuffle_examples"] == examples
    none, everything = result["buffers"]
    assert (none["examples"], none["holds_all"]) == (1, False)
    assert (everything["examples"], everything["holds_all"]) == (examples, True)
    assert none["meet_again"] > 2 > everything["meet_again"]
    assert result["enough_megabytes"] == 1
    json.dumps(result)


def test_a_batch_of_all_examples_needs_no_buffer(published: Path):
    result = shuffle_quality(published, settings_of(batch_size=100))
    assert result["enough_megabytes"] == 0
    assert format_shuffle_quality(result).endswith("no buffer is needed: shuffle_megabytes=1 is enough")


def some_result(**values: Any) -> dict[str, Any]:
    buffers = [
        {"examples": examples, "megabytes": examples / 10, "class_distance": 0.2, "meet_again": 9.0, "holds_all": last}
        for examples, last in ((1, False), (256, False), (300, True))
    ]
    result = {"examples": 300, "batch_size": 8, "shuffle_megabytes": 26, "shuffle_examples": 256}
    return {**result, "ideal_class_distance": 0.15, "buffers": buffers, "enough_megabytes": 32, **values}


@pytest.mark.parametrize(
    ("enough", "last_line"),
    [
        (32, "shuffle_megabytes=32 is enough"),
        (0, "no buffer is needed: shuffle_megabytes=1 is enough"),
        (None, "even shuffle_megabytes=65536 is not enough: build the dataset again, which shuffles it"),
    ],
)
def test_the_result_is_formatted_as_a_table(enough: int | None, last_line: str):
    *_, none, as_set, everything, _, _, _, last = format_shuffle_quality(
        some_result(enough_megabytes=enough)
    ).splitlines()
    assert none.split() == ["1", "0.1", "|", "0.200", "|", "9.0", "no", "buffer"]
    assert as_set.endswith("9.0  shuffle_megabytes=26, as set")
    assert everything.endswith("9.0  all")
    assert last == last_line


def test_a_set_buffer_that_holds_all_examples_is_marked_as_both():
    result = some_result(shuffle_examples=300)
    assert format_shuffle_quality(result).splitlines()[-5].endswith("all, shuffle_megabytes=26, as set")


@pytest.mark.parametrize("most", [1, 5, 40, 10**6])
def test_only_the_first_shards_of_a_large_dataset_are_measured(published: Path, most: int):
    dataset = load(published)
    whole, split = dataset.splits["train"], beginning_of(dataset, most).splits["train"]
    assert split.shards == whole.shards[: len(split.shards)]
    assert split.examples == sum(shard.examples for shard in split.shards)
    assert split.examples <= most or len(split.shards) == 1
    assert len(split.shards) == len(whole.shards) or split.examples + whole.shards[len(split.shards)].examples > most


def test_left_out_examples_and_settings_are_logged(
    published: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    monkeypatch.setattr("pipeline.input.shuffle_quality.MAX_EXAMPLES", 30)
    result = shuffle_quality(published, settings_of(balanced=True, crop="whole"))
    assert result["examples"] <= 30
    assert f"of 12 training shards: {result['examples']} of " in caplog.text
    assert "balanced is ignored" in caplog.text


@pytest.mark.parametrize(
    ("values", "is_logged"),
    [
        ({"crop": "random_resized"}, False),
        ({}, True),
        ({"crop": "whole", "cache": "off"}, False),
        ({"cache": "memory"}, True),
    ],
)
def test_a_cache_that_shuffles_later_epochs_is_logged(
    published: Path, caplog: pytest.LogCaptureFixture, values: dict[str, str], is_logged: bool
):
    caplog.set_level("INFO")
    shuffle_quality(published, settings_of(**values))
    assert ("later epochs are shuffled completely" in caplog.text) is is_logged


def test_a_batch_size_of_1_and_a_missing_dataset_are_refused(published: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match=r"batch_size must be at least 2 to measure the order, got 1"):
        shuffle_quality(published, settings_of(batch_size=1))
    with pytest.raises(DatasetError, match="contains no dataset"):
        shuffle_quality(tmp_path, settings_of())


def test_a_dataset_with_one_example_is_refused(published: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = load(published)
    empty = replace(dataset.splits["train"], examples=1)
    monkeypatch.setattr("pipeline.dataset.manifest.load", lambda _: replace(dataset, splits={"train": empty}))
    with pytest.raises(DatasetError, match="holds 1 training examples: an order needs at least two"):
        shuffle_quality(published, settings_of())


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "shuffle-quality", *arguments], capture_output=True, text=True
    )


@pytest.mark.long
def test_the_command_prints_the_result_as_json(published: Path):
    done = command(str(published), "--json", "--set", "batch_size=8", "--set", "shuffle_megabytes=3")
    result = json.loads(done.stdout)
    assert done.returncode == 0
    assert (result["dataset"], result["shuffle_megabytes"]) == (str(published), 3)
    prefixes = ("loading TensorFlow", "these are the orders with cache=off", "labels: ", "orders of training: ")
    assert [line for line in done.stderr.splitlines() if not line.startswith(prefixes)] == []


def test_the_command_prints_an_error_as_one_line(tmp_path: Path):
    done = command(str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == f"error: {tmp_path / 'none'} is not a folder: name the folder of a version, which contains dataset.json\n"
    )
