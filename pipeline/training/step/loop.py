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
from pipeline.monitor import Monitor, StepClock, StepStart, StepTimes
from pipeline.system.progress import Advance
from pipeline.training.step.dispatch import InFlight, Result, SentSteps

Features: TypeAlias = tf.Tensor | dict[str, tf.Tensor]
"""What a model takes: images, or the columns of a table."""
Batch = tuple[Features, tf.Tensor, tf.Tensor]
"""Features, labels and weights."""
NumberedBatch = tuple[Features, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
"""Features, labels, weights, which images the step mirrors, and the numbers of the examples."""
GROUP_S = 0.02
"""Short steps are sent in groups that take about this many seconds, because sending costs up to a millisecond."""
MAX_SKIPPED = 50
"""A training ends if it has skipped this many steps in a row. A loss scale that has not grown ends it before."""
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
    """The interface of `Steps`, which says what the methods take and return."""

    @property
    def python_calls(self) -> int:
        """How many operations of the training step call Python code, once it is traced."""

    def train(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, should_stop: tf.Tensor, /
    ) -> Result:
        """Take one training step."""

    @property
    def train_several(self) -> Callable[..., Result] | None:
        """Take several steps that are sent together; None if this is not possible."""

    def evaluate(self, features: Features, labels: tf.Tensor, weights: tf.Tensor, should_stop: tf.Tensor, /) -> Result:
        """Take one step of the validation."""


class Saver(Protocol):
    """Writes the checkpoints of a loop."""

    def steps_until_due(self, step: int) -> float:
        """Return after how many steps from `step` on a checkpoint is due: 0 if now, infinity if never."""

    def save(self, epochs_done: int) -> None:
        """Write a checkpoint. All steps that were sent are computed, and their results are finite."""


@dataclass(frozen=True)
class StepGroup:
    """Steps that are sent to the accelerator together: `count` batches of a stack, from its batch `first` on.

    Without a stack, `batches` is one batch.
    """

    batches: NumberedBatch
    first: int
    count: int
    is_stack: bool
    ready_pct: float | None
    begun: StepStart

    def batch(self, number: int) -> NumberedBatch:
        """Return one of the batches, from 0."""
        if not self.is_stack:
            return self.batches
        batch: NumberedBatch = tf.nest.map_structure(lambda stack: stack[self.first + number], self.batches)
        return batch


@dataclass
class Activity:
    """What the training does now. The training sets the text, and the thread of the monitor reads it."""

    text: str = "waiting for the first batch"


@dataclass
class EpochLoop:
    """Runs epochs over batches, and reports each step to the monitor.

    On an accelerator that works beside the host, it sends a step before it reads the result of the step before. It
    calls `should_stop` before each step. A single server then sends no more steps. With several servers, the step
    carries the answer to all of them. They leave one step later, or at the end of the epoch, because some may have sent
    the next step before they read the answer.
    """

    steps: TakesSteps
    monitor: Monitor
    should_stop: Callable[[], bool]
    step: int = 0
    """Training steps since the first epoch, over all attempts, whose results were read."""
    sums: Sums = field(default_factory=Sums)
    """Sums of the current epoch up to `step`, over all attempts."""
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
    servers: int = 1
    stacked: int = 1
    """How many batches the input stacks. If more than 1, the loop sends several steps together."""

    def __post_init__(self) -> None:
        self._has_compiled = False
        self.take_from(self.ready_pct, self.stacked)
        self._step_s = math.inf
        """Seconds of one of the last steps; unknown until the second one."""
        self._times = StepClock(self.clock, self.host_s)
        self._in_flight: InFlight[StepGroup] = InFlight(self.clock)
        self._leave_after: float = math.inf
        """The step after which the loop ends, once a stop is requested; infinity before."""

    def take_from(self, ready_pct: Callable[[int], float | None], stacked: int) -> None:
        """Take the next batches from another input. What is left of the stack of the one before is not used."""
        self.ready_pct, self.stacked = ready_pct, stacked
        self._taken = 0
        self._stack: NumberedBatch | None = None
        self._used = stacked
        """How many batches of the stack were sent."""

    def train(
        self, epoch: int, batches: Iterator[NumberedBatch], last_step: int, advance: Advance, saver: Saver | None = None
    ) -> Sums:
        """Take the training steps that are left of an epoch, and return its sums.

        Args:
            epoch: Number of the epoch, from 1.
            batches: The batches that are left, of later epochs too, or stacks of them.
            last_step: Last step of the epoch, counted from the first epoch.
            advance: Called with the number of examples that were done.
            saver: Writes a checkpoint when one is due. None: nothing does.

        Raises:
            Preempted: If a stop is requested.
            TrainingError: If the loss or the gradients of a step are not finite. It names the batch of that step. Also
                if loss scaling skips one step after the other.
        """
        start = self.clock() - self.sums.time_s  # The sums hold the time that earlier attempts spent on this epoch.
        advance(self.sums.examples)

        def finish(sent: Iterable[SentSteps[StepGroup]]) -> None:
            for each in sent:
                advance(self._finish(epoch, each))
                self.sums.time_s = self.clock() - start

        # The time since the last step was the validation, or the start of the process. It is no part of a step.
        self._times.pause()
        while (left := min(last_step, self._leave_after) - self._sent) > 0:
            due = max(1, saver.steps_until_due(self._sent)) if saver else math.inf
            try:
                self._send(batches, int(min(left, due, self.stacked)))
            except Exception:
                # A stop can end the wait for a batch. The checkpoint then needs the results of all steps before.
                finish(self._in_flight.take_all())
                raise
            finish(self._in_flight.take_due())
            if saver and saver.steps_until_due(self._sent) <= 0 and self._is_finite():
                finish(self._in_flight.take_all())
                saver.save(epoch - 1)
        finish(self._in_flight.take_all())
        if self._leave_after < math.inf:
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

    @property
    def _sent(self) -> int:
        """The last step that was sent."""
        return self.step + sum(sent.about.count for sent in self._in_flight)

    def _is_finite(self) -> bool:
        """Wait for all steps that were sent, and return whether a checkpoint may hold the state after them."""
        # If not, the loop goes on to the next step, as the other servers do. The error follows on all of them there.
        return all(_is_finite(row) for sent in self._in_flight for row in sent.rows())

    def _send(self, batches: Iterator[NumberedBatch], max_steps: int) -> None:
        """Take the next batch, and send its step to the accelerator; up to `max_steps` of them if they are short.

        If a stop is requested, a single server sends only the steps before the request, which may be none.
        """
        self._times.add_host()
        # Before the next batch is taken: afterwards, the buffer has a free place at any speed of the input.
        ready_pct = self.ready_pct(self._taken)
        self.activity.text = "waiting for a batch" if self._has_compiled else "waiting for the first batch"
        if self._stack is None or self._used == self.stacked:
            self._stack, self._used = next(batches), 0
        self._times.add_wait()
        self.activity.text = "computing a step" if self._has_compiled else "compiling the first step"
        count = min(max_steps, self.stacked - self._used, max(1, int(GROUP_S / self._step_s)))
        # No step is sent after the one with the request, as if each was sent alone.
        asked = next((number for number in range(1, count + 1) if self.should_stop()), None)
        count = asked or count
        if asked and self.servers == 1:
            # Not even the step with the request: if steps take seconds, the time for a stop could pass before its end.
            count = asked - 1
            self._leave_after = self._sent + count
            if not count:
                return
        should_stop = tf.constant(float(asked is not None))
        first, self._used, self._taken = self._used, self._used + count, self._taken + count
        sent = StepGroup(self._stack, first, count, self.stacked > 1, ready_pct, self._times.begin())
        self._in_flight.add(self._result(sent, should_stop), sent)

    def _result(self, sent: StepGroup, should_stop: tf.Tensor) -> Result:
        features, labels, weights, mirrored, _ = sent.batches
        if not sent.is_stack:
            return self.steps.train(features, labels, weights, mirrored, should_stop)
        assert self.steps.train_several
        steps = tf.constant(sent.first), tf.constant(sent.count)
        return self.steps.train_several((features, labels, weights, mirrored), *steps, should_stop)

    def _finish(self, epoch: int, sent: SentSteps[StepGroup]) -> int:
        """Read the results of steps that were sent together, report them, and return their number of examples."""
        rows, count = sent.rows(), sent.about.count
        times = self._times.end(sent.about.begun, sent.ended).share(count)
        if self._has_compiled:
            self._step_s = max(times.compute_s, 1e-6)
        self._has_compiled = True
        return sum(self._report(epoch, number, row, times, sent) for number, row in enumerate(rows))

    def _report(
        self, epoch: int, number: int, row: Sequence[float], times: StepTimes, sent: SentSteps[StepGroup]
    ) -> int:
        """Check and report the result of step `number`, from 0, of those sent together. Return its examples."""
        loss, correct, examples, should_stop, skipped, loss_scale, *spoiled = row
        self.step += 1

        def where() -> str:
            return f"at step {self.step} of epoch {epoch}, in {self.describe(sent.about.batch(number), spoiled)}"

        _require_number(loss, where)
        if any(spoiled):  # The loss was finite. Without this check, the error would name the next batch.
            raise TrainingError(
                f"the gradients overflowed {where()}: lower learning_rate, set clip_norm, or check the data; the next "
                "attempt continues from the previous checkpoint"
            )
        _require_learning(skipped, loss_scale, f"at step {self.step} of epoch {epoch}")
        if should_stop and self.servers > 1:
            # Other servers may have sent the next step already.
            self._leave_after = min(self._leave_after, self.step + 1)
        self.monitor.batch(
            step=self.step,
            epoch=epoch,
            times=times,
            examples=int(examples),
            ready_pct=sent.about.ready_pct,
            python_calls=self.steps.python_calls,
            is_simulated=self.is_simulated,
            # Steps that were sent together ended one after the other.
            ago_s=self.clock() - sent.ended + (sent.about.count - 1 - number) * times.whole_s,
        )
        self.sums.add(int(examples), loss, correct, times.wait_s)
        return int(examples)

    def evaluate(self, batches: Iterable[Batch]) -> Sums:
        """Return the sums over all of `batches`, without their padding.

        Raises:
            Preempted: If a stop is requested.
            TrainingError: If the loss is not finite.
        """
        sums, in_flight = Sums(), InFlight[None](self.clock)
        start = self.clock()
        rows_read, leave_after = 0, math.inf

        def finish(sent: Iterable[SentSteps[None]]) -> None:
            nonlocal rows_read, leave_after
            for loss, correct, examples, should_stop in (row for each in sent for row in each.rows()):
                _require_number(loss, lambda: f"in the validation after step {self.step}")
                sums.add(int(examples), loss, correct)
                rows_read += 1
                if should_stop and self.servers > 1:  # As in the training, others may have sent the next step.
                    leave_after = min(leave_after, rows_read + 1)

        for number, (features, labels, weights) in enumerate(one_ahead(batches), 1):
            asked = self.should_stop()
            if asked and self.servers == 1:  # As in the training, this step could take too long.
                leave_after = number - 1
                break
            in_flight.add(self.steps.evaluate(features, labels, weights, tf.constant(float(asked))), None)
            finish(in_flight.take_due())
            if number >= leave_after:
                break
        finish(in_flight.take_all())
        if leave_after < math.inf:
            raise Preempted(f"the training was asked to stop in the validation after step {self.step}")
        sums.time_s = self.clock() - start
        return sums


def _is_finite(row: Sequence[float]) -> bool:
    """Return whether the result of a training step says that its loss and its gradients are finite."""
    loss, _, _, _, _, _, *spoiled = row
    return math.isfinite(loss) and not any(spoiled)


def _require_number(loss: float, where: Callable[[], str]) -> None:
    if not math.isfinite(loss):
        raise TrainingError(f"the loss became {loss} {where()}: lower learning_rate, set clip_norm, or check the data")


def _require_learning(skipped: float, loss_scale: float, where: str) -> None:
    """Refuse to go on if loss scaling skipped too many steps in a row, or found no scale that is large enough."""
    if skipped >= MAX_SKIPPED or loss_scale < MIN_LOSS_SCALE:
        raise TrainingError(
            f"the training does not learn any more {where}: the gradients in 16 bits are infinite or NaN with a loss "
            f"scale of {2 * loss_scale:g} (the last {skipped:.0f} steps in a row were skipped): set precision to "
            "mixed_bfloat16 or float32, or lower learning_rate"
        )
