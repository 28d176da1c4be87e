"""The batches of a training, from the published shards or, if those are in a bucket, from local copies of them."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from pipeline.config.automatic import TrainingSettings
from pipeline.dataset.manifest import Dataset
from pipeline.dataset.shard_cache import GIGABYTE, READ_AT_ONCE, ShardCache, divided_room, needed_room, remote_shards
from pipeline.dataset.shard_reader import ShardReader
from pipeline.errors import BadInput, TenfoldError
from pipeline.input import BatchOptions, training_batches, validation_batches
from pipeline.input.batch_counter import BatchCounter
from pipeline.input.cache import open_cache
from pipeline.input.options import batch_options
from pipeline.input.shares import order_of_need, share_of
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place
from pipeline.system.wording import format_size
from pipeline.training.model.tensor_kind import tensor_kind_of
from pipeline.training.step.strategy import all_agree

MAX_STACKED, STACKED_BYTES = 16, 1_000_000
"""Limits of a stack: its batches, and its bytes."""
_log = logging.getLogger(__name__)


class Readers(NamedTuple):
    """What hands out local copies of the shards, for each split; None if the dataset is on a disk."""

    train: ShardReader | None = None
    validation: ShardReader | None = None
    test: ShardReader | None = None

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
    readers: Readers
    keeps: bool
    """Whether decoded images are kept, which the order of later epochs depends on."""
    counter: BatchCounter
    """Counts the training batches."""
    stacked: int
    """How many batches each item of `training` stacks; 1 if it is a batch."""


def stacked(batches: tf.data.Dataset) -> tuple[tf.data.Dataset, int]:
    """Return stacks of the batches, with one more axis in front, and how many batches each has.

    Large batches, and those of different shapes, come as they are: the number is then 1. Batches of zeros fill up the
    last stack, because the step is compiled for one shape.
    """
    specs = tf.nest.flatten(batches.element_spec)
    if not all(spec.shape.is_fully_defined() for spec in specs):
        return batches, 1  # Columns of lists have another length in each batch.
    size = sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)
    count = min(MAX_STACKED, STACKED_BYTES // size)
    if count <= 1:
        return batches, 1
    empty = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), batches.element_spec)
    filled = batches.concatenate(tf.data.Dataset.from_tensors(empty).repeat(count - 1))
    return filled.batch(count, drop_remainder=True).prefetch(1), count


@dataclass(frozen=True)
class ServerData:
    """The dataset of a training, as one server reads it: its own share."""

    settings: TrainingSettings
    folder: Place
    """Folder of the dataset."""
    dataset: Dataset
    server: Server
    should_stop: Callable[[], bool]
    """Returns whether a stop is requested. Readers call it while they wait for a bucket."""
    kept_from: int = 1
    """The first epoch whose decoded images are kept, if any are."""

    @contextmanager
    def open(
        self, start: int, keeps: bool | None = None, ahead: int = 1, *, may_stack: bool = False
    ) -> Iterator[Inputs]:
        """Open the batches from step `start` (from 0) on.

        `keeps` says whether earlier attempts kept decoded images, or all servers agreed to do so; None if undecided.
        The memory that is free now must not change the order in the middle of a training. `ahead` is the number of
        items that can be ready behind the buffer of `prefetch_batches`. `may_stack` says whether the training can take
        several small batches at once.
        """
        settings, server = self.settings, self.server
        share = share_of(self.dataset.splits["train"].shards, self._options.batch_size, server)
        # An empty split has no steps.
        left = range(start // max(share.steps, 1) + 1, settings.epochs + 1)
        with self._cached(keeps) as options:
            is_cached = options.cache != "off"
            # Kept images are read once, in the order of the first epoch that has them, whatever epoch the training goes
            # on with.
            epochs = range(self.kept_from, self.kept_from + 1) if is_cached else left
            # Each epoch is validated, the last one again after a stop in its validation, and then the best model if
            # there is no test split.
            validated = self._order("validation", server)
            orders = {
                "train": order_of_need(share, settings.seed, epochs),
                "validation": iter(validated) if is_cached else cycle(validated),
            }
            with self._readers(orders) as readers:
                counter = BatchCounter(options.prefetch_batches + ahead)
                training = training_batches(
                    self.folder,
                    options,
                    epochs=settings.epochs,
                    start=start,
                    server=server,
                    reader=readers.train,
                    counter=counter,
                    numbered=True,
                )
                training, count = stacked(training) if may_stack else (training, 1)
                if count > 1:
                    counter.capacity = options.prefetch_batches + (1 + ahead) * count  # One stack is prefetched.
                validation = validation_batches(self.folder, options, server=server, reader=readers.validation)
                yield Inputs(training, validation, readers, is_cached, counter, count)

    @contextmanager
    def open_judged(self) -> Iterator[tuple[tf.data.Dataset, Readers]]:
        """Open the examples of `judged_split` for this server alone, in batches as large as those of its share."""
        split = self.dataset.judged_split
        with self._readers({split: iter(self._order(split, Server()))}) as readers:
            yield validation_batches(self.folder, self._options, split=split, reader=getattr(readers, split)), readers

    def agreed_to_keep(self, strategy: tf.distribute.Strategy) -> bool:
        """Return whether all servers would keep decoded images. All servers must call this together.

        All servers or none, because a checkpoint stores one answer for all.
        """
        with self._cached(keeps=None) as options:
            is_cached = options.cache != "off"
        return all_agree(is_cached, strategy)

    def refusal_to_keep(self) -> str:
        """Return why this server cannot keep decoded images as `settings.cache` says; empty if it can."""
        try:
            with self._cached(keeps=None):
                return ""
        except BadInput as error:
            return str(error)

    @property
    def _options(self) -> BatchOptions:
        share = self.settings.batch_size // self.server.count
        return replace(batch_options(self.settings), batch_size=share, kept_from=self.kept_from)

    def _cached(self, keeps: bool | None) -> AbstractContextManager[BatchOptions]:
        """Open the cache of decoded images, and return the options with it."""
        options, choice = self._options, self.settings.cache
        if not tensor_kind_of(self.dataset).keeps_decoded:
            return nullcontext(options)
        # Only `auto` depends on the memory that is free now. The other values decide by themselves.
        if choice == "auto" and keeps is not None:
            return nullcontext(replace(options, cache="memory" if keeps else "off"))
        folder = Path(self.settings.local_folder) / "decoded"
        return open_cache(choice, folder, self.dataset, options, self.server, self.settings.epochs)

    def _order(self, split: str, server: Server) -> Sequence[str]:
        """Return the shards of a split that a server evaluates a model on, in order."""
        share = share_of(self.dataset.splits[split].shards, self._options.batch_size, server)
        return [piece.name for piece in share.pieces]

    @contextmanager
    def _readers(self, orders: Mapping[str, Iterator[str]]) -> Iterator[Readers]:
        """Open a reader for each split: while one validates, the other reads on into the next epoch of the training."""
        settings, dataset = self.settings, self.dataset
        if isinstance(self.folder, Path):
            yield Readers()
            return
        cache = ShardCache(Path(settings.local_folder) / "shards", int(settings.cache_gigabytes * GIGABYTE))
        shards, room = remote_shards(self.folder, dataset), divided_room(dataset, cache.limit_bytes)
        _log.info(
            "shard cache: the shards that are read at once need %s, and all shards need %s; cache_gigabytes is %.3g",
            format_size(sum(needed_room(dataset).values())),
            format_size(sum(split.bytes for split in dataset.splits.values())),
            cache.limit_bytes / GIGABYTE,
        )
        with ExitStack() as stack:
            # Added before the readers, so it runs after they have released their copies.
            stack.callback(cache.trim)
            readers = {
                split: ShardReader(cache, shards, order, READ_AT_ONCE[split], room[split], self.should_stop)
                for split, order in orders.items()
            }
            yield Readers(**{split: stack.enter_context(reader) for split, reader in readers.items()})
