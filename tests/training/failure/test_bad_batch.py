"""The description of a batch whose loss is not finite."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipeline.dataset.manifest import Dataset, images_at, load
from pipeline.rendezvous.servers import Server
from pipeline.training.failure.bad_batch import describe_examples

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")


@pytest.fixture
def dataset(published: Path) -> Dataset:
    return load(published)


def batch_of(numbers: list[int], padding: int = 0) -> tuple[tf.Tensor, ...]:
    weights = np.append(np.ones(len(numbers)), np.zeros(padding)).astype(np.float32)
    numbers = tf.constant([*numbers, *[0] * padding], tf.int64)
    images, labels = tf.zeros((len(weights), 1, 1, 3)), tf.zeros(len(weights))
    return images, labels, tf.constant(weights), tf.constant(weights > 0), numbers


def test_examples_are_named_without_padding(published: Path, dataset: Dataset):
    [(first, _), (second, _)] = images_at(published, dataset, "train", [7, 0])
    description = describe_examples(STRATEGY, Server(), published, dataset, batch_of([7, 0], padding=2), [1.0])
    assert description == f"2 examples: numbers 7, 0 of the training shards, from 0; {first}, {second}"


def test_a_long_list_of_examples_is_truncated(published: Path, dataset: Dataset):
    description = describe_examples(STRATEGY, Server(), published, dataset, batch_of([*range(30)] * 40), [1.0])
    assert description.startswith("1200 examples: numbers 0, 1, 2, ")
    assert " and 1136 more of the training shards" in description
    assert description.count(" ...") == 1
    assert description.count(".jpg") == 5
    assert len(description) < 500


def test_missing_shards_leave_only_the_numbers_of_the_examples(tmp_path: Path, dataset: Dataset):
    description = describe_examples(STRATEGY, Server(), tmp_path, dataset, batch_of([7, 0]), [1.0])
    assert description == "2 examples: numbers 7, 0 of the training shards, from 0"


def test_a_distributed_batch_is_described_as_one(published: Path, dataset: Dataset):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    batches = tf.data.Dataset.from_tensors(batch_of([7, 0], padding=2))
    [batch] = strategy.experimental_distribute_dataset(batches)
    assert "2 examples: numbers 7, 0 " in describe_examples(strategy, Server(), published, dataset, batch, [1.0])


class OfTwoDevices:
    """A fake strategy of two devices, each with half of each tensor. A real one has one device in a test process."""

    num_replicas_in_sync = 4
    extended = SimpleNamespace(worker_devices=("first", "second"))

    @staticmethod
    def experimental_local_results(tensor: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(tensor, 2)


@pytest.mark.parametrize(
    ("index", "spoiled", "message"),
    [
        (0, [0.0, 1.0, 0.0, 0.0], "2 examples: numbers 2, 3 of "),
        (1, [0.0, 0.0, 1.0, 0.0], "2 examples: numbers 0, 1 of "),
        (1, [0.0, 1.0, 1.0, 1.0], "4 examples: numbers 0, 1, 2, 3 of "),
        (0, [0.0, 0.0, 1.0, 0.0], "the part of training server 1 of 2; the log of that server names the examples"),
    ],
)
def test_only_examples_of_devices_with_a_nonfinite_loss_are_named(
    published: Path, dataset: Dataset, index: int, spoiled: list[float], message: str
):
    batch = batch_of([0, 1, 2, 3])
    assert describe_examples(OfTwoDevices(), Server(index, 2), published, dataset, batch, spoiled).startswith(message)
