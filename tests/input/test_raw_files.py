import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.dataset.manifest import load
from pipeline.errors import SourceError
from pipeline.input import BatchOptions
from pipeline.input.raw_files import raw_batches, raw_files_of
from tests.published import publish

CLASSES = ["cat", "dog", "red rose"]
EPOCHS = 6
"""Few images have few orders, and the order also follows from TensorFlow's global seed, which other tests set. Two
epochs of them were equal once."""


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


@pytest.mark.long
@pytest.mark.parametrize("parallel", [False, True])
def test_batches_have_the_training_examples_of_the_dataset_once(folder: Path, tmp_path: Path, parallel: bool):
    published = publish(folder, tmp_path / "workspace")
    dataset = load(published)
    files = raw_files_of(published, dataset, str(folder))
    count = dataset.splits["train"].examples
    assert len(files.paths) == len(set(files.paths)) == count
    paths = [Path(os.fsdecode(path)) for path in files.paths]
    assert [dataset.labels[label] for label in files.labels] == [path.parent.name for path in paths]

    steps = -(-count // 4)
    of_all_epochs = list(raw_batches(files, BatchOptions(image_size=16, batch_size=4), parallel, epochs=EPOCHS))
    assert len(of_all_epochs) == EPOCHS * steps
    orders = set()
    for begin in range(0, len(of_all_epochs), steps):
        batches = of_all_epochs[begin : begin + steps]
        assert {images.shape for images, *_ in batches} == {(4, 16, 16, 3)}
        images, labels, weights, mirrored, numbers = (np.concatenate(each) for each in zip(*batches, strict=True))
        assert (images.dtype, labels.dtype, weights.dtype, mirrored.dtype) == (np.uint8, np.int32, np.float32, bool)
        real = weights == 1
        assert weights[real].size == count
        assert sorted(numbers[real]) == list(range(count))
        assert [files.labels[number] for number in numbers] == labels.tolist()
        reds = [int(paths[number].stem) * 20 for number in numbers]
        assert np.abs(images[:, 8, 8, 0] - np.array(reds, int)).max() <= 3
        orders.add(tuple(numbers[real]))
    assert len(orders) > 1


def test_equal_seeds_give_equal_epochs_and_later_epochs_differ(folder: Path, tmp_path: Path):
    published = publish(folder, tmp_path / "workspace")
    files = raw_files_of(published, load(published), str(folder))

    def epochs(seed: int) -> list[list[int]]:
        batches = list(raw_batches(files, BatchOptions(image_size=16, batch_size=4, seed=seed), True, epochs=EPOCHS))
        steps = len(batches) // EPOCHS
        return [
            [int(number) for *_, numbers in batches[begin : begin + steps] for number in numbers]
            for begin in range(0, len(batches), steps)
        ]

    assert epochs(1) == epochs(1) != epochs(2)
    assert len({tuple(epoch) for epoch in epochs(1)}) > 1


def test_a_file_whose_name_is_not_utf_8_is_read(folder: Path, tmp_path: Path):
    first = next(folder.glob("*/*.jpg"))
    first.rename(first.with_name(os.fsdecode(b"caf\xe9.jpg")))
    published = publish(folder, tmp_path / "workspace")
    dataset = load(published)
    files = raw_files_of(published, dataset, str(folder))
    batches = raw_batches(files, BatchOptions(image_size=16, batch_size=1), parallel=False, epochs=1)
    assert sum(1 for _ in batches) == dataset.splits["train"].examples


def test_without_parallel_reading_no_batch_is_made_ahead(folder: Path, tmp_path: Path):
    """The second batch needs a file that is removed while the first one is in use."""
    published = publish(folder, tmp_path / "workspace")
    files = raw_files_of(published, load(published), str(folder))

    def made(epochs: int) -> Iterator[tuple[tf.Tensor, ...]]:
        return iter(raw_batches(files, BatchOptions(image_size=16, batch_size=1), parallel=False, epochs=epochs))

    batches = made(epochs=1)
    next(batches)
    for _ in made(epochs=50):  # Meanwhile, a second batch could be made ahead on any machine.
        pass
    for path in folder.glob("*/*.*"):
        path.unlink()
    with pytest.raises(tf.errors.NotFoundError):
        next(batches)


def test_images_in_a_bucket_are_refused(folder: Path, tmp_path: Path):
    published = publish(folder, tmp_path / "workspace")
    with pytest.raises(SourceError, match="is in a bucket, and raw files are only read from a disk"):
        raw_files_of(published, load(published), "gs://bucket/images")


def test_a_crop_is_seven_eighths_of_the_shorter_side(tmp_path: Path):
    """The left half of the image is black, and the right one white: a crop of it is never all of one color."""
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:, 32:] = 255
    for number, name in enumerate(("a", "a", "b", "b")):
        pixels[0, 0] = 60 * number  # Equal images would all be in one split.
        path = tmp_path / "halves" / name / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=95)
    published = publish(tmp_path / "halves", tmp_path / "workspace")
    files = raw_files_of(published, load(published), str(tmp_path / "halves"))
    batches = raw_batches(files, BatchOptions(image_size=56, batch_size=1, crop="random"), parallel=True, epochs=29)
    seen = [images[0, 28, :, 0].numpy() for images, *_ in batches]
    borders = [int(np.argmax(row > 127)) for row in seen]
    assert min(borders) >= 24 - 1  # 56 of 64 pixels, beginning at 0 to 8
    assert max(borders) <= 32 + 1
    assert len(set(borders)) > 3
