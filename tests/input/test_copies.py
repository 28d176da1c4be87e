"""Batches from a bucket's shards: the same as from local files, and nothing is fetched twice."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.build import build
from pipeline.config import settings_from
from pipeline.dataset import load
from pipeline.errors import StorageError
from pipeline.input import images, order_of_need, training_batches, validation_batches
from pipeline.shard_cache import ShardCache, remote_shards
from pipeline.shard_reader import ShardReader
from pipeline.storage import BucketPath, Place
from tests.conftest import jpeg
from tests.fake_gcs import FakeGcs

REMOTE = BucketPath("bucket", "published")


@pytest.fixture(scope="module", params=["none", "gzip"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 60 images in 12 training shards: more than are read at once."""
    root = tmp_path_factory.mktemp("published")
    for number in range(60):
        path = root / "source" / "abc"[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    values = {"source_uri": str(root / "source"), "workspace": str(root / "w"), "num_shards": 12}
    return Path(build(settings_from({**values, "compression": request.param}))["dataset"])


def epoch(folder: Place, local: Path, number: int, reader: ShardReader | None) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """All batches of an epoch, those of its validation last."""
    dataset = load(local)
    batches = training_batches(
        folder, dataset, epoch=number, image_size=32, batch_size=7, shuffle_bytes=1000, seed=3, reader=reader
    )
    return [*batches, *validation_batches(folder, dataset, image_size=32, batch_size=7, reader=reader)]


def reader_of(cache: Path, local: Path, gigabytes: float = 1.0) -> ShardReader:
    dataset = load(local)
    shards = remote_shards(REMOTE, dataset)
    order = order_of_need(dataset, 3, range(1, 4))
    return ShardReader(ShardCache(cache, int(gigabytes * 1e9)), shards, order, images.CYCLE, lambda: False)


@pytest.mark.parametrize("gigabytes", [1.0, 1e-6])  # all fit; not even those that are read at once
def test_batches_are_those_of_local_files(gcs: FakeGcs, published: Path, tmp_path: Path, gigabytes: float):
    gcs.put_folder("bucket", "published/", published)
    with reader_of(tmp_path, published, gigabytes) as reader:
        for number in range(1, 4):
            pairs = zip(
                epoch(REMOTE, published, number, reader), epoch(published, published, number, None), strict=True
            )
            for ours, theirs in pairs:
                assert np.array_equal(ours[0], theirs[0])
                assert np.array_equal(ours[1], theirs[1])


def test_every_epoch_after_the_first_reads_the_local_disk_only(gcs: FakeGcs, published: Path, tmp_path: Path):
    gcs.put_folder("bucket", "published/", published)
    with reader_of(tmp_path, published) as reader:
        epoch(REMOTE, published, 1, reader)
        downloads, requests = gcs.requests["download"], gcs.requests.total()
        epoch(REMOTE, published, 2, reader)
        epoch(REMOTE, published, 3, reader)
    names = [path for path in tmp_path.glob("*/[!.]*") if path.stat().st_size]
    assert downloads == len(names)  # an empty one needs no request
    assert gcs.requests.total() == requests


def test_a_fault_ends_the_epoch_and_is_kept_in_words(gcs: FakeGcs, published: Path, tmp_path: Path):
    gcs.put_folder("bucket", "published/", published)
    fault = gcs.fail("corrupt", on="download", matches="train-00003", times=None)
    with reader_of(tmp_path, published) as reader:
        with pytest.raises(tf.errors.OpError):
            epoch(REMOTE, published, 1, reader)
        assert isinstance(reader.failure, StorageError)
        assert "train-00003-of-00012" in str(reader.failure)
    assert fault.fired == 2


def test_without_a_reader_tensorflow_is_given_the_uris(published: Path, monkeypatch: pytest.MonkeyPatch):
    """It reads gs:// by itself, but cannot be pointed at a server of ours: what it would open is looked at."""
    dataset = load(published)

    def records_of(files: list[str] | tf.Tensor, form: object) -> tf.data.Dataset:
        return (
            tf.data.Dataset.from_tensor_slices(files)
            if isinstance(files, list)
            else tf.data.Dataset.from_tensors(files)
        )

    monkeypatch.setattr(images, "records_of", records_of)
    monkeypatch.setattr(images, "_decoder", lambda *_: lambda name: name)
    monkeypatch.setattr(images, "shuffle_elements", lambda *_: 1)
    settings = {"image_size": 32, "batch_size": 100}
    trained = training_batches(REMOTE, dataset, epoch=1, shuffle_bytes=1, seed=0, **settings)
    [names] = trained.as_numpy_iterator()
    assert sorted(names) == [f"{REMOTE}/{shard.name}".encode() for shard in dataset.splits["train"].shards]
    [names] = validation_batches(REMOTE, dataset, **settings).as_numpy_iterator()
    assert list(names) == [f"{REMOTE}/{shard.name}".encode() for shard in dataset.splits["validation"].shards]


def test_the_order_of_need_is_that_of_the_epochs(published: Path):
    dataset = load(published)
    order = order_of_need(dataset, 3, range(1, 3))
    validation = [shard.name for shard in dataset.splits["validation"].shards]
    wanted = [*images.shuffled_names(dataset.splits["train"], 3, 1), *validation]
    wanted += [*images.shuffled_names(dataset.splits["train"], 3, 2), *validation]
    assert list(order) == wanted
