"""The training process, which also writes the examples of each step: `noting_ids.py NOTES RUN_FOLDER PARENT`.

Each step writes one line before anything else follows from it: the step, its epoch, the numbers of its examples.
"""

import runpy
import sys
from collections.abc import Callable
from typing import TextIO

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.training.loop import EpochLoop, NumberedBatch

TrainStep = Callable[[EpochLoop, int, NumberedBatch, float | None], bool]


def noting(train_step: TrainStep, notes: TextIO) -> TrainStep:
    def noted(loop: EpochLoop, epoch: int, batch: NumberedBatch, ready_pct: float | None) -> bool:
        asked = train_step(loop, epoch, batch, ready_pct)
        _, _, weights, _, numbers = map(_of_this_server, batch)
        print(loop.step, epoch, *numbers[weights > 0], file=notes)
        return asked

    return noted


def _of_this_server(tensor: tf.Tensor) -> NDArray[np.generic]:
    return np.concatenate([part.numpy() for part in getattr(tensor, "values", [tensor])])


if __name__ == "__main__":
    notes = open(sys.argv.pop(1), "a", buffering=1)  # noqa: SIM115 - open until the process ends
    EpochLoop._train_step = noting(EpochLoop._train_step, notes)
    runpy.run_module("pipeline.training", run_name="__main__")
