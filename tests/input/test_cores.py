"""Batches do not depend on the number of cores."""

import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.dataset.manifest import load
from pipeline.input import BatchOptions, training_batches, validation_batches
from pipeline.input.order import order_of_training
from tests.conftest import MakeImages
from tests.published import publish

OPTIONS = BatchOptions(image_size=16, batch_size=8, shuffle_bytes=2000)
CORES = [1, 2, 9, 64, 256]


@pytest.fixture
def published(make_images: MakeImages, tmp_path: Path) -> Path:
    """A dataset of 12 training shards, more than are read at once."""
    source = make_images({"cats": 30, "dogs": 30})
    return Path(str(publish(source, tmp_path / "workspace", num_shards=12)))


@pytest.mark.long
def test_batches_are_the_same_on_any_number_of_cores(published: Path, monkeypatch: pytest.MonkeyPatch):
    seen = {}
    for cores in CORES:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        order = order_of_training(published, load(published), OPTIONS, epochs=2)
        batches = [*training_batches(published, OPTIONS, epochs=2), *validation_batches(published, OPTIONS)]
        seen[cores] = [np.concatenate([part.numpy().ravel() for part in batch]) for batch in batches]
        seen[cores].append(np.array(list(order.as_numpy_iterator())))
    for cores in CORES:
        for batch, expected in zip(seen[cores], seen[1], strict=True):
            np.testing.assert_array_equal(batch, expected, err_msg=f"{cores} cores")
