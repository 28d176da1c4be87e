"""The loop's clock and its ends, with steps that take as long as they are told."""

import math
import time

import pytest
import tensorflow as tf

from pipeline.errors import Preempted, TrainingError
from pipeline.training.loop import EpochLoop


class Steps:
    """In place of a model, whose time on this machine would be left to chance."""

    def __init__(self, seconds: float, loss: float = 0.5) -> None:
        self._seconds, self._loss = seconds, loss

    def train(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[float, float]:
        time.sleep(self._seconds)
        return self._loss * len(labels), 1.0

    evaluate = train


class Recorder:
    """Keeps what a monitor is told."""

    def __init__(self) -> None:
        self.batches: list[dict] = []

    def batch(self, **values: float) -> None:
        self.batches.append(values)


def batches(seconds: float, count: int = 10) -> tf.data.Dataset:
    """Batches of two, one every so many seconds; the last one holds a single example."""

    def made():
        for number in range(count):
            time.sleep(seconds)
            size = 1 if number == count - 1 else 2
            yield tf.zeros((size, 4, 4, 3), tf.uint8), tf.zeros((size,), tf.int32)

    signature = (tf.TensorSpec((None, 4, 4, 3), tf.uint8), tf.TensorSpec((None,), tf.int32))
    return tf.data.Dataset.from_generator(made, output_signature=signature)


def loop(steps: Steps, recorder: Recorder, stopping=lambda: False) -> EpochLoop:
    return EpochLoop(steps, recorder, stopping)


@pytest.mark.parametrize(("wait", "compute", "low", "high"), [(0.02, 0.0, 0.8, 1.0), (0.0, 0.02, 0.0, 0.2)])
def test_the_wait_for_data_is_told_from_the_work(wait: float, compute: float, low: float, high: float):
    recorder = Recorder()
    sums = loop(Steps(compute), recorder).train(1, batches(wait), lambda _: None)
    assert low <= sums.wait_fraction <= high
    assert sum(each["wait_s"] for each in recorder.batches) == pytest.approx(sums.wait_s)


def test_sums_are_those_of_the_examples():
    recorder, counted = Recorder(), []
    sums = loop(Steps(0), recorder).train(3, batches(0), counted.append)
    assert (sums.examples, sums.mean_loss, sum(counted)) == (19, pytest.approx(0.5), 19)
    assert [each["step"] for each in recorder.batches] == list(range(1, 11))
    assert {each["epoch"] for each in recorder.batches} == {3}


def test_validation_counts_the_last_small_batch():
    sums = loop(Steps(0), Recorder()).evaluate(batches(0))
    assert (sums.examples, sums.mean_loss, sums.accuracy) == (19, pytest.approx(0.5), pytest.approx(10 / 19))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_the_training(loss: float):
    recorder = Recorder()
    with pytest.raises(TrainingError, match="at step 1 of epoch 2"):
        loop(Steps(0, loss), recorder).train(2, batches(0), lambda _: None)


def test_it_stops_between_steps():
    recorder = Recorder()
    with pytest.raises(Preempted, match="after step 3"):
        loop(Steps(0), recorder, lambda: len(recorder.batches) == 3).train(1, batches(0), lambda _: None)
    assert len(recorder.batches) == 3
