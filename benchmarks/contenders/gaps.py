"""The gaps between the steps of a simulated accelerator, by its own clock: `gaps.py STEP_S STEPS FOLDER`.

Prints one line of JSON: the seconds of each gap. It runs with the code of any checkout that has an `EpochLoop`: the
first folder of PYTHONPATH decides.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipeline.monitor import open_monitor
from pipeline.system.progress import progress
from pipeline.training.step.loop import EpochLoop
from pipeline.training.step.simulated import SimulatedSteps
from pipeline.training.step.strategy import open_strategy, taken_ahead

BATCH_SIZE, SIZE, WARM_STEPS = 64, 32, 50


class Clocked:
    """Simulated steps, and when the accelerator began and ended each of them."""

    python_calls = 0
    train_several = None

    def __init__(self, strategy: tf.distribute.Strategy, step_s: float) -> None:
        self._steps, self._step_s = SimulatedSteps(strategy, step_s), step_s
        self.began: list[float] = []
        self.ended: list[float] = []

    def train(self, *batch: Any) -> Any:
        """Take a step."""
        begin = time.perf_counter()
        result = self._steps.train(*batch)
        # An older accelerator works during the call, which can return late.
        self.began.append(getattr(result, "began", begin))
        self.ended.append(getattr(result, "ended", begin + self._step_s))
        return result


def main(step_s: float, steps: int, folder: Path) -> None:
    """Train as a user does: with a monitor, progress, and batches that a thread takes ahead."""
    strategy = open_strategy(None)
    clocked: Any = Clocked(strategy, step_s)
    ones = tf.ones(BATCH_SIZE)
    batch = (
        tf.zeros((BATCH_SIZE, SIZE, SIZE, 3), tf.uint8),
        tf.zeros(BATCH_SIZE, tf.int32),
        ones,
        tf.zeros(BATCH_SIZE, tf.bool),
        tf.range(BATCH_SIZE, dtype=tf.int64),
    )
    batches = taken_ahead(tf.data.Dataset.from_tensors(batch).repeat().prefetch(4), BATCH_SIZE, strategy)
    with open_monitor(folder) as monitor, progress("steps", steps * BATCH_SIZE, "rows") as advance:
        EpochLoop(clocked, monitor, lambda: False, is_simulated=True).train(1, batches, steps, advance)
    batches.close()
    gaps = [begin - end for begin, end in zip(clocked.began[1:], clocked.ended, strict=False)]
    print(json.dumps(gaps[WARM_STEPS:]))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
