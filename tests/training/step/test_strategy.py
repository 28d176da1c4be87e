"""How many batches are ready ahead of a step."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.input.batch_counter import BatchCounter
from pipeline.input.order import tf_options
from pipeline.training.step import strategy as of_steps
from tests.waiting import until

PREFETCHED, BATCH, PAUSES = 3, 2, 8


@pytest.mark.parametrize("on_gpu", [False, True])
def test_batches_ahead_are_bounded_whatever_pauses_the_training_makes(on_gpu: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(of_steps, "is_on_gpu", lambda _: on_gpu)  # A CPU with the buffers of a GPU.
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    assert of_steps.batches_ahead(strategy) == (3 if on_gpu else 1)
    assert_bounded(strategy)


def assert_bounded(strategy: tf.distribute.Strategy) -> None:
    """Assert that all buffers are full in each pause, and hold as many batches as `ready_pct` counts."""
    capacity = PREFETCHED + of_steps.batches_ahead(strategy)
    counter = BatchCounter(capacity)
    batches = counter.counted(tf.data.Dataset.range(100_000).batch(BATCH)).prefetch(PREFETCHED)
    taken, ahead = 0, []
    with closing(of_steps.taken_ahead(batches.with_options(tf_options()), BATCH, strategy)) as taking:
        for pause in range(PAUSES):
            for _ in range(10 * 2**pause):  # Without a bound, an empty buffer would be doubled.
                next(taking)
                taken += 1
            until(lambda: counter.ready_pct(taken) == 100, seconds=30)  # noqa: B023  # It is called at once.
            ahead.append(int(counter._made) - taken)
    assert ahead == [capacity] * PAUSES


TWO_DEVICES = """
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tests.training.step.test_strategy import assert_bounded
assert_bounded(tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]))
"""


@pytest.mark.long
def test_batches_ahead_of_two_devices_are_counted():
    """The test needs a separate process: TensorFlow can split a processor only before it uses it."""
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", TWO_DEVICES], cwd=root, check=True, timeout=300)
