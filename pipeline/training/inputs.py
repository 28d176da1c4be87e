"""What a training reads: batches of the published shards, from files or from local copies of what lies in a bucket."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from pipeline.config import Settings
from pipeline.dataset.manifest import Dataset
from pipeline.dataset.shard_cache import GIGABYTE, READ_AT_ONCE, ShardCache, divided_room, needed_room, remote_shards
from pipeline.dataset.shard_reader import ShardReader
from pipeline.errors import TenfoldError
from pipeline.input import BatchOptions, numbered_batches, validation_batches
from pipeline.input.batch_counter import BatchCounter
from pipeline.input.cache import open_cache
from pipeline.input.options import batch_options
from pipeline.input.shares import order_of_need, share_of
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place

_log = logging.getLogger(__name__)


class Readers(NamedTuple):
    """What hands out copies of the shards; None where TensorFlow opens them where they are."""

    train: ShardReader | None = None
    validation: ShardReader | None = None

    @property
    def failure(self) -> TenfoldError | None:
        """Why one of them handed out no more."""
        return next((reader.failure for reader in self if reader and reader.failure), None)

    @property
    def damaged_copy(self) -> str:
        """The first copy that does not hold what its shard does, in words; empty if all do."""
        return next((found for reader in self if reader and (found := reader.damaged_copy())), "")


class Inputs(NamedTuple):
    """All batches that are left, with the numbers of their examples, those of a validation, and what reads them."""

    training: tf.data.Dataset
    validation: tf.data.Dataset
    readers: Readers
    keeps: bool
    """Whether decoded images are kept, which the order of later epochs depends on."""
    counter: BatchCounter
    """Of the training batches."""


@contextmanager
def open_inputs(
    settings: Settings,
    folder: Place,
    dataset: Dataset,
    server: Server,
    start: int,
    stopping: Callable[[], bool],
    kept_before: bool | None = None,
) -> Iterator[Inputs]:
    """The batches of a server from step `start` (from 0) on; `stopping` is asked while they wait for a bucket.

    :param kept_before: whether the tries before this one kept decoded images, where there were some, or all servers
        agreed to: what is free now must not change the order in mid-training
    """
    share = share_of(dataset.splits["train"].shards, _options_of(settings, server).batch_size, server)
    left = range(start // max(share.steps, 1) + 1, settings.epochs + 1)
    with _options(settings, dataset, server, kept_before) as options:
        keeps = options.cache != "off"
        # What is kept is read once, in the order of the first epoch, whichever one a training goes on with.
        epochs = range(1, 2) if keeps else left
        orders = {
            "train": order_of_need(share, settings.seed, epochs),
            "validation": _validated(dataset, options.batch_size, server, keeps),
        }
        with _open_readers(settings, folder, dataset, orders, stopping) as readers:
            counter = BatchCounter(options.prefetch_batches + 1)  # `one_ahead` has one more.
            training = numbered_batches(
                folder,
                options,
                epochs=settings.epochs,
                start=start,
                server=server,
                reader=readers.train,
                counter=counter,
            )
            validation = validation_batches(folder, options, server=server, reader=readers.validation)
            yield Inputs(training, validation, readers, keeps, counter)


@contextmanager
def open_validation(
    settings: Settings, folder: Place, dataset: Dataset, server: Server, stopping: Callable[[], bool]
) -> Iterator[tuple[tf.data.Dataset, Readers]]:
    """All validation batches for `server` alone, as large as those of its share."""
    options = _options_of(settings, server)
    orders = {"validation": _validated(dataset, options.batch_size, Server(), once=True)}
    with _open_readers(settings, folder, dataset, orders, stopping) as readers:
        yield validation_batches(folder, options, reader=readers.validation), readers


def would_keep(settings: Settings, dataset: Dataset, server: Server) -> bool:
    """Whether a server would keep decoded images, if it had nobody to ask."""
    with _options(settings, dataset, server, None) as options:
        return options.cache != "off"


def _options_of(settings: Settings, server: Server) -> BatchOptions:
    options = batch_options(settings)
    return replace(options, batch_size=options.batch_size // server.count)


def _options(
    settings: Settings, dataset: Dataset, server: Server, kept_before: bool | None
) -> AbstractContextManager[BatchOptions]:
    options = _options_of(settings, server)
    if settings.cache == "auto" and kept_before is not None:
        return nullcontext(replace(options, cache="memory" if kept_before else "off"))
    folder = Path(settings.local_folder) / "decoded"
    return open_cache(settings.cache, folder, dataset, options, server, settings.epochs)


def _validated(dataset: Dataset, batch_size: int, server: Server, once: bool) -> Iterator[str]:
    """The shards of a server's validation, in order, as often as it may come.

    Each epoch, one that was stopped in its validation again, and the best model.
    """
    share = share_of(dataset.splits["validation"].shards, batch_size, server)
    names = [piece.name for piece in share.pieces]
    return iter(names) if once else cycle(names)


@contextmanager
def _open_readers(
    settings: Settings,
    folder: Place,
    dataset: Dataset,
    orders: Mapping[str, Iterator[str]],
    stopping: Callable[[], bool],
) -> Iterator[Readers]:
    """Readers for splits in these orders: one a split, as training reads on into the next epoch in the validation."""
    if isinstance(folder, Path) or settings.read_shards == "direct":
        yield Readers()
        return
    cache = ShardCache(Path(settings.local_folder) / "shards", int(settings.cache_gigabytes * GIGABYTE))
    shards, room = remote_shards(folder, dataset), divided_room(dataset, cache.limit_bytes)
    _say_needed(dataset, cache.limit_bytes)
    with ExitStack() as stack:
        stack.callback(cache.trim)

        def opened(split: str, order: Iterator[str]) -> ShardReader:
            reader = ShardReader(cache, shards, order, READ_AT_ONCE[split], room[split], stopping)
            return stack.enter_context(reader)

        yield Readers(**{split: opened(split, order) for split, order in orders.items()})


def _say_needed(dataset: Dataset, limit_bytes: int) -> None:
    needed = sum(needed_room(dataset).values())
    sizes = (needed, sum(split.bytes for split in dataset.splits.values()), limit_bytes)
    _log.info(
        "shard cache: the shards read at once take %.3g GB, all shards %.3g GB; cache_gigabytes is %.3g",
        *(size / GIGABYTE for size in sizes),
    )
