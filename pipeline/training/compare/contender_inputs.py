"""The inputs of a comparison: the batches of each contender, and its speed without a model."""

import gc
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import tensorflow as tf

from pipeline.dataset.manifest import load
from pipeline.errors import Preempted
from pipeline.input import steps_per_epoch, training_batches
from pipeline.input.cache import cached_bytes, usable_memory
from pipeline.input.options import batch_options
from pipeline.input.raw_files import raw_batches, raw_files_of
from pipeline.system.page_cache import cached_fraction, drop_page_cache
from pipeline.system.wording import format_size
from pipeline.training.step.loop import NumberedBatch
from pipeline.training.step.strategy import taken_ahead
from pipeline.tuning.contenders import CONTENDERS, Contender
from pipeline.tuning.measurement import Comparison

Batches = Generator[NumberedBatch]


@dataclass(frozen=True)
class Input:
    """A contender that can be read."""

    paths: Sequence[Path]
    examples: int
    """Training examples in an epoch."""
    steps: int
    """Batches in an epoch."""
    batches: Callable[[int], Batches]
    """Returns the batches of this number of epochs. Closing them ends their threads."""

    @contextmanager
    def opened(self, epochs: int) -> Iterator[Batches]:
        """Open the batches of this number of epochs. At the end of the block, no decoded image is left in memory."""
        batches = self.batches(epochs)
        try:
            yield batches
        finally:
            batches.close()
            # The datasets are in cycles of references, and the next ones may keep as many decoded images.
            gc.collect()


class ContenderInputs:
    """The inputs of all contenders of a comparison, as batches for the devices of a strategy."""

    def __init__(self, comparison: Comparison, strategy: tf.distribute.Strategy) -> None:
        self._comparison, self._strategy = comparison, strategy
        self._options = batch_options(comparison.training_settings())
        self._raw_files = cache(lambda folder: raw_files_of(folder, load(folder), comparison.source_root))

    def folder_of(self, contender: Contender) -> Path:
        """Return the folder of the dataset that a contender needs."""
        return Path(self._comparison.datasets[contender.prepare])

    def of(self, contender: Contender) -> Input:
        """Return a contender that can be read. Raises SourceError if it reads raw files, one of them in a bucket."""
        folder = self.folder_of(contender)
        dataset = load(folder)
        options = replace(self._options, cache=contender.cache)
        files = self._raw_files(folder) if contender.reads_files else None
        if files:
            paths = [Path(os.fsdecode(path)) for path in files.paths]
        else:
            paths = [folder / shard.name for shard in dataset.splits["train"].shards]

        def batches(epochs: int) -> Batches:
            if files:
                all_epochs = raw_batches(files, options, contender.parallel, epochs)
            else:
                all_epochs = training_batches(folder, options, epochs=epochs, numbered=True)
            if not contender.parallel and self._strategy.num_replicas_in_sync == 1:
                # The step itself sends each batch to its device, so no batch is sent ahead.
                return (batch for batch in all_epochs)
            # As in a training: batches are sent to the devices, and a thread takes the next one. With several GPUs,
            # contenders that are not parallel work in this way, too, because the strategy divides batches ahead.
            return taken_ahead(all_epochs, options.batch_size, self._strategy)

        steps = steps_per_epoch(dataset, options.batch_size, 1)
        return Input(paths, dataset.splits["train"].examples, steps, batches)


@dataclass(frozen=True)
class Alone:
    """The speed of an input without a model."""

    cold_per_s: float
    """Examples per second of an epoch from the disk."""
    warm_per_s: float
    """The same of later epochs."""
    kept_fraction: float | None
    """Share of the files in the page cache after the later epochs: less than 1 if they do not fit."""


def why_not(name: str, comparison: Comparison) -> str:
    """Return why a contender cannot take part; empty if it can."""
    settings, contender = comparison.training_settings(), CONTENDERS[name]
    dataset = load(Path(comparison.datasets[contender.prepare]))
    if contender.reads_files and dataset.records.multi_label:
        return "the images have several labels, and this comparison reads raw files with one label only"
    if contender.reads_files and dataset.source.get("kind") == "containers":
        return "the images are in containers, so there are no raw files"
    if contender.reads_files and settings.crop_to_box:
        return "crop_to_box is set, and raw files are not cropped to a box"
    needed, usable = cached_bytes(dataset, batch_options(settings), splits=("train",)), usable_memory()
    if contender.cache == "memory" and needed > usable:
        return (
            f"the decoded images need about {format_size(needed)}, but only {format_size(usable)} of memory can be "
            "used for them"
        )
    return ""


def measured_alone(source: Input, measure_s: float, should_stop: Callable[[], bool]) -> Alone:
    """Measure an epoch from the disk, and later ones for `measure_s` seconds. Raises Preempted on a request to stop."""
    drop_page_cache(source.paths)
    # More epochs than a measurement reads. It stops when it has seen enough.
    with source.opened(1_000_000) as batches:

        def epoch_s() -> float:
            begin = time.perf_counter()
            for _ in range(source.steps):
                if should_stop():
                    raise Preempted("the comparison was stopped: run the same command again, or clear the task measure")
                next(batches)
            return time.perf_counter() - begin

        cold_s, warm_s = epoch_s(), list[float]()
        while sum(warm_s) < measure_s:
            warm_s.append(epoch_s())
        kept = cached_fraction(source.paths)
    return Alone(source.examples / cold_s, source.examples * len(warm_s) / sum(warm_s), kept)
