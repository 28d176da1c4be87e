"""What a training reads: batches of the published shards, from files or from local copies of what lies in a bucket."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from pipeline.config import Settings
from pipeline.dataset import Dataset
from pipeline.errors import TenfoldError
from pipeline.input import BatchOptions, Server, numbered_batches, validation_batches
from pipeline.input.cache import open_cache
from pipeline.input.examples import CYCLE
from pipeline.input.options import batch_options
from pipeline.input.shares import order_of_need, share_of
from pipeline.shard_cache import GIGABYTE, ShardCache, remote_shards
from pipeline.shard_reader import ShardReader
from pipeline.storage import Place


class Readers(NamedTuple):
    """What hands out copies of the shards; None where TensorFlow opens them where they are."""

    train: ShardReader | None = None
    validation: ShardReader | None = None

    @property
    def failure(self) -> TenfoldError | None:
        """Why one of them handed out no more."""
        return next((reader.failure for reader in self if reader and reader.failure), None)


class Inputs(NamedTuple):
    """All batches that are left, with the numbers of their examples, those of a validation, and what reads them."""

    training: tf.data.Dataset
    validation: tf.data.Dataset
    readers: Readers
    keeps: bool
    """Whether decoded images are kept, which the order of later epochs depends on."""


@contextmanager
def open_inputs(
    settings: Settings,
    folder: Place,
    dataset: Dataset,
    start: int,
    stopping: Callable[[], bool],
    kept_before: bool | None = None,
) -> Iterator[Inputs]:
    """The batches from step `start` (from 0) on; `stopping` is asked while they wait for a bucket.

    :param kept_before: whether the tries before this one kept decoded images, where there were some: what is free now
        must not change the order in mid-training
    """
    share = share_of(dataset.splits["train"].shards, settings.batch_size, Server())
    left = range(start // max(share.steps, 1) + 1, settings.epochs + 1)
    with _options(settings, dataset, kept_before) as options:
        keeps = options.cache != "off"
        # What is kept is read once, in the order of the first epoch, whichever one a training goes on with.
        epochs = range(1, 2) if keeps else left
        with _open_readers(settings, folder, dataset, epochs, keeps, stopping) as readers:
            yield Inputs(
                numbered_batches(folder, options, epochs=settings.epochs, start=start, reader=readers.train),
                validation_batches(folder, options, reader=readers.validation),
                readers,
                keeps,
            )


def _options(settings: Settings, dataset: Dataset, kept_before: bool | None) -> AbstractContextManager[BatchOptions]:
    options = batch_options(settings)
    if settings.cache == "auto" and kept_before is not None:
        return nullcontext(replace(options, cache="memory" if kept_before else "off"))
    folder = Path(settings.local_folder) / "decoded"
    return open_cache(settings.cache, folder, dataset, options, Server(), settings.epochs)


@contextmanager
def _open_readers(
    settings: Settings, folder: Place, dataset: Dataset, epochs: range, keeps: bool, stopping: Callable[[], bool]
) -> Iterator[Readers]:
    """Readers for these epochs: one a split, since training reads on into the next epoch during the validation."""
    if isinstance(folder, Path) or settings.read_shards == "direct":
        yield Readers()
        return
    cache = ShardCache(Path(settings.local_folder) / "shards", int(settings.cache_gigabytes * GIGABYTE))
    shards = remote_shards(folder, dataset)
    all_bytes = sum(dataset.splits[name].bytes for name in Readers._fields) or 1
    with ExitStack() as stack:

        def opened(split: str, order: Iterator[str]) -> ShardReader:
            room = cache.limit_bytes * dataset.splits[split].bytes // all_bytes
            return stack.enter_context(ShardReader(cache, shards, order, CYCLE, room, stopping))

        share = share_of(dataset.splits["train"].shards, settings.batch_size, Server())
        # Whatever is validated: each epoch, one that was stopped in its validation again, and the best model.
        held_back = [shard.name for shard in dataset.splits["validation"].shards if shard.examples]
        yield Readers(
            train=opened("train", order_of_need(share, settings.seed, epochs)),
            validation=opened("validation", iter(held_back) if keeps else cycle(held_back)),
        )
