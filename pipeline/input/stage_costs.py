"""Measures what each stage of the input costs: read, parse, decode, resize and batch, or of a table read, parse, batch.

The input runs on a sample of the examples, cut after each stage: what comes behind the cut handles a constant. The cost
of a stage is the difference between two such inputs. All of them use as many threads as a training, because a core
whose caches and units are shared takes longer for the same work. Nothing random is drawn.

An input works ahead of its batches, so a gate lets one block of examples into it at a time.

A JPEG is cropped and shrunk while it is decoded. So `decode` is the time until the crop is there, and `resize` is only
the time to resample it. If the pixels are stored, `decode` is the time to cut the crop out of them.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.dataset.manifest import Dataset, Split
from pipeline.dataset.shard_cache import READ_AT_ONCE
from pipeline.dataset.shard_lists import Shard
from pipeline.input.autograph import without_autograph
from pipeline.input.batch_kind import TrainingExamples, batch_kind_of
from pipeline.input.options import BatchOptions
from pipeline.input.order import ONLY, ServerSplit, tf_options
from pipeline.input.shard_pieces import ShardPieces
from pipeline.input.shares import epoch_order, share_of
from pipeline.records.tfrecord import frame, read_records, writer_of
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place
from pipeline.system.resources import usable_cores

MAX_RECORDS, MAX_BYTES = 4096, 64_000_000
"""Limits of a sample. Its files stay in the page cache, and a thousand photographs tell the mean to 3%."""
BATCH_SIZE = 16
"""Images in a batch at most, so that a block of large images is not longer than needed."""
FILES = 4
"""Number of files of a block. To open one takes as long as to read a few images."""
BLOCK_S, CORES_OF_BLOCK = 0.15, 8
"""CPU seconds of a block of the whole input, on up to this many cores."""
OPEN = 10_000
"""A gate with this many permits is open until its iterator is canceled."""
_PROBES = 3
"""Number of blocks until all threads have started, and the last one tells how long a block has to be."""


class Sample(NamedTuple):
    """Some records of a dataset, as the shards hold them."""

    records: Sequence[bytes]
    """The first records of some shards. The order in a shard is that of a hash, so they are a random sample."""
    read_us: float
    """Microseconds for each record until it was read from the place of the dataset, one after another."""


class Spent(NamedTuple):
    """What a block or an example took, in microseconds."""

    cpu_us: float
    elapsed_us: float


@dataclass(frozen=True)
class Round:
    """A block of each of the inputs."""

    stages: Mapping[str, Spent]
    """What each stage took, in the order of the stages."""
    examples: int
    cpu_s: float
    """CPU seconds since the measurement began."""
    bytes_per_example: float
    """Bytes of an example in its shard."""


def sample_of(folder: Place, dataset: Dataset, server: Server = ONLY, seed: int = 0) -> Sample:
    """Read a sample of the training examples that a server reads. Raises DatasetError if a shard is damaged."""
    pieces = share_of(dataset.splits["train"].shards, 1, server).pieces
    chosen = [pieces[index].name for index in epoch_order(pieces, seed, 0)[: READ_AT_ONCE["train"]]]
    records, began = [], time.perf_counter()
    for name in chosen:
        of_shard, size = [], 0
        for record in islice(read_records(folder / name), max(1, MAX_RECORDS // len(chosen))):
            of_shard.append(record)
            size += len(record)
            if size >= MAX_BYTES / len(chosen):
                break
        records.append(of_shard)
    # In turn, so that each block has records of all of the shards.
    mixed = [record for row in zip_longest(*records) for record in row if record is not None]
    return Sample(mixed, 1e6 * (time.perf_counter() - began) / max(len(mixed), 1))


def rounds(
    dataset: Dataset, sample: Sample, options: BatchOptions, is_worth: Callable[[float], bool] = lambda cpu_us: True
) -> Generator[Round]:
    """Yield the costs of one block of examples after another, without end. Close the iterator to stop.

    `dataset` describes the records: their form, labels and columns. `is_worth` gets the CPU microseconds of an example.
    If it returns False, there are no rounds.
    """
    began, options = time.process_time(), _with_short_batches(dataset, options)
    records, kind = cycle(sample.records), batch_kind_of(dataset)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenfold-stages-")))

        def opened(shards: Sequence[Shard], cuts: slice = slice(None)) -> dict[str, Input]:
            split = split_of(dataset, folder, shards, options)
            chosen = [*kind.stages(split).items()][cuts]
            return {stage: stack.enter_context(Input(split, cut)) for stage, cut in chosen}

        [probed] = opened(write_block(folder, dataset, records, 2 * options.batch_size), slice(-1, None)).values()
        cpu_us = [probed.take_block().cpu_us for _ in range(_PROBES)][-1] / probed.examples
        if not is_worth(cpu_us):
            return
        examples = _examples_of_block(cpu_us, options.batch_size)
        inputs = opened(write_block(folder, dataset, records, examples))
        shorter = opened(_first_of(write_block(folder, dataset, records, examples), examples // 4), slice(2))
        for each in (*inputs.values(), *shorter.values()):
            each.take_block()  # It starts the threads.
        all_inputs = [*inputs.items(), *((f"{stage} of a shorter block", each) for stage, each in shorter.items())]
        while True:
            size = sum(shard.bytes for shard in write_block(folder, dataset, records, examples))
            spent = {name: each.take_block() for name, each in all_inputs}
            all_inputs.reverse()  # A slow moment of the machine meets each input alike.
            of_shorter = [spent[f"{stage} of a shorter block"] for stage in shorter]
            costs = _costs({stage: spent[stage] for stage in inputs}, examples, of_shorter, examples // 4)
            yield Round(costs, examples, time.process_time() - began, size / examples)


class Input:
    """The training batches of a block, again and again, each time that a block is taken.

    No thread works on a block before it is taken, nor after it is complete.
    """

    def __init__(self, split: ServerSplit, kind: TrainingExamples) -> None:
        self._steps = split.share.steps
        self.examples = self._steps * split.options.batch_size
        """Examples of a block."""
        self._gate = threading.Semaphore(0)
        with tf.device("CPU:0"):
            self._batches: Iterator[Any] = iter(gated_batches(split, kind, self._gate))

    def __enter__(self) -> "Input":
        return self

    def __exit__(self, *_: object) -> None:
        # The thread that waits for the next block. With one permit, it could come to the gate again before the iterator
        # is canceled, and would wait there forever.
        self._gate.release(OPEN)
        del self._batches

    def take_block(self) -> Spent:
        """Return what a block takes. Its files have to be there."""
        cpu, clock = time.process_time(), time.perf_counter()
        self._gate.release()
        for _ in range(self._steps):
            next(self._batches)
        return Spent(1e6 * (time.process_time() - cpu), 1e6 * (time.perf_counter() - clock))


@without_autograph
def gated_batches(split: ServerSplit, kind: TrainingExamples, gate: threading.Semaphore) -> tf.data.Dataset:
    """Return the training batches of a split without end, as `training_batches` makes them, if the gate allows it.

    Each epoch first takes the gate.
    """
    pieces = len(split.share.pieces)

    def order(_epoch: int) -> NDArray[np.int64]:
        gate.acquire()
        return np.arange(pieces, dtype=np.int64)

    def row(epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return epoch, tf.ensure_shape(tf.numpy_function(order, [epoch], tf.int64), [pieces])

    options = tf_options()
    options.threading.private_threadpool_size = usable_cores() + 1  # One waits at the gate.
    examples = tf.data.Dataset.range(1, tf.int64.max).map(row).flat_map(kind.epoch)
    return kind.batches(examples, 0, True).prefetch(split.options.prefetch_batches).with_options(options)


def _with_short_batches(dataset: Dataset, options: BatchOptions) -> BatchOptions:
    """Return the options without what needs memory, or all examples of the dataset."""
    # The rows of a batch are parsed together, so their cost depends on the size of the batch.
    size = options.batch_size if dataset.table else min(options.batch_size, BATCH_SIZE)
    return replace(options, batch_size=size, balanced=False, cache="off", shuffle_bytes=1, prefetch_batches=2)


def _examples_of_block(cpu_us: float, batch_size: int) -> int:
    """Return the number of examples that take BLOCK_S, in batches. A quarter of them is whole batches, too."""
    seconds = BLOCK_S * max(1.0, usable_cores() / CORES_OF_BLOCK)
    return 4 * batch_size * max(1, round(1e6 * seconds / max(1.0, cpu_us) / (4 * batch_size)))


def split_of(dataset: Dataset, folder: Path, shards: Sequence[Shard], options: BatchOptions) -> ServerSplit:
    """Return the split that reads the files of a block. All blocks of a size have the same split."""
    examples, size = (sum(values) for values in zip(*((each.examples, each.bytes) for each in shards), strict=True))
    small = replace(dataset, splits={"train": Split(examples, size, {}, tuple(shards))})
    share = share_of(shards, options.batch_size, ONLY)
    return ServerSplit(small, ShardPieces(folder, dataset.records, None), share, options, options.seed)


def _first_of(shards: Sequence[Shard], examples: int) -> list[Shard]:
    """Return the shards of a block with only its first examples."""
    return [replace(each, examples=len(range(number, examples, FILES))) for number, each in enumerate(shards)]


def write_block(folder: Path, dataset: Dataset, records: Iterator[bytes], examples: int) -> list[Shard]:
    """Write the next records into the files of a block, in place of those of the block before."""
    shards = []
    for number in range(FILES):
        of_file = [frame(each) for each in islice(records, len(range(number, examples, FILES)))]
        path = folder / f"{number}{dataset.records.ending}"
        with open(path, "wb") as file:
            writer = writer_of(path, file)
            writer.write_framed(of_file)
            writer.close()
        shards.append(Shard(path.name, len(of_file), path.stat().st_size, "", ""))
    return shards


def _costs(spent: Mapping[str, Spent], examples: int, of_shorter: Sequence[Spent], in_shorter: int) -> dict[str, Spent]:
    """Return what each stage takes of an example. Batches are made last.

    To begin an epoch takes as long as to read many images. In a training, it is hardly anything for an example. It is
    what a block of "batch" or "read" takes beyond the time of its examples, which a shorter block shows.

    Args:
        spent: What a block took that is cut after each stage: "batch" first, then "read".
        examples: Number of examples of a block.
        of_shorter: What a shorter block of "batch" and of "read" took.
        in_shorter: Number of examples of a shorter block.
    """
    stages = list(spent)
    took = {stage: np.array(spent[stage]) / examples for stage in stages}
    costs = {stage: took[stage] - took[before] for before, stage in pairwise(stages)}
    batch, read = (
        (np.array(spent[stage]) - shorter) / (examples - in_shorter)
        for stage, shorter in zip(stages, of_shorter, strict=False)
    )
    costs |= {stages[1]: read - batch, stages[0]: batch}
    return {stage: Spent(*map(float, cost)) for stage, cost in costs.items()}
