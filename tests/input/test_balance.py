"""Class-balanced epochs of more classes than a test could have images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config.settings import Settings
from pipeline.dataset.manifest import Dataset, load
from pipeline.input.balance import balanced
from pipeline.stages.build import build


@pytest.fixture
def dataset(settings: Settings) -> Dataset:
    return load(Path(build(settings)["dataset"]))


def labels_of(dataset: Dataset, counts: Sequence[int], epoch: int) -> Counter[int]:
    """Return how often each class occurs among as many examples of a balanced epoch as there are."""
    labels = tuple(f"{number:05d}" for number in range(len(counts)))
    split = replace(dataset.splits["train"], classes=dict(zip(labels, counts, strict=True)))
    dataset = replace(dataset, labels=labels, splits={**dataset.splits, "train": split})
    numbers = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    stored = [_record(int(number) + dataset.records.label_offset, dataset) for number in numbers]
    records = tf.data.Dataset.from_tensor_slices((np.arange(len(stored)), stored))
    seen = balanced(records, dataset, 7, tf.constant(epoch, tf.int64)).take(len(stored))
    return Counter(int(numbers[number]) for number, _ in seen.as_numpy_iterator())


def _record(label: int, dataset: Dataset) -> bytes:
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    return tf.train.Example(
        features=tf.train.Features(feature={dataset.records.keys.label: feature})
    ).SerializeToString()


def test_each_of_many_classes_of_two_images_occurs_in_an_epoch(dataset: Dataset):
    assert labels_of(dataset, [2] * 2000, epoch=1) == dict.fromkeys(range(2000), 2)


def test_the_examples_of_an_epoch_are_divided_equally_among_classes_of_any_size(dataset: Dataset):
    epochs = [labels_of(dataset, [1, 0, 2, 300, 5, 1], epoch) for epoch in (1, 2, 3, 4)]
    for seen in epochs:
        assert sum(seen.values()) == 309
        assert sorted(seen.values()) == [61, 62, 62, 62, 62]
    assert len({min(seen, key=seen.__getitem__) for seen in epochs}) > 1  # Not always the same class has one less.
