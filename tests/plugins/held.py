"""Callbacks of a training that waits in the middle, so that a slow browser sees it there."""

import json
import os
from pathlib import Path

import keras

from tests.waiting import until

GATES, HELD_EPOCHS = "TENFOLD_TEST_GATES", "TENFOLD_TEST_HELD_EPOCHS"
"""Environment variables: the folder of the gates, and the epochs, counted from 0."""


class Held(keras.callbacks.Callback):
    """Holds the training before some epochs, until there is a file with the number of the epoch."""

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if epoch in json.loads(os.environ[HELD_EPOCHS]):
            until((Path(os.environ[GATES]) / str(epoch)).exists, 900)


def callbacks(folder: Path) -> list[keras.callbacks.Callback]:
    """Return the callback."""
    return [Held()]
