"""Measures what each stage of the input costs: read, parse, decode, resize and batch, or of a table read, parse, batch.

The input runs on a sample of the examples, cut after each stage: what comes behind the cut handles a constant. The cost
of a stage is the difference between two such inputs. All of them use as many threads as a training, because a core
whose caches and units are shared takes longer for the same work. Nothing random is drawn.

A JPEG is cropped and shrunk while it is decoded. So `decode` is the time until the crop is there, and `resize` is only
the time to resample it. If the pixels are stored, `decode` is the time to cut the crop out of them.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from pipeline.dataset.manifest import Dataset, Split
from pipeline.dataset.shard_cache import READ_AT_ONCE
from pipeline.dataset.shard_lists import Shard
from pipeline.input.autograph import without_autograph
from pipeline.input.batch_kind import TrainingExamples, batch_kind_of
from pipeline.input.options import BatchOptions
from pipeline.input.order import ONLY, ServerSplit, epochs_of, tf_options
from pipeline.input.shard_pieces import ShardPieces
from pipeline.input.shares import epoch_order, share_of
from pipeline.records.tfrecord import frame, read_records, writer_of
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place
from pipeline.system.resources import usable_cores

MAX_RECORDS, MAX_BYTES = 4096, 64_000_000
"""Limits of a sample. They hold its own files in the page cache, and a thousand photographs tell the mean to 3%."""
BATCH_SIZE = 16
"""Images in a batch at most, so that a block of large images is not longer than needed."""
BLOCK_S = 0.06
"""CPU seconds of a block of the whole input, on up to CORES_OF_BLOCK cores. Its end takes a hundredth of it."""
CORES_OF_BLOCK = 8
_QUIET_S, _QUIET_SHARE, _QUIET_TIMES = 0.002, 0.15, 3
"""All threads are idle if they used less than this share of a core in this time, this many times one after another."""
_MAX_WAIT_S = 0.25
"""A thread of another part of the process may never be idle, or other programs hold up all of them."""


class Sample(NamedTuple):
    """Some records of a dataset, as the shards hold them."""

    records: Sequence[Sequence[bytes]]
    """The first records of some shards. The order in a shard is that of a hash, so they are a random sample."""
    read_us: float
    """Microseconds for each record until it was read from the place of the dataset, one after another."""


class Spent(NamedTuple):
    """What one block took, in microseconds for each example."""

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
    count = sum(map(len, records))
    return Sample(records, 1e6 * (time.perf_counter() - began) / max(count, 1))


def rounds(
    dataset: Dataset, sample: Sample, options: BatchOptions, is_worth: Callable[[float], bool] = lambda cpu_us: True
) -> Iterator[Round]:
    """Yield the costs of one block of examples after another, without end. Close the iterator to stop.

    `dataset` describes the records: their form, labels and columns. `is_worth` gets the CPU microseconds of an example.
    If it returns False, there are no rounds.
    """
    began = time.process_time()
    with _written(dataset, sample) as (folder, shards):
        split = _split_of(dataset, folder, shards, _with_short_batches(dataset, options))
        stages = batch_kind_of(dataset).stages(split)
        whole = _opened(split, stages[[*stages][-1]])
        batches, cpu_us = _block_size(whole, split.options.batch_size)
        if not is_worth(cpu_us):
            return
        inputs = {stage: _opened(split, cut) for stage, cut in [*stages.items()][:-1]} | {[*stages][-1]: whole}
        examples, of_split = batches * split.options.batch_size, split.dataset.splits["train"]
        for each in inputs.values():
            _block(each, batches, examples)  # The first one fills the buffers.
        order = list(inputs)
        while True:
            spent = {stage: _block(inputs[stage], batches, examples) for stage in order}
            order.reverse()  # A slow moment of the machine meets each input alike.
            differences = _differences(spent, [*inputs])
            yield Round(differences, examples, time.process_time() - began, of_split.bytes / of_split.examples)


def _opened(split: ServerSplit, kind: TrainingExamples) -> Iterator[object]:
    with tf.device("CPU:0"):
        return iter(batches_of(split, kind))


@without_autograph
def batches_of(split: ServerSplit, kind: TrainingExamples) -> tf.data.Dataset:
    """Return the training batches of a split without end, as `training_batches` makes them."""
    examples = epochs_of(split.share, split.options.seed, 1, 1 << 40).flat_map(kind.epoch)
    return kind.batches(examples, 0, True).prefetch(split.options.prefetch_batches).with_options(tf_options())


def _with_short_batches(dataset: Dataset, options: BatchOptions) -> BatchOptions:
    """Return the options without what needs memory, or all examples of the dataset."""
    # The rows of a batch are parsed together, so their cost depends on the size of the batch.
    size = options.batch_size if dataset.table else min(options.batch_size, BATCH_SIZE)
    return replace(options, batch_size=size, balanced=False, cache="off", shuffle_bytes=1, prefetch_batches=2)


def _split_of(dataset: Dataset, folder: Path, shards: Sequence[Shard], options: BatchOptions) -> ServerSplit:
    examples, size = sum(shard.examples for shard in shards), sum(shard.bytes for shard in shards)
    small = replace(dataset, splits={"train": Split(examples, size, {}, tuple(shards))})
    share = share_of(shards, options.batch_size, ONLY)
    return ServerSplit(small, ShardPieces(folder, dataset.records, None), share, options, options.seed)


@contextmanager
def _written(dataset: Dataset, sample: Sample) -> Iterator[tuple[Path, list[Shard]]]:
    """Write the sample as shards, whose pages then stay in memory, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="tenfold-stages-") as name:
        folder, shards = Path(name), []
        for number, records in enumerate(sample.records):
            path = folder / f"{number}{dataset.records.ending}"
            with open(path, "wb") as file:
                writer = writer_of(path, file)
                writer.write_framed([frame(record) for record in records])
                writer.close()
            shards.append(Shard(path.name, len(records), path.stat().st_size, "", ""))
        yield folder, shards


def _block_size(whole: Iterator[object], batch_size: int) -> tuple[int, float]:
    """Return the number of batches that take BLOCK_S of the whole input, and the CPU microseconds of an example."""
    _block(whole, 1, batch_size)  # It starts the threads.
    cpu_us = _block(whole, 2, 2 * batch_size).cpu_us
    seconds = BLOCK_S * max(1.0, usable_cores() / CORES_OF_BLOCK)
    return max(1, min(2000, round(1e6 * seconds / max(1.0, cpu_us * batch_size)))), cpu_us


def _block(batches: Iterator[object], count: int, examples: int) -> Spent:
    """Return what some batches cost. The buffers behind them are full before and after it, so nothing is left over."""
    cpu, clock = time.process_time(), time.perf_counter()
    for _ in range(count):
        next(batches)
    idle_cpu, idle_clock = _wait_until_idle()
    return Spent(1e6 * (idle_cpu - cpu) / examples, 1e6 * (idle_clock - clock) / examples)


def _wait_until_idle() -> tuple[float, float]:
    """Wait until the threads of the input have filled its buffers. Return CPU time and clock of their last work."""
    last = time.process_time(), time.perf_counter()
    give_up, quiet = last[1] + _MAX_WAIT_S, 0
    while quiet < _QUIET_TIMES and time.perf_counter() < give_up:
        cpu, clock = time.process_time(), time.perf_counter()
        time.sleep(_QUIET_S)
        after = time.process_time(), time.perf_counter()
        if after[0] - cpu > _QUIET_SHARE * (after[1] - clock):
            last, quiet = after, 0
        elif after[1] - clock < 3 * _QUIET_S:
            quiet += 1
        # Else it is unknown: a CPU quota or other programs held up this thread, and the other threads, too.
    return last


def _differences(spent: Mapping[str, Spent], stages: Sequence[str]) -> dict[str, Spent]:
    """Return what each stage took, from what the inputs took that are cut after it. Batches are made last."""
    costs = {stages[0]: spent[stages[0]]}
    for before, stage in pairwise(stages):
        pairs = zip(spent[stage], spent[before], strict=True)
        costs[stage] = Spent(*(after - earlier for after, earlier in pairs))
    return {**{stage: costs[stage] for stage in stages[1:]}, stages[0]: costs[stages[0]]}
