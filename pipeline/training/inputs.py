"""The batches of a training, from the published shards or, if those are in a bucket, from local copies of them."""

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
from pipeline.training.model.tensor_kind import tensor_kind_of
from pipeline.training.step.strategy import all_agree

_log = logging.getLogger(__name__)


class Readers(NamedTuple):
    """What hands out local copies of the shards, for each split; None if TensorFlow opens the shards themselves."""

    train: ShardReader | None = None
    validation: ShardReader | None = None

    @property
    def failure(self) -> TenfoldError | None:
        """Why one of them cannot hand out more copies; None if all can."""
        return next((reader.failure for reader in self if reader and reader.failure), None)

    @property
    def damaged_copy(self) -> str:
        """The first copy that does not hold what its shard does, in words; empty if all do."""
        return next((copy for reader in self if reader and (copy := reader.damaged_copy())), "")


class Inputs(NamedTuple):
    """The batches of one server, and what reads them."""

    training: tf.data.Dataset
    """All batches that are left, with the numbers of their examples."""
    validation: tf.data.Dataset
    """The batches of one validation."""
    readers: Readers
    keeps: bool
    """Whether decoded images are kept, which the order of later epochs depends on."""
    counter: BatchCounter
    """Counts the training batches."""


@contextmanager
def open_inputs(
    settings: Settings,
    folder: Place,
    dataset: Dataset,
    server: Server,
    start: int,
    should_stop: Callable[[], bool],
    keeps: bool | None = None,
) -> Iterator[Inputs]:
    """Open the batches of a server, its own share, from step `start` (from 0) on.

    Readers call `should_stop` while they wait for a bucket. `keeps` says whether earlier attempts kept decoded images,
    or all servers agreed to do so; None if undecided. The memory that is free now must not change the order in the
    middle of a training.
    """
    share = share_of(dataset.splits["train"].shards, _options_of(settings, server).batch_size, server)
    # An empty split has no steps.
    left = range(start // max(share.steps, 1) + 1, settings.epochs + 1)
    with _options(settings, dataset, server, keeps) as options:
        keeps = options.cache != "off"
        # Kept images are read once, in the order of the first epoch, whatever epoch the training goes on with.
        epochs = range(1, 2) if keeps else left
        orders = {
            "train": order_of_need(share, settings.seed, epochs),
            "validation": _validation_order(dataset, options.batch_size, server, keeps),
        }
        with _open_readers(settings, folder, dataset, orders, should_stop) as readers:
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
    settings: Settings, folder: Place, dataset: Dataset, server: Server, should_stop: Callable[[], bool]
) -> Iterator[tuple[tf.data.Dataset, Readers]]:
    """Open the validation batches of all servers for `server` alone, in batches as large as those of its share."""
    options = _options_of(settings, server)
    orders = {"validation": _validation_order(dataset, options.batch_size, Server(), once=True)}
    with _open_readers(settings, folder, dataset, orders, should_stop) as readers:
        yield validation_batches(folder, options, reader=readers.validation), readers


def agreed_to_keep(settings: Settings, dataset: Dataset, server: Server, strategy: tf.distribute.Strategy) -> bool:
    """Return whether all servers would keep decoded images. All servers must call this together.

    All servers or none, because a checkpoint stores one answer for all.
    """
    with _options(settings, dataset, server, None) as options:
        keeps = options.cache != "off"
    return all_agree(keeps, strategy)


def _options_of(settings: Settings, server: Server) -> BatchOptions:
    options = batch_options(settings)
    return replace(options, batch_size=options.batch_size // server.count)


def _options(
    settings: Settings, dataset: Dataset, server: Server, keeps: bool | None
) -> AbstractContextManager[BatchOptions]:
    options = _options_of(settings, server)
    if not tensor_kind_of(dataset).keeps_decoded:
        return nullcontext(options)
    # Only `auto` depends on the memory that is free now. The other values decide by themselves.
    if settings.cache == "auto" and keeps is not None:
        return nullcontext(replace(options, cache="memory" if keeps else "off"))
    folder = Path(settings.local_folder) / "decoded"
    return open_cache(settings.cache, folder, dataset, options, server, settings.epochs)


def _validation_order(dataset: Dataset, batch_size: int, server: Server, once: bool) -> Iterator[str]:
    """Yield the shards that a server validates on, in order, once or without end.

    Each epoch is validated, the last one again after a stop in its validation, and then the best model.
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
    should_stop: Callable[[], bool],
) -> Iterator[Readers]:
    """Open a reader for each split: while one validates, the other reads on into the next epoch of the training."""
    if isinstance(folder, Path) or settings.read_shards == "direct":
        yield Readers()
        return
    cache = ShardCache(Path(settings.local_folder) / "shards", int(settings.cache_gigabytes * GIGABYTE))
    shards, room = remote_shards(folder, dataset), divided_room(dataset, cache.limit_bytes)
    _log.info(
        "shard cache: the shards that are read at once need %.3g GB, and all shards need %.3g GB; cache_gigabytes is "
        "%.3g",
        sum(needed_room(dataset).values()) / GIGABYTE,
        sum(split.bytes for split in dataset.splits.values()) / GIGABYTE,
        cache.limit_bytes / GIGABYTE,
    )
    with ExitStack() as stack:
        # Added before the readers, so it runs after they have released their copies.
        stack.callback(cache.trim)
        readers = {
            split: ShardReader(cache, shards, order, READ_AT_ONCE[split], room[split], should_stop)
            for split, order in orders.items()
        }
        yield Readers(**{split: stack.enter_context(reader) for split, reader in readers.items()})
