"""Which examples a batch held, in words for whoever looks for the one that spoiled it."""

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.dataset import Dataset, images_at
from pipeline.errors import TenfoldError
from pipeline.storage import Place
from pipeline.training.loop import NumberedBatch

MOST_NAMES, MOST_NUMBERS = 5, 64
"""Of a batch: a name costs reading its shard up to it."""


def examples_in_words(strategy: tf.distribute.Strategy, folder: Place, dataset: Dataset, batch: NumberedBatch) -> str:
    """How many examples a training batch holds, their numbers and the names of some, in one line of bounded length.

    Numbers are places in the training shards, from 0. Names are left out where the shards cannot be read any more.
    """
    _, _, weights, _, numbers = (np.concatenate(_arrays(strategy, tensor)) for tensor in batch)
    held = [int(number) for number in numbers[weights > 0]]
    listed = ", ".join(map(str, held[:MOST_NUMBERS])) + (" ..." if len(held) > MOST_NUMBERS else "")
    named = ", ".join(_names(folder, dataset, held[:MOST_NAMES])) + (" ..." if len(held) > MOST_NAMES else "")
    return f"{len(held)} examples: numbers {listed} of the training shards, from 0" + (f"; {named}" if named else "")


def _arrays(strategy: tf.distribute.Strategy, tensor: tf.Tensor) -> list[NDArray[np.generic]]:
    return [part.numpy() for part in strategy.experimental_local_results(tensor)]


def _names(folder: Place, dataset: Dataset, numbers: list[int]) -> list[str]:
    try:
        return [name for name, _ in images_at(folder, dataset, "train", numbers)]
    except (TenfoldError, OSError, ValueError):  # the shards are damaged, or gone: the loss is what is to be told
        return []
