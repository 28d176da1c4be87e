"""The training loop on an accelerator that works beside the host: it reads the result of a step one step late."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from threading import Event

import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import Preempted, TrainingError
from pipeline.monitor import StepTimes
from pipeline.training.step.loop import EpochLoop, NumberedBatch, Sums
from pipeline.training.step.optimizer import NO_LOSS_SCALING
from tests.training.step.recorded_steps import samples_that_count

PATIENCE_S = 60.0
"""A loop that waits for the wrong result fails after this time, instead of never."""


Losses = dict[int, float | Exception]
"""Losses of some steps, or errors that come in place of their results. Any other loss is the number of its step."""


class LateResult:
    """A result that can be read when its step is `computed`."""

    device = "GPU:0"

    def __init__(self, values: Sequence[float | Exception]) -> None:
        self.values, self.computed = values, Event()

    def numpy(self) -> np.ndarray:
        assert self.computed.wait(PATIENCE_S), "the loop did not send the next step before it read this result"
        if isinstance(self.values[0], Exception):
            raise self.values[0]
        return np.array(self.values, np.float32)


class Accelerator:
    """Steps whose results can only be read after the next step was sent. The steps `read_at_once` are exceptions."""

    python_calls = 0

    def __init__(self, events: list[str], read_at_once: Sequence[int], losses: Losses | None = None) -> None:
        self._events, self._read_at_once, self._losses = events, read_at_once, losses or {}
        self.sent: list[LateResult] = []

    def train(self, images, labels, weights, mirrored, should_stop) -> LateResult:
        return self._send([*self._sums(weights, should_stop), *NO_LOSS_SCALING])

    def evaluate(self, images, labels, weights, should_stop) -> LateResult:
        return self._send(self._sums(weights, should_stop))

    def _sums(self, weights, should_stop) -> list:
        number = len(self.sent) + 1
        return [self._losses.get(number, number), 1.0, float(tf.reduce_sum(weights)), float(should_stop)]

    def _send(self, values: Sequence[float | Exception]) -> LateResult:
        number = len(self.sent) + 1
        self._events.append(f"send {number}")
        result = LateResult(values)
        if self.sent:
            self.sent[-1].computed.set()
        if number in self._read_at_once:
            result.computed.set()
        self.sent.append(result)
        return result


class Monitor:
    """A fake monitor that notes which steps were reported."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def batch(self, step: int, times: StepTimes, **values: float) -> None:
        self._events.append(f"report {step}")


class Saver:
    """Notes the state of the loop and of the accelerator at each checkpoint."""

    def __init__(self, training: "Training", due: Sequence[int]) -> None:
        self._training, self._due = training, due
        self.saved: list[tuple[int, int, int]] = []
        """Steps that the accelerator took, steps of the loop, and examples in its sums."""

    def steps_until_due(self, step: int) -> float:
        return min((due - step for due in self._due if due >= step), default=math.inf)

    def save(self, epochs_done: int) -> None:
        loop = self._training.loop
        self.saved.append((len(self._training.accelerator.sent), loop.step, loop.sums.examples))


class Training:
    """A loop that must read the results of the steps `read_at_once` before it sends the next step."""

    def __init__(
        self,
        read_at_once: Sequence[int],
        due: Sequence[int] = (),
        losses: Losses | None = None,
        servers: int = 1,
        stop_with: int = 0,
    ) -> None:
        self.events: list[str] = []
        self.accelerator = Accelerator(self.events, read_at_once, losses)
        self.loop = EpochLoop(
            self.accelerator,
            Monitor(self.events),
            lambda: len(self.accelerator.sent) + 1 == stop_with,
            describe=lambda batch, spoiled: f"numbers {batch[4].numpy()}",
            servers=servers,
        )
        self.saver = Saver(self, due)

    def run(self, source: Iterator[NumberedBatch], last_step: int) -> Sums:
        return self.loop.train(1, source, last_step, lambda _: None, self.saver)


def batches(count: int, end: Callable[[], None] = lambda: None) -> Iterator[NumberedBatch]:
    """Yield batches of two, the last of which has one example and padding. Then call `end`."""
    for number in range(count):
        weights = (1.0, 0.0 if number == count - 1 else 1.0)
        numbers = tf.constant([2 * number, 2 * number + 1], tf.int64)
        images, labels = tf.zeros((2, 4, 4, 3), tf.uint8), tf.zeros((2,), tf.int32)
        yield images, labels, tf.constant(weights), tf.zeros((2,), tf.bool), numbers
    end()


def test_a_step_is_sent_before_the_result_of_the_step_before_is_read() -> None:
    training = Training(read_at_once=[4])
    sums = training.run(batches(4), 4)
    assert training.events == [
        *("send 1", "send 2", "report 1", "send 3", "report 2", "send 4", "report 3", "report 4")
    ]
    assert (sums.examples, sums.loss, sums.correct) == (7, 1 + 2 + 3 + 4, 4)


def test_a_checkpoint_holds_the_state_after_its_own_step() -> None:
    training = Training(read_at_once=[3, 6], due=[3, 6])
    training.run(batches(6), 6)
    assert training.saver.saved == [(3, 3, 6), (6, 6, 11)]
    assert training.events.index("report 3") < training.events.index("send 4")


@pytest.mark.parametrize("due", [(), (3,)])
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_the_error_names_the_batch_of_the_spoiled_step_and_no_checkpoint_holds_its_state(
    due: Sequence[int], loss: float
) -> None:
    training = Training(read_at_once=[3] if due else [], due=due, losses={3: loss})
    with pytest.raises(TrainingError, match=rf"{loss} at step 3 of epoch 1, in numbers \[4 5\]: lower learning_rate"):
        training.run(batches(9), 9)
    assert training.saver.saved == []
    assert len(training.accelerator.sent) == 4  # as on the other servers, none of which has a checkpoint to write
    assert "report 3" not in training.events


def test_the_last_step_before_a_validation_is_checked() -> None:
    training = Training(read_at_once=[4], losses={4: math.nan})
    with pytest.raises(TrainingError, match=r"at step 4 of epoch 1, in numbers \[6 7\]"):
        training.run(batches(9), 4)


@pytest.mark.parametrize("due", [(), (3,), (4,)])
def test_all_servers_leave_after_the_same_step(due: Sequence[int]) -> None:
    """Only server 0 writes checkpoints. It then reads the request before it sends the next step."""
    training = Training(read_at_once=[*due, 4], due=due, servers=2, stop_with=3)
    with pytest.raises(Preempted, match="after step 4"):
        training.run(batches(9), 9)
    assert (training.loop.step, training.loop.sums.examples, len(training.accelerator.sent)) == (4, 8, 4)


def test_a_single_server_sends_no_step_after_a_request() -> None:
    """The request comes before step 3. If steps take seconds, each step more could exceed the time for a stop."""
    training = Training(read_at_once=[2], stop_with=3)
    with pytest.raises(Preempted, match="after step 2"):
        training.run(batches(9), 9)
    assert (training.loop.step, training.loop.sums.examples, len(training.accelerator.sent)) == (2, 4, 2)


@pytest.mark.parametrize(("servers", "last"), [(1, 3), (2, 4)])
def test_a_stop_before_the_last_step_of_an_epoch_leaves_at_its_end_at_the_latest(servers: int, last: int) -> None:
    """With several servers, the last step carries the request. A single server needs no such step."""
    training = Training(read_at_once=[last], servers=servers, stop_with=4)
    with pytest.raises(Preempted, match=f"after step {last}"):
        training.run(batches(9), 4)
    assert (training.loop.step, len(training.accelerator.sent)) == (last, last)


def test_a_stop_that_ends_the_wait_for_a_batch_leaves_no_step_out() -> None:
    def stopped() -> None:
        raise Preempted("the reader was asked to stop")

    training = Training(read_at_once=[3])
    with pytest.raises(Preempted, match="the reader was asked to stop"):
        training.run(batches(3, stopped), 9)
    assert (training.loop.step, training.loop.sums.examples) == (3, 5)
    assert training.events[-1] == "report 3"


def test_a_spoiled_step_is_reported_instead_of_the_error_of_the_input() -> None:
    def failed() -> None:
        raise Preempted("the reader was asked to stop")

    training = Training(read_at_once=[3], losses={3: math.nan})
    with pytest.raises(TrainingError, match="at step 3"):
        training.run(batches(3, failed), 9)


def test_a_validation_reads_late_and_counts_each_example_once() -> None:
    training = Training(read_at_once=[4])
    sums = training.loop.evaluate(batch[:3] for batch in batches(4))
    assert (sums.examples, sums.loss, sums.correct) == (7, 1 + 2 + 3 + 4, 4)


@pytest.mark.parametrize(("servers", "last"), [(1, 1), (2, 3)])
def test_all_servers_leave_a_validation_after_the_same_step(servers: int, last: int) -> None:
    """The request comes before step 2. Only several servers need it and one step more."""
    training = Training(read_at_once=[last], servers=servers, stop_with=2)
    with pytest.raises(Preempted, match="in the validation"):
        training.loop.evaluate(batch[:3] for batch in batches(9))
    assert len(training.accelerator.sent) == last


def test_an_error_of_the_accelerator_is_raised() -> None:
    training = Training(read_at_once=[], losses={2: tf.errors.ResourceExhaustedError(None, None, "no memory")})
    with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory"):
        training.run(batches(9), 9)
    assert training.loop.step == 1


class ClockOfThreads:
    """A clock that the test advances, and that notes when a thread has read it at the end of a step."""

    def __init__(self) -> None:
        self.now = 100.0
        self._has_read = threading.Semaphore(0)

    def __call__(self) -> float:
        now = self.now
        if threading.current_thread() is not threading.main_thread():
            self._has_read.release()
        return now

    def wait_for_a_read(self) -> None:
        assert self._has_read.acquire(timeout=PATIENCE_S)


def test_samples_that_are_taken_while_the_accelerator_waits_belong_to_the_step_that_waits() -> None:
    """Every fifth batch takes 300 ms, and each step 10 ms."""
    steps, clock = 100, ClockOfThreads()
    accelerator = Accelerator([], read_at_once=[steps])

    def source() -> Iterator[NumberedBatch]:
        for number, batch in enumerate(batches(steps)):
            if number:
                clock.now += 0.01
                accelerator.sent[-1].computed.set()
                clock.wait_for_a_read()
            clock.now += 0.3 if number % 5 == 4 else 0.0
            yield batch

    def train(monitor: object) -> None:
        loop = EpochLoop(accelerator, monitor, lambda: False, clock=clock)
        loop.train(1, source(), steps, lambda _: None)

    assert samples_that_count(train, clock) > 0.98
