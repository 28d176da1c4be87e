"""The number of each example in a training batch is its position in the split."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import Dataset, load
from pipeline.dataset.shard_cache import READ_AT_ONCE, ShardCache, remote_shards
from pipeline.dataset.shard_reader import ShardReader
from pipeline.input import BatchOptions, Server, training_batches
from pipeline.input.augmentation import flipped
from pipeline.input.shares import order_of_need, share_of
from pipeline.records.format import read_image
from pipeline.records.tfrecord import read_records
from pipeline.stages.build import build
from pipeline.storage import BucketPath
from standins.fake_gcs import FakeGcs

OPTIONS = BatchOptions(image_size=32, batch_size=7, shuffle_bytes=2000)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of one color each, a rare class among them, in 4 training shards."""
    root = tmp_path_factory.mktemp("published")
    for number in range(60):
        path = root / "source" / ("rare" if number % 10 == 0 else "many") / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 41), (number, 255 - number, 0)).save(path)
    settings = {"source_uri": str(root / "source"), "workspace": str(root / "workspace"), "num_shards": 4}
    return Path(build(settings_from(settings))["dataset"])


@pytest.fixture(scope="module")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images that are bright on the left."""
    root = tmp_path_factory.mktemp("stripes")
    for number in range(40):
        path = root / "source" / "ab"[number % 2] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (40, 40), (0, 0, number))
        image.paste((255, 255, number), (0, 0, 20, 40))
        image.save(path)
    return Path(build(settings_from({"source_uri": str(root / "source"), "workspace": str(root / "w")}))["dataset"])


def colors(folder: Path, dataset: Dataset) -> list[int]:
    """Return the color of each training image, in the order of the shards."""
    records = (record for shard in dataset.splits["train"].shards for record in read_records(folder / shard.name))
    return [int(read_image(record, dataset.records).filename[-7:-4]) for record in records]


def seen(batches: tf.data.Dataset, weight: float = 1.0) -> Iterator[tuple[int, int]]:
    """Yield the number and the color of each example with that weight."""
    for images, _, weights, _, numbers in batches.as_numpy_iterator():
        assert (numbers.shape, numbers.dtype) == ((7,), np.int64)
        yield from zip(numbers[weights == weight].tolist(), images[weights == weight, 16, 16, 0].tolist(), strict=True)


@pytest.mark.parametrize(
    ("cache", "start"),
    [
        ("off", 0),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("memory", 3), ("off", 3), ("memory", 0), ("disk", 0), ("disk", 3))
        ),
    ],
)
def test_each_number_belongs_to_its_image_and_occurs_once_per_epoch(
    published: Path, tmp_path: Path, cache: str, start: int
):
    dataset = load(published)
    choice = str(tmp_path / "images") if cache == "disk" else cache
    batches = training_batches(published, replace(OPTIONS, cache=choice), epochs=2, start=start, numbered=True)
    of_images = dict(enumerate(colors(published, dataset)))
    real = [*seen(batches)]
    assert all(of_images[number] == color for number, color in [*real, *seen(batches, weight=0.0)])
    if start == 0:
        assert Counter(number for number, _ in real) == dict.fromkeys(of_images, 2)


@pytest.mark.long
def test_all_servers_together_have_every_number(published: Path):
    of_images = dict(enumerate(colors(published, load(published))))
    servers = [Server(index, 3) for index in range(3)]
    shares = [[*seen(training_batches(published, OPTIONS, server=server, numbered=True))] for server in servers]
    assert sorted(pair for share in shares for pair in share) == sorted(of_images.items())


@pytest.mark.long
def test_a_repeated_example_of_a_balanced_epoch_keeps_its_number(published: Path):
    of_images = dict(enumerate(colors(published, load(published))))
    counts = Counter(seen(training_batches(published, replace(OPTIONS, balanced=True), numbered=True)))
    assert all(of_images[number] == color for number, color in counts)
    assert max(counts.values()) > 1


@pytest.mark.long
def test_copies_from_a_bucket_have_the_same_numbers(gcs: FakeGcs, published: Path, tmp_path: Path):
    gcs.put_folder("bucket", "published/", published)
    remote, dataset = BucketPath("bucket", "published"), load(published)
    cache, shards = ShardCache(tmp_path, 10**9), remote_shards(remote, dataset)
    order = order_of_need(share_of(dataset.splits["train"].shards, 7, Server()), OPTIONS.seed, range(1, 2))
    with ShardReader(cache, shards, order, READ_AT_ONCE["train"], 10**9, lambda: False) as reader:
        assert [*seen(training_batches(remote, OPTIONS, reader=reader, numbered=True))] == [
            *seen(training_batches(published, OPTIONS, numbered=True))
        ]


@pytest.mark.long
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("cache", ["off", "memory"])
def test_batches_without_numbers_equal_the_mirrored_batches_with_numbers(stripes: Path, cache: str, flip: bool):
    options = replace(OPTIONS, cache=cache, flip=flip)
    flips: list[bool] = []
    with_numbers = training_batches(stripes, options, epochs=2, numbered=True)
    for ours, theirs in zip(training_batches(stripes, options, epochs=2), with_numbers, strict=True):
        images, labels, weights, mirrored, _ = theirs
        flips += mirrored.numpy().tolist()
        same = zip(ours, (flipped(images, mirrored), labels, weights), strict=True)
        assert all(np.array_equal(*pair) for pair in same)
    assert (0.3 < np.mean(flips) < 0.7) if flip else not any(flips)
