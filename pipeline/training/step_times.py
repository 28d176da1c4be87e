"""The process that measures steps without an input: `python -m pipeline.training.step_times FOLDER PARENT`.

FOLDER is that of a training that is over, and PARENT is a process id. It trains the model on one batch in memory, in
turn with and without each change (pipeline/runs/measured_steps.py), on the devices of the training. It changes nothing
of the training.

Exit codes: 0 all is measured; 75 stopped on request; 1 failed, and the log says why.
"""

import gc
import logging
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.config.automatic import TrainingSettings
from pipeline.config.settings import validated
from pipeline.dataset.manifest import Dataset, load_allowed
from pipeline.errors import BadInput, Preempted
from pipeline.evaluation.blocks import geometric_mean
from pipeline.monitor.verdict import diagnose_run
from pipeline.runs.changes import values_in_words
from pipeline.runs.measured_steps import MeasuredSteps, StepRatio, save_steps, step_changes
from pipeline.runs.run import EXIT_PREEMPTED, Run, load_run
from pipeline.storage import place_of
from pipeline.system.process import end_with_parent
from pipeline.system.progress import log_to_stderr
from pipeline.training.gpus import own_gpus
from pipeline.training.stop import Stage, Stop
from pipeline.training.tensorflow_start import found_gpus

if TYPE_CHECKING:
    import tensorflow as tf

    from pipeline.training.step.loop import TakesSteps

ROUNDS, MIN_ROUNDS, LIMIT_S = 8, 3, 30.0
"""Each round has a block of steps with the change, and one without. There are fewer rounds if they take long."""
BLOCK_S = 0.25
"""A block takes at least this long, in seconds."""
SENT_TOGETHER = 4
"""Calls are sent to the accelerator in such groups, as a training sends a step before the last one is done."""
_log = logging.getLogger("pipeline.training.step_times")


def main(folder: Path, parent: int) -> int:
    """Measure the steps of the training in `folder`; return the exit code."""
    log_to_stderr()
    stop = Stop()
    stop.obey_sigterm()
    stop.enter(Stage.STARTING)  # It has nothing to save.
    end_with_parent(parent, signal.SIGTERM)
    run, verdict = load_run(folder), diagnose_run(folder)
    try:
        run.require_allowed()  # Another user of the folder may have changed its file, or made links.
        # If other trainings use the GPUs, nothing is measured: it is only advice.
        with own_gpus(
            run.settings.model_copy(update={"server_wait_minutes": 0.0}), None, stop.requested.is_set
        ) as gpus:
            _log.info("loading TensorFlow")
            gpus.confirm()
            if bool(found_gpus()) != verdict.load.has_gpu:
                where = "GPUs" if verdict.load.has_gpu else "no GPU"
                raise BadInput(f"the training had {where}, and this process differs: run the command where it trained")
            save_steps(folder, measured(run, step_changes(verdict, run.settings)))
    except Preempted as reason:
        _log.warning("%s", reason)
        return EXIT_PREEMPTED
    except Exception as error:  # noqa: BLE001 - XLA and GPUs have errors of many kinds, and it is only advice
        _log.warning("the steps cannot be measured: %s", error)
        return 1
    return 0


def measured(run: Run, changes: Sequence[Mapping[str, Any]]) -> MeasuredSteps:
    """Return how long the steps of a training take, as they are and with each change.

    A change that fails is left out, with a warning.
    """
    from pipeline.input.batches import training_batches
    from pipeline.input.options import batch_options
    from pipeline.training.failure.device_memory import micro_batches_of
    from pipeline.training.inputs import stacked
    from pipeline.training.step.strategy import open_strategy, share_of_device, taken_ahead

    strategy, place, options = open_strategy(None), place_of(run.dataset), batch_options(run.settings)
    dataset, found = load_allowed(place), []
    batches, count = training_batches(place, options, numbered=True), 1
    # As in the training, small batches are sent together.
    if strategy.num_replicas_in_sync == 1 and not (run.settings.freeze_epochs or run.settings.callbacks):
        batches, count = stacked(batches)
    sent = taken_ahead(batches, options.batch_size, strategy)
    *batch, _ = next(sent)
    sent.close()
    parts = micro_batches_of(run, share_of_device(options.batch_size, strategy))
    # The model whose base is frozen at first is measured as it is later.
    settings = run.settings.model_copy(update={"micro_batches": parts, "freeze_epochs": 0})
    _log.info("measuring the steps without an input")
    usual = _Steps(settings, dataset, strategy, batch, count)
    blocks = [usual.block() for _ in _rounds()]

    def ratio(change: Mapping[str, Any]) -> StepRatio:
        other = validated(TrainingSettings, {**settings.model_dump(), **change})
        changed = _Steps(other, dataset, strategy, batch, count)
        ratios = [changed.block().elapsed_s / usual.block().elapsed_s for _ in _rounds()]
        return StepRatio(change, geometric_mean(np.array(ratios)), changed.start_s)

    for change in changes:
        words = values_in_words(change)
        _log.info("measuring steps with %s", words)
        try:
            found.append(ratio(change))
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("steps with %s cannot be measured: %s: %s", words, type(error).__name__, error)
        gc.collect()  # The next model may need the memory of this one.
    us = 1e6 / settings.batch_size
    return MeasuredSteps(
        geometric_mean(us * np.array([block.elapsed_s for block in blocks])),
        geometric_mean(us * np.array([block.cpu_s for block in blocks])),
        found,
    )


def _rounds() -> Iterator[int]:
    """Count ROUNDS, or fewer if they take longer than LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    for number in range(ROUNDS):
        if number < MIN_ROUNDS or time.monotonic() < end:
            yield number


class _Block(NamedTuple):
    """Seconds of a step, as the mean of a block."""

    elapsed_s: float
    cpu_s: float
    """Of all threads of this process."""


class _Steps:
    """The steps of a model with some settings, all on one batch, or on one stack of `count` batches."""

    def __init__(
        self,
        settings: TrainingSettings,
        dataset: Dataset,
        strategy: "tf.distribute.Strategy",
        batch: Sequence[Any],
        count: int,
    ) -> None:
        from pipeline.training.step.loop import GROUP_S
        from pipeline.training.step.phases import built_steps

        begin = time.perf_counter()
        self._steps: TakesSteps = built_steps(settings, dataset, strategy).steps
        self._batch, self._count = tuple(batch), count
        self._is_stack = count > 1
        self._send().numpy()
        self.start_s = time.perf_counter() - begin
        """Seconds until the first step was done."""
        begin = time.perf_counter()
        self._send().numpy()
        call_s = time.perf_counter() - begin
        # As the loop of a training does: long steps are sent one by one.
        self._count = max(1, min(count, int(GROUP_S * count / call_s)))
        self._together = SENT_TOGETHER if call_s < BLOCK_S else 1

    def _send(self) -> Any:
        import tensorflow as tf

        stop = tf.constant(0.0)
        features, labels, weights, mirrored = self._batch
        if not self._is_stack:
            return self._steps.train(features, labels, weights, mirrored, stop)
        assert self._steps.train_several
        return self._steps.train_several(self._batch, tf.constant(0), tf.constant(self._count), stop)

    def block(self) -> _Block:
        """Take a block of steps."""
        steps, begin, cpu_s, elapsed_s = 0, time.perf_counter(), time.process_time(), 0.0
        while elapsed_s < BLOCK_S:
            for _ in range(self._together):
                sums = self._send()
            sums.numpy()  # Waits for the accelerator.
            steps += self._together * self._count
            elapsed_s = time.perf_counter() - begin
        return _Block(elapsed_s / steps, (time.process_time() - cpu_s) / steps)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
