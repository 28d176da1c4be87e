"""The training loop: ours, so that it serves every strategy and times the wait for data exactly.

Keras callbacks cannot see that wait: they report none on a job that waits 94% of its time.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import tensorflow as tf

from pipeline.errors import Preempted, TrainingError
from pipeline.input import one_ahead
from pipeline.monitor import Monitor, StepClock
from pipeline.system.progress import Advance

Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
"""Images, labels and weights."""
NumberedBatch = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
"""The same, which images the step is to mirror, and the numbers of the examples."""


@dataclass
class Sums:
    """Sums over the examples of an epoch."""

    examples: int = 0
    loss: float = 0.0
    right: float = 0.0
    wait_s: float = 0.0
    time_s: float = 0.0

    def add(self, examples: int, loss: float, right: float, wait_s: float = 0.0) -> None:
        """What came of one step."""
        self.examples += examples
        self.loss += loss
        self.right += right
        self.wait_s += wait_s

    @property
    def mean_loss(self) -> float:
        """Loss of an example on average."""
        return self.loss / max(self.examples, 1)

    @property
    def accuracy(self) -> float:
        """Share of the examples that were right, 0 to 1."""
        return self.right / max(self.examples, 1)

    @property
    def wait_fraction(self) -> float:
        """Share of the time that was spent waiting for data, 0 to 1."""
        return self.wait_s / self.time_s if self.time_s else 0.0


class TakesSteps(Protocol):
    """`Steps`, or what is like it."""

    def train(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, asked: tf.Tensor, /
    ) -> tf.Tensor: ...

    def evaluate(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, asked: tf.Tensor, /) -> tf.Tensor: ...


@dataclass
class EpochLoop:
    """Runs epochs over batches, reporting each step to the monitor.

    `stopping` is asked before each step, and what it says goes through the step: all servers leave after the same one.
    """

    steps: TakesSteps
    monitor: Monitor
    stopping: Callable[[], bool]
    step: int = 0
    """Training steps done since the first epoch, over all tries."""
    sums: Sums = field(default_factory=Sums)
    """Those of the epoch under way, over all tries."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds that never go back."""
    aside: Callable[[], float] = lambda: 0.0
    """Seconds for which `clock` stood still: what the host did that is no part of an epoch's time."""
    after_step: Callable[[int], None] = lambda epochs_done: None
    """Called after each training step with the number of epochs that are done."""
    describe: Callable[[NumberedBatch, Sequence[float]], str] = lambda batch, spoiled: "one batch"
    """Describes the part of a batch that spoiled a step, for an error message. `Steps` says which replicas did."""

    ready_pct: Callable[[int], float | None] = lambda taken: None
    """How many batches are ready, in percent, after that many were taken."""
    python_calls: Callable[[], int] = lambda: 0
    """How many operations of a step call Python code; asked after each step."""
    is_simulated: bool = False
    """Whether the steps only wait, instead of using an accelerator."""
    doing: str = "waiting for the first batch"
    """What it does now, in words for a person who waits for the next step."""

    def __post_init__(self) -> None:
        self._has_compiled = False
        self._taken = 0
        self._times = StepClock(self.clock, self.aside)

    def train(self, epoch: int, batches: Iterator[NumberedBatch], last_step: int, advance: Advance) -> Sums:
        """Take batches up to the end of an epoch (from 1), which is `last_step`; `advance` is told of every example.

        Raises Preempted if a stop is requested, and TrainingError if the loss or the gradients of a step are not
        finite. The message names the batch of that step.
        """
        start = self.clock() - self.sums.time_s
        advance(self.sums.examples)
        self._times.pause()
        while self.step < last_step:
            before = self.sums.examples
            ready_pct = self.ready_pct(self._taken)
            asked = self._train_step(epoch, self._timed_next(batches), ready_pct)
            self.sums.time_s = self.clock() - start
            advance(self.sums.examples - before)
            self.after_step(epoch - 1)
            if asked:
                raise Preempted(f"asked to stop after step {self.step}")
        self._times.pause()
        self.doing = "between two epochs, in the validation, callbacks or a checkpoint"
        sums, self.sums = self.sums, Sums()
        return sums

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Around a checkpoint: the time is that of the checkpoint, and told with the next step."""
        self._times.add_host()
        yield
        self._times.add_checkpoint()

    def _timed_next(self, batches: Iterator[NumberedBatch]) -> NumberedBatch:
        self._times.add_host()
        self.doing = "waiting for a batch" if self._has_compiled else "waiting for the first batch"
        batch = next(batches)
        self._taken += 1
        self._times.add_wait()
        self.doing = "computing a step" if self._has_compiled else "compiling the first step"
        return batch

    def _train_step(self, epoch: int, batch: NumberedBatch, ready_pct: float | None) -> bool:
        """Take one step; whether some server is asked to stop."""
        # `numpy` waits for the device, which would otherwise still be at work.
        loss, right, examples, asked, *spoiled = self.steps.train(*batch[:4], self._asked()).numpy().tolist()
        self._times.add_compute()
        self._has_compiled = True
        self.step += 1

        def where() -> str:
            return f"at step {self.step} of epoch {epoch}, in {self.describe(batch, spoiled)}"

        _require_number(loss, where)
        if any(spoiled):  # The loss was finite. Without this check, the error would name the next batch.
            raise TrainingError(
                f"the gradients overflowed {where()}: lower learning_rate, set clip_norm, or look at the data; the "
                "next try goes on from the checkpoint before"
            )
        times = self._times.take()
        self.monitor.batch(
            step=self.step,
            epoch=epoch,
            times=times,
            examples=int(examples),
            ready_pct=ready_pct,
            python_calls=self.python_calls(),
            is_simulated=self.is_simulated,
        )
        self.sums.add(int(examples), loss, right, times.wait_s)
        return bool(asked)

    def _asked(self) -> tf.Tensor:
        return tf.constant(float(self.stopping()))

    def evaluate(self, batches: Iterable[Batch]) -> Sums:
        """Loss and accuracy over all of `batches`, exact whatever their padding."""
        sums = Sums()
        start = self.clock()
        for batch in one_ahead(batches):
            loss, right, examples, asked = self.steps.evaluate(*batch, self._asked()).numpy().tolist()
            if asked:
                raise Preempted(f"asked to stop in the validation after step {self.step}")
            _require_number(loss, lambda: f"in the validation after step {self.step}")
            sums.add(int(examples), loss, right)
        sums.time_s = self.clock() - start
        return sums


def _require_number(loss: float, where: Callable[[], str]) -> None:
    if not math.isfinite(loss):
        raise TrainingError(
            f"the loss became {loss} {where()}: lower learning_rate, set clip_norm, or look at the data"
        )
