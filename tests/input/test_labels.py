"""The labels of a batch whose images can have several labels."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.dataset.manifest import load
from pipeline.errors import DatasetError
from pipeline.input import BatchOptions, training_batches, validation_batches
from pipeline.input.decode import multi_hot
from pipeline.records.format import read_image
from pipeline.records.tfrecord import read_records
from tests.published import publish_case

OPTIONS = BatchOptions(image_size=16, batch_size=2, shuffle_bytes=1)


@pytest.fixture(scope="module", params=["boxes", "plain boxes"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of one to three labels, whose ids begin at 0 or at 1 in the records."""
    folder, _ = publish_case(request.param, tmp_path_factory.mktemp("published"))
    return folder


def of_records(folder: Path, split: str) -> list[tuple[int, ...]]:
    """The ids of each example, in the order of the shards."""
    dataset = load(folder)
    return [
        read_image(record, dataset.records).labels
        for shard in dataset.splits[split].shards
        for record in read_records(folder / shard.name)
    ]


def ids(labels: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.flatnonzero(row).tolist()) for row in labels]


@pytest.mark.parametrize(("given", "expected"), [([2, 0], [1, 0, 1]), ([1], [0, 1, 0]), ([1, 1], [0, 1, 0])])
def test_ids_become_a_row_of_ones_and_zeros(given: list[int], expected: list[int]):
    assert multi_hot(tf.constant(given), 3).numpy().tolist() == expected


@pytest.mark.long
@pytest.mark.parametrize("cache", ["off", "memory"])
def test_a_training_batch_has_the_labels_of_its_examples(published: Path, cache: str):
    expected = of_records(published, "train")
    assert any(len(each) > 1 for each in expected)
    options = BatchOptions(image_size=16, batch_size=2, cache=cache)
    for _, labels, _, _, numbers in training_batches(published, options, epochs=2, numbered=True):
        assert (labels.dtype, labels.shape) == (tf.uint8, (2, len(load(published).labels)))
        assert ids(labels.numpy()) == [tuple(sorted(expected[number])) for number in numbers.numpy()]


def test_a_validation_batch_has_the_labels_of_its_examples(published: Path):
    batches = [(labels, weights) for _, labels, weights in validation_batches(published, OPTIONS)]
    found = [each for labels, weights in batches for each in ids(labels.numpy()[weights > 0])]
    assert found == [tuple(sorted(each)) for each in of_records(published, "validation")]


def test_images_with_several_labels_cannot_be_balanced(published: Path):
    with pytest.raises(DatasetError, match="have several labels, so the classes cannot be balanced"):
        training_batches(published, BatchOptions(image_size=16, batch_size=2, balanced=True))
