"""The training process, which also writes the examples of each step: `noting_ids.py NOTES RUN_FOLDER PARENT`.

Each step writes one line before a checkpoint follows from it: the step, its epoch, the numbers of its examples. The
last of the steps that were sent together then writes its number and the checksum of the weights into NOTES with the
suffix `.weights`. With the environment variable KILL_AFTER, the process kills itself after that number of steps, and
those that were sent with the last of them. With REQUEST, such as `5 cache=memory`, a change is requested after that
step, unless one was requested before. `5 dataset=compression=gzip` requests that another training continues this one.
"""

import os
import runpy
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.runs.changes import DATASET, request_dataset
from pipeline.runs.files import CHANGES
from pipeline.training.step.dispatch import SentSteps
from pipeline.training.step.loop import EpochLoop
from tests.runs.one_change import request_change

Finish = Callable[[EpochLoop, int, SentSteps], int]


def noting(finish: Finish, notes: TextIO, checksums: TextIO) -> Finish:
    last, taken = int(os.environ.get("KILL_AFTER", "0")), list[int]()

    def noted(loop: EpochLoop, epoch: int, sent: SentSteps) -> int:
        first = loop.step + 1
        examples = finish(loop, epoch, sent)
        for number in range(sent.about.count):
            _, _, weights, _, numbers = sent.about.batch(number)
            print(first + number, epoch, *_of_this_server(numbers)[_of_this_server(weights) > 0], file=notes)
        print(loop.step, _checksum(loop), file=checksums)
        _request(loop.step)
        taken.extend(range(sent.about.count))
        if 0 < last <= len(taken):
            os.kill(os.getpid(), signal.SIGKILL)
        return examples

    return noted


def _request(step: int) -> None:
    at, _, change = os.environ.get("REQUEST", "").partition(" ")
    training = Path(sys.argv[1])
    if change and step >= int(at) and not (training / CHANGES).exists():
        field, _, value = change.partition("=")
        if field == DATASET:
            request_dataset(training, dict([value.split("=")]), by="somebody")
        else:
            request_change(training, field, value, by="somebody")


def _of_this_server(tensor: tf.Tensor) -> NDArray[np.generic]:
    return np.concatenate([part.numpy() for part in getattr(tensor, "values", [tensor])])


def _checksum(loop: EpochLoop) -> int:
    """Return the checksum of the trained weights of this server."""
    # Only of these: the statistics of batch normalization are each server's own.
    checksum = 0
    for variable in loop.steps._model.trainable_variables:
        checksum = zlib.crc32(variable.numpy().tobytes(), checksum)
    return checksum


if __name__ == "__main__":
    name = sys.argv.pop(1)
    # Both are open until the process ends.
    notes, checksums = (open(name + suffix, "a", buffering=1) for suffix in ("", ".weights"))  # noqa: SIM115
    EpochLoop._finish = noting(EpochLoop._finish, notes, checksums)
    runpy.run_module("pipeline.training", run_name="__main__")
