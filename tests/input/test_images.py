import gzip
import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline import tfrecord
from pipeline.build import build
from pipeline.config import settings_from
from pipeline.dataset import Dataset, Shard, Split, load
from pipeline.input import training_batches, validation_batches
from pipeline.input.images import decode_example, records_of, shuffle_elements, shuffled_names
from pipeline.quality.examine import UsableImage
from pipeline.records import ImageEncoder, RecordFormat


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 60 one-coloured images: the colour of an image is its number."""
    root = tmp_path_factory.mktemp("published")
    for number in range(60):
        path = root / "source" / f"class{number % 3}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + number % 5, 9), (number, 4 * number, 0)).save(path)
    settings = settings_from(
        {"source_uri": str(root / "source"), "workspace": str(root / "workspace"), "num_shards": 4}
    )
    return Path(build(settings)["dataset"])


def training(folder: Path, *, epoch: int = 1, seed: int = 0, batch_size: int = 7, shuffle_bytes: int = 10**6):
    return training_batches(
        folder,
        load(folder),
        epoch=epoch,
        image_size=32,
        batch_size=batch_size,
        shuffle_bytes=shuffle_bytes,
        seed=seed,
    )


def numbers(batches: tf.data.Dataset) -> list[int]:
    return [int(image[16, 16, 0]) for images, _ in batches for image in images.numpy()]


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("shuffle_bytes", [1, 10**6])
def test_an_epoch_shows_every_example_once(published: Path, batch_size: int, shuffle_bytes: int):
    trained = numbers(training(published, batch_size=batch_size, shuffle_bytes=shuffle_bytes))
    validated = numbers(validation_batches(published, load(published), image_size=32, batch_size=batch_size))
    assert Counter(trained + validated) == Counter(range(60))
    assert len(validated) == load(published).splits["validation"].examples


def test_labels_belong_to_their_images(published: Path):
    for images, labels in training(published):
        assert [int(image[0, 0, 0]) % 3 for image in images.numpy()] == labels.numpy().tolist()


def test_shapes_and_types(published: Path):
    images, labels = next(iter(training(published)))
    assert (images.shape, images.dtype) == ((7, 32, 32, 3), tf.uint8)
    assert (labels.shape, labels.dtype) == ((7,), tf.int32)


def test_the_order_is_that_of_seed_and_epoch(published: Path):
    first = numbers(training(published, seed=3, epoch=2))
    assert numbers(training(published, seed=3, epoch=2)) == first
    assert numbers(training(published, seed=3, epoch=3)) != first
    assert numbers(training(published, seed=4, epoch=2)) != first


def test_validation_keeps_the_order_of_the_shards(published: Path):
    batches = [numbers(validation_batches(published, load(published), image_size=32, batch_size=n)) for n in (1, 5)]
    assert batches[0] == batches[1]


def serialized(image: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, quality=95)
    return record_of(buffer.getvalue(), form, image, RecordFormat())


def record_of(encoded: bytes, form: str, image: Image.Image, records: RecordFormat) -> bytes:
    usable = UsableImage(encoded, form, image.height, image.width, (), "JPEG", None, None)
    return ImageEncoder(records, list("abcdef"), {}).encode(usable, ("f",), b"name") + encoded


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(300, 200), (10, 90), (1, 1)])
@pytest.mark.parametrize("mapped", [False, True])
def test_decoding_eagerly_and_in_a_map(form: str, size: tuple[int, int], mapped: bool):
    record = serialized(Image.new("RGB", size, (200, 100, 50)), form)
    if mapped:
        image, label = next(
            iter(tf.data.Dataset.from_tensors(record).map(lambda each: decode_example(each, RecordFormat(), 64)))
        )
    else:
        image, label = decode_example(tf.constant(record), RecordFormat(), 64)
    assert (image.shape, image.dtype, int(label)) == ((64, 64, 3), tf.uint8, 5)
    assert np.abs(image.numpy().astype(int) - (200, 100, 50)).max() <= 3


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        RecordFormat(pixels="raw"),
        RecordFormat(pixels="raw", feature_keys="plain", label_offset=1, compression="gzip"),
    ],
)
def test_pixels_are_read_as_they_are(tmp_path: Path, form: RecordFormat, mapped: bool):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    record = record_of(pixels.tobytes(), "RAW", Image.fromarray(pixels), form)
    path = tmp_path / f"some{form.ending}"
    path.write_bytes((gzip.compress if form.ending.endswith("gz") else bytes)(tfrecord.frame(record)))
    if mapped:
        [(image, label)] = records_of([str(path)], form).map(lambda each: decode_example(each, form, 64))
    else:
        image, label = decode_example(tf.constant(record), form, 64)
    assert (image.numpy() == pixels).all()
    assert int(label) == 5


def test_shrinking_is_antialiased():
    stripes = Image.fromarray(np.tile(np.uint8([[0, 255]]), (640, 320)).repeat(3).reshape(640, 640, 3))
    image, _ = decode_example(tf.constant(serialized(stripes, "PNG")), RecordFormat(), 32)
    assert 110 < image.numpy()[4:-4, 4:-4].mean() < 145
    assert image.numpy()[4:-4, 4:-4].std() < 10  # without it: columns of 0 and of 255


def split(examples: int, total_bytes: int, shards: int = 1) -> Split:
    names = tuple(Shard(f"train-{i}", 1, 1, "") for i in range(shards))
    return Split(examples, total_bytes, {}, names)


@pytest.mark.parametrize(
    ("examples", "total_bytes", "shuffle_bytes", "elements"),
    [(1000, 100_000_000, 10_000_000, 100), (50, 5_000_000, 10_000_000, 50), (10, 1000, 1, 1), (0, 0, 100, 1)],
)
def test_the_shuffle_buffer_is_sized_in_memory(examples: int, total_bytes: int, shuffle_bytes: int, elements: int):
    assert shuffle_elements(split(examples, total_bytes), shuffle_bytes) == elements


def test_the_order_of_files_is_pinned():
    names = [name[6:] for name in shuffled_names(split(6, 1, 6), seed=0, epoch=1)]
    assert "".join(names) == "435120"
    assert sorted(names) == ["0", "1", "2", "3", "4", "5"]


def test_a_damaged_record_stops_the_epoch(published: Path, tmp_path: Path):
    dataset: Dataset = load(published)
    for shard in dataset.splits["train"].shards:
        content = bytearray((published / shard.name).read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / shard.name).write_bytes(content)
    batches = training_batches(tmp_path, dataset, epoch=1, image_size=32, batch_size=8, shuffle_bytes=1, seed=0)
    with pytest.raises(tf.errors.DataLossError):
        numbers(batches)
