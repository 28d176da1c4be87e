"""The article's reader of raw files, with which the benchmarks compare."""

from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.contenders import Job
from benchmarks.contenders.readers import read_raw_files

CLASSES = ["cat", "dog", "red rose"]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Nine one-colored JPEGs in three classes, and a text file. The red of an image is 20 times its number."""
    for number in range(9):
        path = tmp_path / CLASSES[number % 3] / f"{number}.{'JPEG' if number % 2 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (30 + number, 20), (20 * number, 0, 0)).save(path, "JPEG", quality=95)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return {"folder": str(tmp_path), "image_size": 16, "batch_size": 4}


def test_every_image_occurs_once_with_its_label(job: Job):
    batches = list(read_raw_files(job)(1))
    assert [batch.images.shape for batch in batches] == [(n, 16, 16, 3) for n in (4, 4, 1)]
    assert {(batch.images.dtype.name, batch.labels.dtype.name) for batch in batches} == {("float32", "int32")}
    pairs = [
        (round(float(image[8, 8, 0]) * 255 / 20), int(label))
        for batch in batches
        for image, label in zip(batch.images, batch.labels, strict=True)
    ]
    assert Counter(pairs) == Counter((number, number % 3) for number in range(9))


def test_each_pass_has_a_new_order(job: Job):
    orders = [tuple(batch.images.numpy()[:, 8, 8, 0]) for batch in read_raw_files({**job, "batch_size": 9})(4)]
    assert len(set(orders)) > 1
