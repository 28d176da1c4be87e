"""Several short steps that are sent to the accelerator together."""

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config.automatic import training_settings
from pipeline.errors import Preempted, TrainingError
from pipeline.monitor import Monitor
from pipeline.training.inputs import MAX_STACKED, stacked
from pipeline.training.step.loop import EpochLoop, NumberedBatch
from pipeline.training.step.optimizer import NO_LOSS_SCALING
from tests.training.small import TRAINED, small
from tests.training.step.recorded_steps import samples_that_count
from tests.training.step.test_loop import Clock, Recorder, Saver

STACK, LAST = 4, 10
"""Batches in a stack, and steps of an epoch."""


class SeveralSteps:
    """A fake accelerator that notes which steps were sent together. The step `spoiled` has a loss that is no number."""

    python_calls = 0

    def __init__(self, clock: Clock, step_s: float = 0.0, spoiled: int = 0) -> None:
        self._clock, self._step_s, self._spoiled = clock, step_s, spoiled
        self.sent: list[int] = []
        """The number of steps that were sent together."""

    def train_several(self, stack, first, count, should_stop) -> tf.Tensor:
        done = sum(self.sent)
        self.sent.append(int(count))
        self._clock.now += int(count) * self._step_s
        assert int(first) == done % STACK
        losses = [math.nan if done + each + 1 == self._spoiled else done + each + 1 for each in range(int(count))]
        return tf.stack([[loss, 1.0, tf.reduce_sum(stack[2][0]), should_stop, *NO_LOSS_SCALING] for loss in losses])


def stacks(epochs: int = 1) -> Iterator[NumberedBatch]:
    """Yield stacks of batches of two examples, whose numbers count from 0."""
    for start in range(0, epochs * LAST, STACK):
        numbers = tf.reshape(tf.range(2 * start, 2 * (start + STACK), dtype=tf.int64), (STACK, 2))
        images, labels = tf.zeros((STACK, 2, 4, 4, 3), tf.uint8), tf.zeros((STACK, 2), tf.int32)
        yield images, labels, tf.ones((STACK, 2)), tf.zeros((STACK, 2), tf.bool), numbers


@pytest.mark.parametrize(
    ("step_s", "due", "sent"),
    [
        (0.0, (), [1, 1, 2, 4, 2]),  # The first two show how long a step takes.
        (0.0, (3, 6, 7), [1, 1, 1, 1, 2, 1, 1, 2]),  # never across a checkpoint
        (0.008, (), [1, 1, 2, 2, 2, 2]),
        (0.02, (), [1] * LAST),
    ],
)
def test_short_steps_are_sent_together(step_s: float, due: tuple[int, ...], sent: list[int]) -> None:
    clock, recorder = Clock(), Recorder()
    steps = SeveralSteps(clock, step_s)
    loop = EpochLoop(steps, recorder, lambda: False, clock=clock, stacked=STACK)
    saved: list[tuple[int, int]] = []
    sums = loop.train(
        1, stacks(), LAST, lambda _: None, Saver(due, lambda _: saved.append((loop.step, sum(steps.sent))))
    )
    assert steps.sent == sent
    assert saved == [(step, step) for step in due]
    assert (sums.examples, sums.loss) == (2 * LAST, sum(range(1, LAST + 1)))
    assert [each["step"] for each in recorder.batches] == [*range(1, LAST + 1)]
    assert [each["compute_s"] for each in recorder.batches] == pytest.approx([step_s] * LAST)


def test_samples_that_are_taken_during_steps_sent_together_count() -> None:
    clock = Clock()

    def train(monitor: Monitor) -> None:
        loop = EpochLoop(SeveralSteps(clock, step_s=0.005), monitor, lambda: False, clock=clock, stacked=STACK)
        source = stacks(epochs=20)
        loop.train(1, source, 20 * LAST, lambda _: None)

    assert samples_that_count(train, clock) > 0.98


def test_an_epoch_ends_and_the_next_one_begins_within_a_stack() -> None:
    clock = Clock()
    steps = SeveralSteps(clock)
    loop = EpochLoop(steps, Recorder(), lambda: False, stacked=STACK, clock=clock)
    source = stacks(epochs=2)
    for epoch in (1, 2):
        assert loop.train(epoch, source, epoch * LAST, lambda _: None).examples == 2 * LAST
        assert sum(steps.sent) == epoch * LAST


def test_the_error_names_the_batch_of_a_spoiled_step_among_several() -> None:
    clock = Clock()
    steps = SeveralSteps(clock, spoiled=7)
    loop = EpochLoop(
        steps,
        Recorder(),
        lambda: False,
        stacked=STACK,
        clock=clock,
        describe=lambda batch, _: f"numbers {batch[4].numpy()}",
    )
    saver = Saver([8], lambda _: pytest.fail("the spoiled state was saved"))
    with pytest.raises(TrainingError, match=r"nan at step 7 of epoch 1, in numbers \[12 13\]"):
        loop.train(1, stacks(), LAST, lambda _: None, saver)


@pytest.mark.parametrize(("asked_at", "sent"), [(1, []), (4, [1, 1, 1]), (6, [1, 1, 2, 1]), (8, [1, 1, 2, 3])])
def test_a_stop_leaves_before_the_same_step_as_one_by_one(asked_at: int, sent: list[int]) -> None:
    """A single server sends only the steps before the one with the request."""
    last, clock, asked = asked_at - 1, Clock(), count(1)
    steps = SeveralSteps(clock)
    loop = EpochLoop(steps, Recorder(), lambda: next(asked) == asked_at, stacked=STACK, clock=clock)
    with pytest.raises(Preempted, match=f"after step {last}$"):
        loop.train(1, stacks(), LAST, lambda _: None)
    assert (loop.step, loop.sums.examples, steps.sent) == (last, 2 * last, sent)


def test_several_steps_together_give_the_same_bits_as_one_by_one(tmp_path: Path) -> None:
    one, several = (small(training_settings({}), tmp_path / name) for name in ("one", "several"))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, *TRAINED[0].shape), np.uint8)
    batches = [(tf.constant(each), *TRAINED[1:4]) for each in images]
    stack = [tf.stack(each) for each in zip(*batches, strict=True)]
    results = [one.steps.train(*batch, TRAINED[4]).numpy() for batch in batches]
    parts = [several.steps.train_several(stack, *range_, TRAINED[4]).numpy() for range_ in ((0, 1), (1, 3), (4, 2))]
    assert np.array_equal(np.concatenate(parts), results)
    for first, other in zip(one.checkpoints.variables, several.checkpoints.variables, strict=True):
        assert np.array_equal(first, other), first.path


@pytest.mark.parametrize(
    ("shape", "size"), [((8, 3), MAX_STACKED), ((1000, 30), 8), ((256, 224, 224, 3), 1), ((8, None), 1)]
)
def test_only_small_batches_of_one_shape_are_stacked(shape: tuple[int | None, ...], size: int) -> None:
    spec = tf.TensorSpec(shape, tf.float32)
    batches = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=(spec, tf.TensorSpec(shape[:1])))
    assert stacked(batches)[1] == size


def test_stacks_have_all_batches_in_order_and_one_shape() -> None:
    numbers = tf.data.Dataset.range(2 * (MAX_STACKED + 3)).batch(2, drop_remainder=True)
    texts = numbers.map(tf.strings.as_string)
    stacks, size = stacked(tf.data.Dataset.zip(numbers, texts))
    found = [*stacks]
    assert {tuple(each.shape) for stack in found for each in stack} == {(size, 2)}
    assert np.concatenate([stack[0] for stack in found])[: MAX_STACKED + 3].ravel().tolist() == [
        *range(2 * (MAX_STACKED + 3))
    ]
    assert found[-1][1][3:].numpy().tolist() == [[b"", b""]] * (MAX_STACKED - 3)
