"""The costs of a disk cache of decoded images are measured as a training writes and reads it."""

from pathlib import Path

import pytest

from pipeline.input import disk_cache_costs
from pipeline.input.disk_cache_costs import measure_disk_cache
from pipeline.input.images import GROUP


@pytest.mark.parametrize(("image_bytes", "images"), [(1_000, 64), (10_000, GROUP)])
def test_images_are_written_once_and_read_in_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_bytes: int, images: int
):
    """At least one group of images is, whatever their size."""
    monkeypatch.setattr(disk_cache_costs, "MAX_BYTES", 70_000)
    costs = measure_disk_cache(image_bytes, tmp_path / "new")
    assert costs.images == images
    assert len(costs.read_cpu_us) == disk_cache_costs.PASSES
    assert min(costs.write_us, costs.read_us, *costs.read_cpu_us) > 0
    assert [*(tmp_path / "new").iterdir()] == []
