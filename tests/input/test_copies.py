"""Batches from shards in a bucket equal those from local files, and no shard is fetched twice."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.shard_cache import READ_AT_ONCE, ShardCache, remote_shards
from pipeline.dataset.shard_reader import ShardReader
from pipeline.errors import StorageError
from pipeline.input import BatchOptions, Server, training_batches, validation_batches
from pipeline.input.order import ONLY
from pipeline.input.shares import epoch_order, order_of_need, share_of
from pipeline.stages.build import build
from pipeline.storage import BucketPath, Place
from standins.fake_gcs import FakeGcs
from tests.conftest import jpeg

REMOTE = BucketPath("bucket", "published")


@pytest.fixture(scope="module", params=["none", "gzip"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 60 images in 12 training shards, more than are read at once."""
    root = tmp_path_factory.mktemp("published")
    for number in range(60):
        path = root / "source" / "abc"[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    values = {"source_uri": str(root / "source"), "workspace": str(root / "w"), "num_shards": 12}
    return Path(build(settings_from({**values, "compression": request.param}))["dataset"])


OPTIONS = BatchOptions(image_size=32, batch_size=7, seed=3, shuffle_bytes=1000)


class Readers(NamedTuple):
    train: ShardReader | None = None
    validation: ShardReader | None = None


def batches_of(folder: Place, readers: Readers, epochs: int = 3) -> Iterator[list[tuple[tf.Tensor, ...]]]:
    """Yield all batches of each epoch, with the validation batches last."""
    training = iter(training_batches(folder, OPTIONS, epochs=epochs, reader=readers.train))
    validation = validation_batches(folder, OPTIONS, reader=readers.validation)
    for _ in range(epochs):
        yield [*islice(training, 7), *validation]


@contextmanager
def readers_of(
    cache: Path, local: Path, gigabytes: float = 1.0, epochs: int = 3, server: Server = ONLY
) -> Iterator[Readers]:
    dataset = load(local)
    shards, room = remote_shards(REMOTE, dataset), int(gigabytes * 1e9)
    own = ShardCache(cache, room)
    train = order_of_need(share_of(dataset.splits["train"].shards, 7, server), 3, range(1, epochs + 1))
    held_back = [shard.name for shard in dataset.splits["validation"].shards if shard.examples] * epochs
    with (
        ShardReader(own, shards, train, READ_AT_ONCE["train"], room, lambda: False) as first,
        ShardReader(own, shards, iter(held_back), READ_AT_ONCE["validation"], room, lambda: False) as second,
    ):
        yield Readers(first, second)


@pytest.mark.long
@pytest.mark.parametrize(  # room for all shards, or for fewer than are read at once
    "gigabytes", [1.0, 1e-6]
)
def test_batches_equal_those_of_local_files(gcs: FakeGcs, published: Path, tmp_path: Path, gigabytes: float):
    gcs.put_folder("bucket", "published/", published)
    with readers_of(tmp_path, published, gigabytes) as readers:
        for ours, theirs in zip(batches_of(REMOTE, readers), batches_of(published, Readers()), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.long
def test_every_epoch_after_the_first_reads_only_the_local_disk(gcs: FakeGcs, published: Path, tmp_path: Path):
    gcs.put_folder("bucket", "published/", published)
    with readers_of(tmp_path, published) as readers:
        epochs = batches_of(REMOTE, readers)
        next(epochs)
        downloads, requests = gcs.requests["download"], gcs.requests.total()
        assert len([*epochs]) == 2
    names = [path for path in tmp_path.glob("*/[!.]*") if path.stat().st_size]
    assert downloads == len(names) + 2  # An empty shard needs no request. Each split reads dataset.json.
    assert gcs.requests.total() == requests


@pytest.mark.core
def test_a_failed_download_ends_the_epoch_and_becomes_the_failure_of_the_reader(
    gcs: FakeGcs, published: Path, tmp_path: Path
):
    gcs.put_folder("bucket", "published/", published)
    fault = gcs.fail("corrupt", on="download", matches="train-00003", times=None)
    # With more epochs, another thread could request the same shard again before the failure is known.
    with readers_of(tmp_path, published, epochs=1) as readers:
        with pytest.raises(tf.errors.OpError):
            list(batches_of(REMOTE, readers, epochs=1))
        assert readers.train
        assert isinstance(readers.train.failure, StorageError)
        assert "train-00003-of-00012" in str(readers.train.failure)
    assert fault.fired == 2


@pytest.mark.long
def test_balanced_batches_equal_those_of_local_files(gcs: FakeGcs, published: Path, tmp_path: Path):
    gcs.put_folder("bucket", "published/", published)
    options = replace(OPTIONS, balanced=True)
    with readers_of(tmp_path, published) as readers:
        ours = [*training_batches(REMOTE, options, epochs=3, reader=readers.train)]
    theirs = [*training_batches(published, options, epochs=3)]
    for one, other in zip(ours, theirs, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("server", [Server(), Server(0, 2), Server(1, 2)])
def test_balanced_batches_close_all_shards(gcs: FakeGcs, published: Path, tmp_path: Path, server: Server):
    """A shard that stayed open took its room in the cache, until a long training waited for room forever."""
    gcs.put_folder("bucket", "published/", published)
    options, epochs = replace(OPTIONS, balanced=True), 5
    with readers_of(tmp_path, published, epochs=epochs, server=server) as readers:
        reader = readers.train
        assert reader
        batches = [*training_batches(REMOTE, options, epochs=epochs, reader=reader, server=server)]
        share = share_of(load(published).splits["train"].shards, 7, server)
        assert len(batches) == epochs * share.steps
        assert reader._released == epochs * len(share.pieces)
        assert not reader._in_use


def test_the_order_of_need_is_the_order_of_the_epochs(published: Path):
    share = share_of(load(published).splits["train"].shards, 7, Server())
    wanted = [share.pieces[index].name for epoch in (1, 2) for index in epoch_order(share.pieces, 3, epoch)]
    assert list(order_of_need(share, 3, range(1, 3))) == wanted
