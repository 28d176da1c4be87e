from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.errors import SourceError
from pipeline.input.raw_files import load_image, raw_file_batches

CLASSES = ["cat", "dog", "red rose"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine one-colored JPEGs in three classes, and a text file. The red of an image is 20 times its number."""
    folder = tmp_path / "photos [2026]*"
    for number in range(9):
        path = folder / CLASSES[number % 3] / f"{number}.{'JPEG' if number % 2 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30 + number, 20), (20 * number, 0, 0)).save(path, "JPEG", quality=95)
    (folder / "cat" / "notes.txt").write_text("no image")
    return folder


def test_every_image_occurs_once_with_its_label(folder: Path):
    batches = list(raw_file_batches(folder, image_size=16, batch_size=4))
    assert [(images.shape, images.dtype) for images, _ in batches] == [((n, 16, 16, 3), tf.float32) for n in (4, 4, 1)]
    assert [(labels.shape, labels.dtype) for _, labels in batches] == [((n,), tf.int32) for n in (4, 4, 1)]
    pairs = [
        (round(float(image[8, 8, 0]) * 255 / 20), int(label))
        for images, labels in batches
        for image, label in zip(images, labels, strict=True)
    ]
    assert Counter(pairs) == Counter((number, number % 3) for number in range(9))


def test_each_pass_has_a_new_order(folder: Path):
    batches = raw_file_batches(folder, image_size=16, batch_size=9)
    orders = [tuple(images.numpy()[:, 8, 8, 0]) for _ in range(4) for images, _ in batches]
    assert len(set(orders)) > 1


@pytest.mark.parametrize("mapped", [False, True])
def test_load_image_works_eagerly_and_in_a_map(folder: Path, mapped: bool):
    path = str(folder / "red rose" / "8.jpg")
    if mapped:
        [(image, label)] = tf.data.Dataset.from_tensors(path).map(lambda each: load_image(each, CLASSES, 24))
    else:
        image, label = load_image(tf.constant(path), CLASSES, 24)
    assert (image.shape, image.dtype, label.dtype, int(label)) == ((24, 24, 3), tf.float32, tf.int32, 2)
    assert np.abs(image.numpy() * 255 - (160, 0, 0)).max() <= 3


def test_a_folder_without_jpegs_is_refused(tmp_path: Path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(SourceError, match="has no JPEG files in its sub-folders: name a folder"):
        raw_file_batches(tmp_path, image_size=16, batch_size=4)
