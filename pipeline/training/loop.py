"""The training loop: ours, so that it serves every strategy and times the wait for data exactly.

Keras callbacks cannot see that wait: they report none on a job that waits 94% of its time.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tensorflow as tf

from pipeline.errors import Preempted, TrainingError
from pipeline.monitor import Monitor
from pipeline.progress import Advance
from pipeline.training.steps import Steps


@dataclass
class Sums:
    """Sums over the examples of an epoch."""

    examples: int = 0
    loss: float = 0.0
    right: float = 0.0
    wait_s: float = 0.0
    time_s: float = 0.0

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


@dataclass
class EpochLoop:
    """Runs epochs over batches, reporting each step to the monitor; `stopping` is asked between steps."""

    steps: Steps
    monitor: Monitor
    stopping: Callable[[], bool]
    step: int = 0
    """Training steps done since the first epoch, over all tries."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds that never go back."""

    def train(self, epoch: int, batches: tf.data.Dataset, advance: Advance) -> Sums:
        """One epoch (from 1) over `batches`; `advance` is told of every example.

        Raises Preempted where the process is asked to stop, TrainingError where the loss is no number.
        """
        sums = Sums()
        start = self.clock()
        iterator = iter(batches)
        while (batch := self._timed_next(iterator)) is not None:
            images, labels, wait_s = batch
            self._train_step(epoch, images, labels, wait_s, sums)
            advance(int(labels.shape[0]))
        sums.time_s = self.clock() - start
        return sums

    def _timed_next(self, iterator: Iterator[tuple[tf.Tensor, tf.Tensor]]) -> tuple[tf.Tensor, tf.Tensor, float] | None:
        if self.stopping():
            raise Preempted(f"asked to stop after step {self.step}")
        start = self.clock()
        batch = next(iterator, None)
        return (*batch, self.clock() - start) if batch is not None else None

    def _train_step(self, epoch: int, images: tf.Tensor, labels: tf.Tensor, wait_s: float, sums: Sums) -> None:
        start = self.clock()
        loss_sum, right = self.steps.train(images, labels)
        loss = float(loss_sum)  # waits for the device, which would otherwise still be at work when the clock is read
        compute_s = self.clock() - start
        self.step += 1
        examples = int(labels.shape[0])
        _require_number(loss, f"at step {self.step} of epoch {epoch}")
        self.monitor.batch(step=self.step, epoch=epoch, wait_s=wait_s, compute_s=compute_s, examples=examples)
        sums.examples += examples
        sums.loss += loss
        sums.right += float(right)
        sums.wait_s += wait_s

    def evaluate(self, batches: tf.data.Dataset) -> Sums:
        """Loss and accuracy over all of `batches`, exact whatever the size of the last one."""
        sums = Sums()
        start = self.clock()
        for images, labels in batches:
            if self.stopping():
                raise Preempted(f"asked to stop in the validation after step {self.step}")
            loss, right = self.steps.evaluate(images, labels)
            _require_number(float(loss), f"in the validation after step {self.step}")
            sums.examples += int(labels.shape[0])
            sums.loss += float(loss)
            sums.right += float(right)
        sums.time_s = self.clock() - start
        return sums


def _require_number(loss: float, where: str) -> None:
    if not math.isfinite(loss):
        raise TrainingError(f"the loss became {loss} {where}: lower learning_rate, or look at the data")
