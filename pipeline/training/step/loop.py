"""The training loop: ours, so that it serves every strategy and times the wait for data exactly.

Keras callbacks cannot see that wait: they report none on a job that waits 94% of its time.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import tensorflow as tf

from pipeline.errors import Preempted, TrainingError
from pipeline.input import one_ahead
from pipeline.monitor import Monitor, StepClock
from pipeline.system.progress import Advance

Features: TypeAlias = tf.Tensor | dict[str, tf.Tensor]
"""What a model takes: images, or the columns of a table."""
Batch = tuple[Features, tf.Tensor, tf.Tensor]
"""Features, labels and weights."""
NumberedBatch = tuple[Features, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
"""Features, labels, weights, which images the step mirrors, and the numbers of the examples."""


MAX_SKIPPED = 50
"""A training ends if it has skipped this many steps in a row."""
MIN_LOSS_SCALE = 1.0
"""A training ends if its loss scale falls below this number. Loss scaling is meant to enlarge gradients."""


@dataclass
class Sums:
    """Sums over the examples of an epoch."""

    examples: int = 0
    loss: float = 0.0
    correct: float = 0.0
    """The metric of the task: how many predictions are correct, or for a regression the absolute errors."""
    wait_s: float = 0.0
    """Seconds that the training waited for data."""
    time_s: float = 0.0

    def add(self, examples: int, loss: float, correct: float, wait_s: float = 0.0) -> None:
        """Add the result of one training step."""
        self.examples += examples
        self.loss += loss
        self.correct += correct
        self.wait_s += wait_s

    @property
    def mean_loss(self) -> float:
        """Mean loss of an example."""
        return self.loss / max(self.examples, 1)

    @property
    def mean_metric(self) -> float:
        """The accuracy, 0 to 1. For a regression, the mean absolute error."""
        return self.correct / max(self.examples, 1)

    @property
    def wait_fraction(self) -> float:
        """Share of the time that the training waited for data, 0 to 1."""
        return self.wait_s / self.time_s if self.time_s else 0.0


class TakesSteps(Protocol):
    """The interface of `Steps`, which says what both methods take and return."""

    @property
    def python_calls(self) -> int:
        """How many operations of the training step call Python code, once it is traced."""

    def train(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, should_stop: tf.Tensor, /
    ) -> tf.Tensor:
        """Take one training step."""

    def evaluate(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, should_stop: tf.Tensor, /
    ) -> tf.Tensor:
        """Take one step of the validation."""


@dataclass
class Activity:
    """What the training does now. The training sets the text, and the thread of the monitor reads it."""

    text: str = "waiting for the first batch"


@dataclass
class EpochLoop:
    """Runs epochs over batches, and reports each step to the monitor.

    It calls `should_stop` before each step, and the answer goes through the step: all servers leave after the same one.
    """

    steps: TakesSteps
    monitor: Monitor
    should_stop: Callable[[], bool]
    step: int = 0
    """Training steps since the first epoch, over all attempts."""
    sums: Sums = field(default_factory=Sums)
    """Sums of the current epoch, over all attempts."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds that never go back."""
    host_s: Callable[[], float] = lambda: 0.0
    """Seconds for which `clock` stood still: work of the host that is no part of an epoch's time."""
    describe: Callable[[NumberedBatch, Sequence[float]], str] = lambda batch, spoiled: "one batch"
    """Describes the part of a batch that spoiled a step, for an error message. `Steps` says which replicas did."""

    ready_pct: Callable[[int], float | None] = lambda taken: None
    """How many batches are ready, in percent, after that many were taken."""
    is_simulated: bool = False
    """Whether the steps only wait, instead of using an accelerator."""
    activity: Activity = field(default_factory=Activity)
    """Kept up to date, for a person who waits for the next step."""

    def __post_init__(self) -> None:
        self._has_compiled = False
        self._taken = 0
        self._times = StepClock(self.clock, self.host_s)

    def train(
        self,
        epoch: int,
        batches: Iterator[NumberedBatch],
        last_step: int,
        advance: Advance,
        after_step: Callable[[int], None] = lambda epochs_done: None,
    ) -> Sums:
        """Take the training steps that are left of an epoch, and return its sums.

        Args:
            epoch: Number of the epoch, from 1.
            batches: The batches that are left, of later epochs too.
            last_step: Last step of the epoch, counted from the first epoch.
            advance: Called with the number of examples that were done.
            after_step: Called after each step with the number of epochs that are done.

        Raises:
            Preempted: If a stop is requested.
            TrainingError: If the loss or the gradients of a step are not finite. It names the batch of that step. Also
                if loss scaling skips one step after the other.
        """
        # The sums hold the time that earlier attempts spent on this epoch.
        start = self.clock() - self.sums.time_s
        advance(self.sums.examples)
        # The time since the last step was the validation, or the start of the process. It is no part of a step.
        self._times.pause()
        while self.step < last_step:
            before = self.sums.examples
            # Before the next batch is taken: afterwards, the buffer has a free place at any speed of the input.
            ready_pct = self.ready_pct(self._taken)
            should_stop = self._train_step(epoch, self._timed_next(batches), ready_pct)
            self.sums.time_s = self.clock() - start
            advance(self.sums.examples - before)
            after_step(epoch - 1)
            if should_stop:
                raise Preempted(f"the training was asked to stop after step {self.step}")
        self._times.pause()
        self.activity.text = "working between two epochs (validation, callbacks or a checkpoint)"
        sums, self.sums = self.sums, Sums()
        return sums

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Wrap the writing of a checkpoint: report its time as that of the checkpoint, with the next step."""
        self._times.add_host()
        yield
        self._times.add_checkpoint()

    def _timed_next(self, batches: Iterator[NumberedBatch]) -> NumberedBatch:
        self._times.add_host()
        self.activity.text = "waiting for a batch" if self._has_compiled else "waiting for the first batch"
        batch = next(batches)
        self._taken += 1
        self._times.add_wait()
        self.activity.text = "computing a step" if self._has_compiled else "compiling the first step"
        return batch

    def _train_step(self, epoch: int, batch: NumberedBatch, ready_pct: float | None) -> bool:
        """Take one step, and return whether some server should stop."""
        features, labels, weights, mirrored, _ = batch
        result = self.steps.train(features, labels, weights, mirrored, tf.constant(float(self.should_stop())))
        # `numpy` waits for the device, which would otherwise still be at work.
        loss, correct, examples, should_stop, skipped, loss_scale, *spoiled = result.numpy().tolist()
        self._times.add_compute()
        self._has_compiled = True
        self.step += 1

        def where() -> str:
            return f"at step {self.step} of epoch {epoch}, in {self.describe(batch, spoiled)}"

        _require_number(loss, where)
        if any(spoiled):  # The loss was finite. Without this check, the error would name the next batch.
            raise TrainingError(
                f"the gradients overflowed {where()}: lower learning_rate, set clip_norm, or check the data; the next "
                "attempt continues from the previous checkpoint"
            )
        _require_learning(skipped, loss_scale, f"at step {self.step} of epoch {epoch}")
        times = self._times.take()
        self.monitor.batch(
            step=self.step,
            epoch=epoch,
            times=times,
            examples=int(examples),
            ready_pct=ready_pct,
            python_calls=self.steps.python_calls,
            is_simulated=self.is_simulated,
        )
        self.sums.add(int(examples), loss, correct, times.wait_s)
        return bool(should_stop)

    def evaluate(self, batches: Iterable[Batch]) -> Sums:
        """Return the sums over all of `batches`, without their padding.

        Raises:
            Preempted: If a stop is requested.
            TrainingError: If the loss is not finite.
        """
        sums = Sums()
        start = self.clock()
        for features, labels, weights in one_ahead(batches):
            result = self.steps.evaluate(features, labels, weights, tf.constant(float(self.should_stop())))
            loss, correct, examples, should_stop = result.numpy().tolist()
            if should_stop:
                raise Preempted(f"the training was asked to stop in the validation after step {self.step}")
            _require_number(loss, lambda: f"in the validation after step {self.step}")
            sums.add(int(examples), loss, correct)
        sums.time_s = self.clock() - start
        return sums


def _require_number(loss: float, where: Callable[[], str]) -> None:
    if not math.isfinite(loss):
        raise TrainingError(f"the loss became {loss} {where()}: lower learning_rate, set clip_norm, or check the data")


def _require_learning(skipped: float, loss_scale: float, where: str) -> None:
    """Refuse to go on if loss scaling has skipped too many steps in a row, or has found no scale that is large enough.

    Raises:
        TrainingError: With both numbers.
    """
    if skipped >= MAX_SKIPPED or loss_scale < MIN_LOSS_SCALE:
        raise TrainingError(
            f"the training does not learn any more {where}: the gradients in 16 bits are infinite or NaN with a loss "
            f"scale of {2 * loss_scale:g} (the last {skipped:.0f} steps in a row were skipped): set precision to "
            "mixed_bfloat16 or float32, or lower learning_rate"
        )
