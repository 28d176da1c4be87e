"""The costs of kept images are measured as a training keeps them on the disk, and shuffles them in memory."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.input.images import GROUP
from pipeline.training import cache_costs
from pipeline.training.cache_costs import measured_caches


@pytest.mark.parametrize(("image_bytes", "images"), [(1_000, 64), (10_000, GROUP)])
def test_images_are_written_once_and_read_in_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_bytes: int, images: int
):
    """At least one group of images is, whatever their size."""
    measure, counts = cache_costs._pass, list[int]()

    def noting(images: tf.data.Dataset, count: int) -> cache_costs._Pass:
        counts.append(count)
        return measure(images, count)

    monkeypatch.setattr(cache_costs, "_pass", noting)
    monkeypatch.setattr(cache_costs, "MAX_BYTES", 70_000)
    monkeypatch.setattr(cache_costs, "SHUFFLED", 100)
    costs = measured_caches(image_bytes, tmp_path / "new")
    assert counts == [images] * (2 + cache_costs.PASSES) + [100, 100 * cache_costs.PASSES]
    assert np.all(np.hstack([*asdict(costs).values()]) > 0)
    assert [*(tmp_path / "new").iterdir()] == []
