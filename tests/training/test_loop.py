"""The loop's clock and its ends, on a clock that only the steps and the batches move."""

import math
from collections.abc import Iterator
from dataclasses import asdict

import pytest
import tensorflow as tf

from pipeline.errors import Preempted, TrainingError
from pipeline.monitor import StepTimes
from pipeline.training.loop import EpochLoop, NumberedBatch, Sums


class Clock:
    """Seconds that pass only when somebody says so: on a busy machine a real one would make these tests fail."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Steps:
    """In place of a model: a step takes as long as it is told."""

    def __init__(self, clock: Clock, seconds: float = 0.0, loss: float = 0.5) -> None:
        self._clock, self._seconds, self._loss = clock, seconds, loss

    def train(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, should_stop: tf.Tensor
    ) -> tf.Tensor:
        assert mirrored.dtype == tf.bool
        return self.evaluate(images, labels, weights, should_stop)

    def evaluate(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, should_stop: tf.Tensor) -> tf.Tensor:
        self._clock.now += self._seconds
        examples = tf.reduce_sum(weights)
        return tf.stack([self._loss * examples, 1.0, examples, should_stop])


class Recorder:
    """Keeps what a monitor is told."""

    def __init__(self) -> None:
        self.batches: list[dict] = []

    def batch(self, times: StepTimes, **values: float) -> None:
        self.batches.append({**asdict(times), **values})


def batches(clock: Clock, seconds: float = 0.0, count: int = 10) -> Iterator[NumberedBatch]:
    """Batches of two, each so many seconds late; the last one holds a single example and padding."""
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
def test_the_wait_for_data_is_told_from_the_work(
    clock: Clock, recorder: Recorder, wait: float, compute: float, fraction: float
):
    loop = EpochLoop(Steps(clock, compute), recorder, lambda: False, clock=clock)
    sums = loop.train(1, batches(clock, wait), 10, lambda _: None)
    assert (sums.wait_fraction, sums.time_s) == (pytest.approx(fraction), pytest.approx(10 * (wait + compute)))
    assert {(each["wait_s"], each["compute_s"]) for each in recorder.batches} == {(wait, compute)}


def test_a_checkpoint_is_told_with_the_step_behind_it(clock: Clock, recorder: Recorder):
    loop = EpochLoop(Steps(clock, 0.5), recorder, lambda: False, clock=clock)

    def save(seconds: float) -> None:
        clock.now += 1.0  # what the loop does before it
        with loop.standing_still():
            clock.now += seconds

    source = batches(clock)
    loop.train(1, source, 5, lambda _: None, after_step=lambda _: save(2.0) if loop.step == 3 else None)
    save(4.0)  # at the end of an epoch: what was before it, as the validation, is nobody's
    loop.train(2, source, 10, lambda _: None)
    assert [each["checkpoint_s"] for each in recorder.batches] == [0, 0, 0, 2, 0, 4, 0, 0, 0, 0]
    assert [each["host_s"] for each in recorder.batches] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_sums_are_those_of_the_examples(clock: Clock, recorder: Recorder):
    counted: list[int] = []
    sums = EpochLoop(Steps(clock), recorder, lambda: False).train(3, batches(clock), 10, counted.append)
    assert (sums.examples, sums.mean_loss, sum(counted)) == (19, pytest.approx(0.5), 19)
    assert [each["step"] for each in recorder.batches] == list(range(1, 11))
    assert {each["epoch"] for each in recorder.batches} == {3}


def test_validation_counts_the_last_small_batch(clock: Clock, recorder: Recorder):
    sums = EpochLoop(Steps(clock), recorder, lambda: False).evaluate(batch[:3] for batch in batches(clock))
    assert (sums.examples, sums.mean_loss, sums.accuracy) == (19, pytest.approx(0.5), pytest.approx(10 / 19))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_the_training(clock: Clock, recorder: Recorder, loss: float):
    loop = EpochLoop(
        Steps(clock, loss=loss),
        recorder,
        lambda: False,
        step=12,
        sums=Sums(examples=4),
        describe=lambda batch, spoiled: f"numbers {batch[4].numpy()}",
    )
    with pytest.raises(TrainingError, match=rf"{loss} at step 13 of epoch 2, in numbers \[0 1\]: lower learning_rate"):
        loop.train(2, batches(clock), 20, lambda _: None, after_step=lambda _: pytest.fail("a checkpoint of it"))


def test_after_each_step_its_sums_are_there_for_a_checkpoint(clock: Clock, recorder: Recorder):
    loop = EpochLoop(Steps(clock, 0.5), recorder, lambda: False, clock=clock)
    seen: list[tuple[int, int, int, float]] = []

    def note(epochs_done: int) -> None:
        seen.append((epochs_done, loop.step, loop.sums.examples, loop.sums.time_s))

    loop.train(3, batches(clock), 10, lambda _: None, after_step=note)
    assert seen == [(2, step, min(2 * step, 19), pytest.approx(step / 2)) for step in range(1, 11)]


def test_it_stops_behind_the_step_that_tells_all_servers(clock: Clock, recorder: Recorder):
    loop = EpochLoop(Steps(clock), recorder, lambda: len(recorder.batches) == 2)
    with pytest.raises(Preempted, match="after step 3"):
        loop.train(1, batches(clock), 10, lambda _: None)
    assert len(recorder.batches) == 3


def test_an_epoch_goes_on_where_it_was_stopped(clock: Clock, recorder: Recorder):
    source = batches(clock)
    loop = EpochLoop(Steps(clock, 0.5), recorder, lambda: len(recorder.batches) == 2, clock=clock)
    with pytest.raises(Preempted):
        loop.train(1, source, 10, lambda _: None)
    counted: list[int] = []
    other = EpochLoop(Steps(clock, 0.5), recorder, lambda: False, loop.step, loop.sums, clock)
    sums = other.train(1, source, 10, counted.append)
    assert (sums.examples, sums.mean_loss, sums.time_s) == (19, pytest.approx(0.5), pytest.approx(5))
    assert (counted[0], sum(counted)) == (6, 19)
    assert other.sums == Sums()
