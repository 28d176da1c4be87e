"""One model that trains from several inputs in turn, and the times of each: the measuring half of a comparison."""

import gc
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config import settings_from
from pipeline.dataset import manifest as datasets
from pipeline.dataset.manifest import Dataset
from pipeline.errors import Preempted
from pipeline.input import numbered_batches, one_ahead, steps_per_epoch
from pipeline.input.options import batch_options
from pipeline.input.raw_files import RawFiles, raw_batches, raw_files_of
from pipeline.monitor import open_monitor, read
from pipeline.monitor.limits import OTHERS
from pipeline.monitor.load import load_of
from pipeline.system.malloc import keep_large_blocks
from pipeline.system.page_cache import cached_fraction, drop_page_cache
from pipeline.training.failure.device_memory import require_divisible
from pipeline.training.model.models import build_model
from pipeline.training.step.loop import EpochLoop, NumberedBatch
from pipeline.training.step.optimizer import build_optimizer
from pipeline.training.step.phases import build_steps
from pipeline.training.step.strategy import on_devices, open_strategy, share_of_device
from pipeline.tuning.contenders import Contender
from pipeline.tuning.measurement import Comparison, Measurement

STEP_SHARE = 0.5
"""The step alone is measured for this share of `measure_seconds`."""
ALONE = "alone"
"""Folder of the record beside the inputs without a model, in the folder of a measurement."""
MANY_EPOCHS = 1_000_000
"""More epochs than a measurement reads. It stops when it has seen enough."""
Batches = Generator[NumberedBatch, None, None]


@dataclass(frozen=True)
class Input:
    """A contender that can be read."""

    contender: Contender
    paths: Sequence[Path]
    """The files that it reads."""
    examples: int
    """Training examples in an epoch."""
    steps: int
    """Batches in an epoch."""
    batches: Callable[[int], Batches]
    """Returns the batches of this number of epochs. Closing them ends their threads."""


@dataclass(frozen=True)
class Alone:
    """An input without a model."""

    cold_per_s: float
    warm_per_s: float
    kept_fraction: float | None
    """Share of the files in the page cache after the epochs from memory: less than 1 if they do not fit."""


class Contest:
    """The model and its steps, which are traced once and then serve every contender.

    Args:
        comparison: What is compared.
        should_stop: Returns whether a stop is requested.

    Raises:
        BadInput: If the settings do not fit the model or the devices.
    """

    def __init__(self, comparison: Comparison, should_stop: Callable[[], bool]) -> None:
        self._comparison, self._should_stop = comparison, should_stop
        self._settings = settings = settings_from(dict(comparison.settings))
        self._raw: RawFiles | None = None
        self._strategy = open_strategy(None)
        dataset = datasets.load(Path(next(iter(comparison.datasets.values()))))
        steps = steps_per_epoch(dataset, settings.batch_size, 1)
        require_divisible(settings, share_of_device(settings.batch_size, self._strategy))
        keras.utils.set_random_seed(settings.seed)
        with self._strategy.scope():
            model = build_model(settings, len(dataset.labels))
            optimizer = build_optimizer(settings, model, steps)
            optimizer.build(model.trainable_variables)
        self._steps = build_steps(
            settings,
            strategy=self._strategy,
            model=model,
            optimizer=optimizer,
            dataset=dataset,
            steps_per_epoch=steps,
            micro_batches=settings.micro_batches,
        )
        self._variables = [*model.variables, *optimizer.variables]
        self._first_values = [keras.ops.convert_to_numpy(variable) for variable in self._variables]

    def folder_of(self, contender: Contender) -> Path:
        """Return the folder of the dataset that a contender needs."""
        return Path(self._comparison.datasets[contender.prepare])

    def input_of(self, contender: Contender) -> Input:
        """Return a contender that can be read.

        Raises:
            SourceError: If it reads raw files, and one of them is in a bucket.
        """
        folder = self.folder_of(contender)
        dataset = datasets.load(folder)
        options = replace(batch_options(self._settings), cache=contender.cache)
        files = self._raw_files(folder, dataset) if contender.reads_files else None
        if files:
            paths = [Path(os.fsdecode(path)) for path in files.paths]
        else:
            paths = [folder / shard.name for shard in dataset.splits["train"].shards]

        def batches(epochs: int) -> Batches:
            if files:
                all_epochs = raw_batches(files, options, contender.parallel, epochs)
            else:
                all_epochs = numbered_batches(folder, options, epochs=epochs)
            if not contender.parallel and self._strategy.num_replicas_in_sync == 1:
                return _in_turn(iter(all_epochs))
            # As in a training: batches are sent to the devices, and a thread takes the next one. Several GPUs get
            # batches that are made in turn in this way, too, because their strategy divides them ahead.
            sent = iter(self._on_devices(all_epochs))
            keep_large_blocks()
            return one_ahead(sent)

        steps = steps_per_epoch(dataset, options.batch_size, 1)
        return Input(contender, paths, dataset.splits["train"].examples, steps, batches)

    def measure(self, source: Input, round_number: int, folder: Path, repeated: int) -> Measurement:
        """Measure a contender once, and write its record into `folder`.

        Args:
            source: The contender.
            round_number: From 0.
            folder: Folder of this measurement. What a stopped attempt left there is removed.
            repeated: Number of earlier attempts that were disturbed.

        Raises:
            Preempted: If a stop is requested.
            tf.errors.OpError: If TensorFlow cannot read a file or decode an image, or runs out of memory.
            OSError: If a file is missing or cannot be opened.
        """
        gc.collect()  # The decoded images of an earlier contender may be in a cycle of references.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        step_alone_ms = self._step_alone(source)  # It also traces the step, so that no epoch contains the tracing.
        cached = self._forget(source)
        epochs = self._train(source, folder)
        with open_monitor(folder / ALONE, self._settings.sample_hz):
            alone = self._alone(source)
        loads = [load_of(read(each / "record", "samples")) for each in (folder, folder / ALONE)]
        other_cores = max((each.other_cores for each in loads if each.other_cores is not None), default=None)
        return Measurement(
            contender=source.contender.name,
            round=round_number,
            examples=source.examples,
            epoch_s=[time_s for time_s, _ in epochs],
            epoch_wait_s=[wait_s for _, wait_s in epochs],
            cached_fraction=cached,
            kept_fraction=alone.kept_fraction,
            cold_per_s=alone.cold_per_s,
            warm_per_s=alone.warm_per_s,
            step_alone_ms=step_alone_ms,
            other_cores=other_cores,
            disturbed=any((each.other_cores or 0.0) > OTHERS * (each.cores or 1.0) for each in loads),
            repeated=repeated,
        )

    def _train(self, source: Input, folder: Path) -> list[tuple[float, float]]:
        """Train all epochs from the first weights. Return the seconds and the seconds of data wait of each."""
        for variable, value in zip(self._variables, self._first_values, strict=True):
            variable.assign(value)
        epochs, times = self._settings.epochs, []
        with open_monitor(folder, self._settings.sample_hz) as monitor, closing(source.batches(epochs)) as batches:
            loop = EpochLoop(
                steps=self._steps,
                monitor=monitor,
                should_stop=self._should_stop,
                is_simulated=bool(self._settings.simulated_step_ms),
            )
            for epoch in range(1, epochs + 1):
                sums = loop.train(epoch, batches, epoch * source.steps, _no_progress)
                values = {
                    "loss": sums.mean_loss,
                    "epoch/time_s": sums.time_s,
                    "input/wait_fraction": sums.wait_fraction,
                    "input/examples_per_s": sums.examples / sums.time_s,
                }
                monitor.epoch(epoch=epoch, step=loop.step, values=values)
                times.append((sums.time_s, sums.wait_s))
        return times

    def _step_alone(self, source: Input) -> float:
        """Return the median time of a step, in ms, on one batch that is in memory."""
        with closing(source.batches(1)) as batches:
            images, labels, weights, mirrored, _ = next(batches)
        stop = tf.constant(0.0)
        self._steps.train(images, labels, weights, mirrored, stop).numpy()
        times: list[float] = []
        while sum(times) < STEP_SHARE * self._comparison.options.measure_seconds or len(times) < 5:
            begin = time.perf_counter()
            self._steps.train(images, labels, weights, mirrored, stop).numpy()
            times.append(time.perf_counter() - begin)
        return 1000 * float(np.median(times))

    def _alone(self, source: Input) -> Alone:
        """Measure an input without a model: its first epoch from the disk, and later ones."""
        self._forget(source)
        with closing(source.batches(MANY_EPOCHS)) as batches:
            cold_s = self._epoch_s(batches, source.steps)
            warm_s: list[float] = []
            while sum(warm_s) < self._comparison.options.measure_seconds:
                warm_s.append(self._epoch_s(batches, source.steps))
            kept = cached_fraction(source.paths)
        return Alone(
            cold_per_s=source.examples / cold_s,
            warm_per_s=source.examples * len(warm_s) / sum(warm_s),
            kept_fraction=kept,
        )

    def _epoch_s(self, batches: Batches, steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            self._require_no_stop()
            next(batches)
        return time.perf_counter() - begin

    def _forget(self, source: Input) -> float | None:
        """Empty the page cache of the files of a contender, and return the share that the kernel kept, if it tells."""
        drop_page_cache(source.paths)
        return cached_fraction(source.paths)

    def _require_no_stop(self) -> None:
        if self._should_stop():
            raise Preempted("the comparison was stopped: run the same command again, or clear the task measure")

    def _raw_files(self, folder: Path, dataset: Dataset) -> RawFiles:
        if self._raw is None:
            self._raw = raw_files_of(folder, dataset, self._comparison.source_root)
        return self._raw

    def _on_devices(self, batches: tf.data.Dataset) -> Any:
        return on_devices(batches, self._settings.batch_size, self._strategy)


def _in_turn(batches: Iterator[NumberedBatch]) -> Batches:
    """Yield the same batches. The step itself sends them to its device, so none is on its way ahead."""
    yield from batches


def _no_progress(_count: int, _size: int = 0) -> None:
    """Show nothing: the progress is that of the measurements."""
