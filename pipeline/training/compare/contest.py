"""One model that trains from several inputs in turn, and the times of each: the measuring half of a comparison."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from pipeline.dataset import manifest as datasets
from pipeline.monitor import open_monitor, read
from pipeline.monitor.limits import OTHERS
from pipeline.monitor.load import load_of
from pipeline.system.page_cache import cached_fraction, drop_page_cache
from pipeline.training.compare.contender_inputs import ContenderInputs, Input, measured_alone
from pipeline.training.failure.device_memory import require_divisible
from pipeline.training.step.loop import EpochLoop
from pipeline.training.step.phases import built_steps
from pipeline.training.step.strategy import open_strategy, share_of_device
from pipeline.tuning.contenders import Contender
from pipeline.tuning.measurement import Comparison, Measurement

STEP_SHARE = 0.5
"""The step alone is measured for this share of `measure_seconds`."""
ALONE = "alone"
"""Folder of the record beside the inputs without a model, in the folder of a measurement."""


class Contest:
    """The model and its steps, which are traced once and then serve every contender.

    Raises BadInput if the settings do not fit the model or the devices.
    """

    def __init__(self, comparison: Comparison, should_stop: Callable[[], bool]) -> None:
        self._comparison, self._should_stop = comparison, should_stop
        self._settings = settings = comparison.training_settings()
        self._strategy = open_strategy(None)
        self.inputs = ContenderInputs(comparison, self._strategy)
        dataset = datasets.load(Path(next(iter(comparison.datasets.values()))))
        require_divisible(settings, share_of_device(settings.batch_size, self._strategy))
        built = built_steps(settings, dataset, self._strategy)
        self._steps = built.steps
        self._variables = [*built.model.variables, *built.optimizer.variables]
        self._first_values = [keras.ops.convert_to_numpy(variable) for variable in self._variables]

    def measure(self, contender: Contender, round_number: int, folder: Path, repeated: int) -> Measurement:
        """Measure a contender once, and write its record into `folder`, in place of that of a stopped attempt.

        `round_number` counts from 0, and `repeated` is the number of earlier attempts that were disturbed.

        Raises:
            Preempted: If a stop is requested.
            SourceError: If it reads raw files, and one of them is in a bucket.
            tf.errors.OpError: If TensorFlow cannot read a file or decode an image, or runs out of memory.
            OSError: If a file is missing or cannot be opened.
        """
        source = self.inputs.of(contender)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        step_alone_ms = self._step_alone(source)  # It also traces the step, so that no epoch contains the tracing.
        drop_page_cache(source.paths)
        cached = cached_fraction(source.paths)  # The share that the kernel kept, if it tells.
        epochs = self._train(source, folder)
        with open_monitor(folder / ALONE):
            alone = measured_alone(source, self._comparison.options.measure_seconds, self._should_stop)
        loads = [load_of(read(each / "record", "samples")) for each in (folder, folder / ALONE)]
        other_cores = max((each.other_cores for each in loads if each.other_cores is not None), default=None)
        return Measurement(
            contender=contender.name,
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
        with open_monitor(folder) as monitor, source.opened(epochs) as batches:
            loop = EpochLoop(
                steps=self._steps,
                monitor=monitor,
                should_stop=self._should_stop,
                is_simulated=bool(self._settings.simulated_step_ms),
            )
            for epoch in range(1, epochs + 1):
                sums = loop.train(epoch, batches, epoch * source.steps, advance=lambda *_: None)
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
        with source.opened(1) as batches:
            images, labels, weights, mirrored, _ = next(batches)
        stop = tf.constant(0.0)
        self._steps.train(images, labels, weights, mirrored, stop).numpy()
        times: list[float] = []
        while sum(times) < STEP_SHARE * self._comparison.options.measure_seconds or len(times) < 5:
            begin = time.perf_counter()
            self._steps.train(images, labels, weights, mirrored, stop).numpy()
            times.append(time.perf_counter() - begin)
        return 1000 * float(np.median(times))
