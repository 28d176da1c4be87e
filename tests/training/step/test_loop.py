"""The times and the ends of the training loop, with a clock that only steps and batches advance."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice

import pytest
import tensorflow as tf

from pipeline.errors import Preempted, TrainingError
from pipeline.monitor import StepTimes
from pipeline.training.step.loop import EpochLoop, NumberedBatch, Sums
from pipeline.training.step.optimizer import NO_LOSS_SCALING


class Clock:
    """A clock that the tests advance. With a real clock, they would fail on a busy machine."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Steps:
    """A fake model whose steps take a given time."""

    python_calls = 0

    def __init__(self, clock: Clock, seconds: float = 0.0, loss: float = 0.5) -> None:
        self._clock, self._seconds, self._loss = clock, seconds, loss

    def train(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, should_stop: tf.Tensor
    ) -> tf.Tensor:
        assert mirrored.dtype == tf.bool
        return tf.concat([self.evaluate(images, labels, weights, should_stop), NO_LOSS_SCALING], axis=0)

    def evaluate(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, should_stop: tf.Tensor) -> tf.Tensor:
        self._clock.now += self._seconds
        examples = tf.reduce_sum(weights)
        return tf.stack([self._loss * examples, 1.0, examples, should_stop])


class Recorder:
    """A fake monitor that keeps the values of all batches."""

    def __init__(self) -> None:
        self.batches: list[dict] = []

    def batch(self, times: StepTimes, **values: float) -> None:
        self.batches.append({**asdict(times), **values})


class Saver:
    """Calls `save` with the number of epochs that are done, after some steps."""

    def __init__(self, due: Sequence[int], save: Callable[[int], None]) -> None:
        self._due, self.save = due, save

    def steps_until_due(self, step: int) -> float:
        return min((due - step for due in self._due if due >= step), default=math.inf)


def batches(clock: Clock, seconds: float = 0.0, count: int = 10) -> Iterator[NumberedBatch]:
    """Yield batches of two, each after `seconds`. The last batch has one example and padding."""
    for number in range(count):
        clock.now += seconds
        weights = (1.0, 0.0 if number == count - 1 else 1.0)
        numbers = tf.constant([2 * number, 2 * number + 1], tf.int64)
        images, labels = tf.zeros((2, 4, 4, 3), tf.uint8), tf.zeros((2,), tf.int32)
        yield images, labels, tf.constant(weights), tf.zeros((2,), tf.bool), numbers


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.mark.parametrize(("wait", "compute", "fraction"), [(0.5, 0.0, 1.0), (0.25, 0.75, 0.25), (0.0, 0.5, 0.0)])
def test_the_loop_separates_data_wait_from_compute(
    clock: Clock, recorder: Recorder, wait: float, compute: float, fraction: float
):
    loop = EpochLoop(Steps(clock, compute), recorder, lambda: False, clock=clock)
    sums = loop.train(1, batches(clock, wait), 10, lambda _: None)
    assert (sums.wait_fraction, sums.time_s) == (pytest.approx(fraction), pytest.approx(10 * (wait + compute)))
    assert {(each["wait_s"], each["compute_s"]) for each in recorder.batches} == {(wait, compute)}


def test_the_time_of_a_checkpoint_is_reported_with_the_next_step(clock: Clock, recorder: Recorder):
    loop = EpochLoop(Steps(clock, 0.5), recorder, lambda: False, clock=clock)

    def save(seconds: float) -> None:
        clock.now += 1.0  # time of the loop before the checkpoint
        with loop.standing_still():
            clock.now += seconds

    source = batches(clock)
    loop.train(1, source, 5, lambda _: None, Saver([3], lambda _: save(2.0)))
    save(4.0)  # At the end of an epoch, the time before the checkpoint (the validation) counts for no step.
    loop.train(2, source, 10, lambda _: None)
    assert [each["checkpoint_s"] for each in recorder.batches] == [0, 0, 0, 2, 0, 4, 0, 0, 0, 0]
    assert [each["host_s"] for each in recorder.batches] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_sums_of_an_epoch_count_each_example_once(clock: Clock, recorder: Recorder):
    counted: list[int] = []
    sums = EpochLoop(Steps(clock), recorder, lambda: False).train(3, batches(clock), 10, counted.append)
    assert (sums.examples, sums.mean_loss, sum(counted)) == (19, pytest.approx(0.5), 19)
    assert [each["step"] for each in recorder.batches] == list(range(1, 11))
    assert {each["epoch"] for each in recorder.batches} == {3}


def test_validation_includes_the_smaller_last_batch(clock: Clock, recorder: Recorder):
    sums = EpochLoop(Steps(clock), recorder, lambda: False).evaluate(batch[:3] for batch in batches(clock))
    assert (sums.examples, sums.mean_loss, sums.mean_metric) == (19, pytest.approx(0.5), pytest.approx(10 / 19))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_nonfinite_loss_stops_the_training(clock: Clock, recorder: Recorder, loss: float):
    loop = EpochLoop(
        Steps(clock, loss=loss),
        recorder,
        lambda: False,
        step=12,
        sums=Sums(examples=4),
        describe=lambda batch, spoiled: f"numbers {batch[4].numpy()}",
    )
    with pytest.raises(TrainingError, match=rf"{loss} at step 13 of epoch 2, in numbers \[0 1\]: lower learning_rate"):
        loop.train(2, batches(clock), 20, lambda _: None, Saver([13], lambda _: pytest.fail("the step was saved")))


def test_sums_are_up_to_date_after_each_step(clock: Clock, recorder: Recorder):
    loop = EpochLoop(Steps(clock, 0.5), recorder, lambda: False, clock=clock)
    seen: list[tuple[int, int, int, float]] = []

    def note(epochs_done: int) -> None:
        seen.append((epochs_done, loop.step, loop.sums.examples, loop.sums.time_s))

    loop.train(3, batches(clock), 10, lambda _: None, Saver(range(1, 11), note))
    assert seen == [(2, step, min(2 * step, 19), pytest.approx(step / 2)) for step in range(1, 11)]


@pytest.mark.parametrize(("servers", "last"), [(1, 2), (2, 4)])
def test_a_single_server_stops_before_the_step_that_would_share_the_request(
    clock: Clock, recorder: Recorder, servers: int, last: int
):
    loop = EpochLoop(Steps(clock), recorder, lambda: len(recorder.batches) == 2, servers=servers)
    with pytest.raises(Preempted, match=f"after step {last}"):
        loop.train(1, batches(clock), 10, lambda _: None)
    assert len(recorder.batches) == last


def test_a_stopped_epoch_can_be_continued(clock: Clock, recorder: Recorder):
    loop = EpochLoop(Steps(clock, 0.5), recorder, lambda: len(recorder.batches) == 2, clock=clock)
    with pytest.raises(Preempted):
        loop.train(1, batches(clock), 10, lambda _: None)
    counted: list[int] = []
    other = EpochLoop(Steps(clock, 0.5), recorder, lambda: False, loop.step, loop.sums, clock)
    # The input of an attempt begins after the last step. The first loop took a batch more, which it did not use.
    sums = other.train(1, islice(batches(clock), loop.step, None), 10, counted.append)
    assert (sums.examples, sums.mean_loss, sums.time_s) == (19, pytest.approx(0.5), pytest.approx(5))
    assert (counted[0], sum(counted)) == (4, 19)
    assert other.sums == Sums()
