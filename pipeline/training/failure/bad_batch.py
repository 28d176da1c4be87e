"""Describes the examples of a batch, for a person who looks for the one that spoiled a step."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from pipeline.dataset.manifest import Dataset, images_at
from pipeline.errors import TenfoldError
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place
from pipeline.system.wording import first_of
from pipeline.training.step.loop import NumberedBatch

MAX_NAMES, MAX_NUMBERS = 5, 64
"""Limits for the names and numbers that are listed of a batch. To find a name, its shard is read up to there."""


def describe_examples(
    strategy: tf.distribute.Strategy,
    server: Server,
    folder: Place,
    dataset: Dataset,
    batch: NumberedBatch,
    spoiled: Sequence[float],
) -> str:
    """Describe the examples that spoiled a step: count, numbers and the names of some, in one line of bounded length.

    Numbers are places in the training shards, from 0. Names are left out if the shards cannot be read any more.
    `spoiled` has a number for each replica of all servers, from server 0 on: 0 unless that replica spoiled the step.
    This server has only its own part of the batch.
    """
    devices = len(strategy.extended.worker_devices)
    # Replicas count through all servers, and this server can only read the examples of its own ones.
    guilty = [number for number, is_spoiled in enumerate(spoiled) if is_spoiled]
    own = [number - devices * server.index for number in guilty if number // devices == server.index]
    if not own:
        return (
            f"the part of training server {guilty[0] // devices} of {server.count}; the log of that server names the "
            "examples"
        )
    _, _, weights, _, numbers = batch
    weights, numbers = (
        np.concatenate([parts[device].numpy() for device in own])
        for parts in map(strategy.experimental_local_results, (weights, numbers))
    )
    examples = [int(number) for number in numbers[weights > 0]]
    listed = first_of(map(str, examples), MAX_NUMBERS)
    named = ", ".join(_names(folder, dataset, examples[:MAX_NAMES])) + (" ..." if len(examples) > MAX_NAMES else "")
    names = f"; {named}" if named else ""
    return f"{len(examples)} examples: numbers {listed} of the training shards, from 0{names}"


def _names(folder: Place, dataset: Dataset, numbers: list[int]) -> list[str]:
    try:
        return [name for name, _ in images_at(folder, dataset, "train", numbers)]
    except (TenfoldError, OSError, ValueError):
        # The shards are damaged or gone. The error about the loss is more important.
        return []
