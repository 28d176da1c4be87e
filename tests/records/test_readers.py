"""Published shards, read by third-party code: TensorFlow, TensorFlow Datasets, `tfrecord` of PyPI, DALI and Grain.

Each reader must find every image of the source exactly once, with its size, labels and boxes. This file repeats the
keys that the readers use, so that a test fails if the project renames a key.
"""

import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from tests.published import CASES, LABELS, LEAF, SourceImage, publish, publish_case
from tests.readers_environment import run_with_readers
from tests.sources.examples import imagenet

ALL = list(CASES)
UNCOMPRESSED = [case for case in ALL if case != "gzip"]
MODEL_GARDEN = {
    "content": "image/encoded",
    "height": "image/height",
    "width": "image/width",
    "ids": "image/class/label",
    "names": "image/class/text",
    "ymin": "image/object/bbox/ymin",
    "xmin": "image/object/bbox/xmin",
    "ymax": "image/object/bbox/ymax",
    "xmax": "image/object/bbox/xmax",
    "box_ids": "image/object/class/label",
    "box_names": "image/object/class/text",
}
PLAIN = {
    "content": "image",
    "height": "height",
    "width": "width",
    "ids": "class",
    "names": "label",
    "ymin": "ymin",
    "xmin": "xmin",
    "ymax": "ymax",
    "xmax": "xmax",
    "box_ids": "box_class",
    "box_names": "box_label",
}


class Seen(NamedTuple):
    """What a reader found about an image, without its content. A box is (ymin, xmin, ymax, xmax) in fractions."""

    height: int
    width: int
    ids: list[int]
    names: list[str]
    boxes: list[tuple[float, ...]]
    box_ids: list[int]
    box_names: list[str]


@dataclass(frozen=True)
class Published:
    """A dataset, and the images of its source."""

    name: str
    folder: Path
    images: Sequence[SourceImage]
    described: Mapping[str, Any]
    """Its dataset.json."""

    @property
    def keys(self) -> Mapping[str, str]:
        return PLAIN if "plain" in self.name or self.name == "gzip" else MODEL_GARDEN

    @property
    def offset(self) -> int:
        return int(self.name in ("label_offset", "gzip", "plain boxes"))

    def shards(self, split: str) -> list[str]:
        return [str(self.folder / shard["name"]) for shard in self.described["splits"][split]["shards"]]


@pytest.fixture(scope="module")
def all_published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Published]:
    made = {}
    for name in CASES:
        folder, images = publish_case(name, tmp_path_factory.mktemp(name))
        made[name] = Published(name, folder, images, json.loads((folder / "dataset.json").read_bytes()))
    return made


@pytest.fixture(params=ALL)
def published(all_published: dict[str, Published], request: pytest.FixtureRequest) -> Published:
    return all_published[request.param]


def expected(published: Published, content_of: Callable[[bytes], bytes]) -> dict[bytes, Seen]:
    """Return all images of the source by their content, which `content_of` derives from the file."""
    return {content_of(image.encoded): _expected(image, published.offset) for image in published.images}


def _expected(image: SourceImage, offset: int) -> Seen:
    width, height = Image.open(io.BytesIO(image.encoded)).size
    ids = {label: number + offset for number, label in enumerate([*LABELS, LEAF])}
    return Seen(
        height,
        width,
        [ids[label] for label in image.labels],
        list(image.labels),
        [(ymin / height, xmin / width, ymax / height, xmax / width) for xmin, ymin, xmax, ymax in image.boxes],
        [ids[label] for label in image.box_labels],
        list(image.box_labels),
    )


def content_in_record(published: Published) -> Callable[[bytes], bytes]:
    """Return the function that maps a file to the content of its record: the same bytes, or the pixels."""
    return pixels if published.described["records"]["pixels"] == "raw" else bytes


def pixels(encoded: bytes) -> bytes:
    return Image.open(io.BytesIO(encoded)).convert("RGB").tobytes()


def seen(features: Mapping[str, Any], keys: Mapping[str, str]) -> Seen:
    """Return the facts about an image from the features of its example. A feature is a value or a list."""
    values = {name: _listed(features.get(key, [])) for name, key in keys.items()}
    return Seen(
        int(values["height"][0]),
        int(values["width"][0]),
        [int(number) for number in values["ids"]],
        [name.decode() for name in values["names"]],
        list(zip(*(map(float, values[name]) for name in ("ymin", "xmin", "ymax", "xmax")), strict=True)),
        [int(number) for number in values["box_ids"]],
        [name.decode() for name in values["box_names"]],
    )


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, bytes) or not hasattr(value, "__len__") else list(value)


def check(published: Published, found: Mapping[str, Sequence[tuple[bytes, Seen]]], truth: Mapping[bytes, Seen]) -> None:
    """Compare `found` with `truth`. `found` holds pairs (content, facts) by split."""
    counts = {name: split["examples"] for name, split in published.described["splits"].items()}
    assert {split: len(images) for split, images in found.items()} == counts
    assert sum(counts.values()) == len(truth)
    assert dict(pair for images in found.values() for pair in images) == truth


# --- TensorFlow -------------------------------------------------------------------------------------------------------


def parsed(files: Sequence[str], schema: Mapping[str, Any], compression: str = "") -> list[dict[str, Any]]:
    """Every example as bytes, numbers and arrays."""
    import tensorflow as tf

    examples = tf.data.TFRecordDataset(files, compression_type=compression).map(
        lambda record: tf.io.parse_single_example(record, schema)
    )
    return [{key: _plain(tensor) for key, tensor in features.items()} for features in examples]


def _plain(tensor: Any) -> Any:
    return tensor.values.numpy() if hasattr(tensor, "values") else tensor.numpy()


def model_garden_schema(name: str) -> dict[str, Any]:
    """Sources: build_imagenet_data.py, official/vision/dataloaders/{classification_input,tf_example_decoder}.py."""
    import tensorflow as tf

    schema: dict[str, Any] = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string, default_value=""),
        "image/height": tf.io.FixedLenFeature((), tf.int64, default_value=-1),
        "image/width": tf.io.FixedLenFeature((), tf.int64, default_value=-1),
    }
    if name != "boxes":
        return schema | {
            "image/class/label": tf.io.FixedLenFeature((), tf.int64, default_value=-1),
            "image/class/text": tf.io.FixedLenFeature((), tf.string, default_value=""),
        }
    return schema | {
        "image/class/label": tf.io.VarLenFeature(tf.int64),
        "image/class/text": tf.io.VarLenFeature(tf.string),
        "image/object/bbox/xmin": tf.io.VarLenFeature(tf.float32),
        "image/object/bbox/xmax": tf.io.VarLenFeature(tf.float32),
        "image/object/bbox/ymin": tf.io.VarLenFeature(tf.float32),
        "image/object/bbox/ymax": tf.io.VarLenFeature(tf.float32),
        "image/object/class/label": tf.io.VarLenFeature(tf.int64),
        "image/object/class/text": tf.io.VarLenFeature(tf.string),
    }


def article_schema(name: str) -> dict[str, Any]:
    """Return a schema with the short keys that articles use."""
    import tensorflow as tf

    schema: dict[str, Any] = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "height": tf.io.FixedLenFeature([], tf.int64),
        "width": tf.io.FixedLenFeature([], tf.int64),
        "channels": tf.io.FixedLenFeature([], tf.int64),
    }
    if "boxes" not in name:
        return schema | {
            "class": tf.io.FixedLenFeature([], tf.int64),
            "label": tf.io.FixedLenFeature([], tf.string),
        }
    corners = dict.fromkeys(("xmin", "ymin", "xmax", "ymax"), tf.io.VarLenFeature(tf.float32))
    ids = dict.fromkeys(("class", "box_class"), tf.io.VarLenFeature(tf.int64))
    return schema | corners | ids | dict.fromkeys(("label", "box_label"), tf.io.VarLenFeature(tf.string))


def test_tensorflow_reads_every_image(published: Published):
    schema = (article_schema if published.keys is PLAIN else model_garden_schema)(published.name)
    compression = "GZIP" if published.name == "gzip" else ""
    found = {}
    for split in published.described["splits"]:
        examples = parsed(published.shards(split), schema, compression)
        found[split] = [(each[published.keys["content"]], seen(each, published.keys)) for each in examples]
        assert published.keys is MODEL_GARDEN or {each["channels"] for each in examples} == {3}
    check(published, found, expected(published, content_in_record(published)))


def test_imagenet_records_have_the_labels_that_readers_expect(tmp_path: Path):
    import tensorflow as tf

    folder = publish(imagenet(tmp_path / "source"), tmp_path / "workspace", max_leaked_fraction=1)
    schema = {
        "image/class/label": tf.io.FixedLenFeature((), tf.int64, default_value=-1),
        "image/class/synset": tf.io.FixedLenFeature((), tf.string, default_value=""),
        "image/class/text": tf.io.FixedLenFeature((), tf.string, default_value=""),
    }
    for split in ("train", "validation"):
        examples = parsed([str(path) for path in folder.glob(f"{split}-*")], schema)
        assert sorted(tuple(each[key] for key in schema) for each in examples) == [
            (1, b"n01440764", b"tench, Tinca tinca"),
            (2, b"n01443537", b"n01443537"),
        ]


def test_imagenet_without_metadata_has_synsets_as_text(tmp_path: Path):
    import tensorflow as tf

    source = imagenet(tmp_path / "source")
    (source / "imagenet_metadata.txt").unlink()
    folder = publish(source, tmp_path / "workspace", max_leaked_fraction=1)
    schema = {key: tf.io.FixedLenFeature((), tf.string) for key in ("image/class/synset", "image/class/text")}
    for split in ("train", "validation"):
        examples = parsed([str(path) for path in folder.glob(f"{split}-*")], schema)
        assert sorted(tuple(each.values()) for each in examples) == [
            (code, code) for code in (b"n01440764", b"n01443537")
        ]


# --- training code of other projects ----------------------------------------------------------------------------------


def batches_of(files: Sequence[str], read: Callable[[Any], tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return (image, label) of every example, mapped and batched as in training, which checks shapes and types."""
    import tensorflow as tf

    batches = tf.data.TFRecordDataset(files).map(read).batch(3).as_numpy_iterator()
    return [pair for images, labels in batches for pair in zip(images, labels, strict=True)]


def resized(content: Any) -> Any:
    import tensorflow as tf

    return tf.image.resize(tf.image.convert_image_dtype(tf.io.decode_jpeg(content, channels=3), tf.float32), [8, 8])


def keras_imagenet(record: Any) -> tuple[Any, Any]:
    """Parse like utils/dataset.py of jkjung-avt/keras_imagenet: three keys with defaults, and ids that begin at 1."""
    import tensorflow as tf

    keys = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
        "image/class/text": tf.io.FixedLenFeature([], tf.string, default_value=""),
    }
    features = tf.io.parse_single_example(record, keys)
    return resized(features["image/encoded"]), tf.one_hot(features["image/class/label"] - 1, len(LABELS))


def article(record: Any) -> tuple[Any, Any]:
    """Parse like articles: short keys without a default, and pixels reshaped to the sizes in the record."""
    import tensorflow as tf

    keys = dict.fromkeys(("image", "label"), tf.io.FixedLenFeature([], tf.string))
    keys |= dict.fromkeys(("height", "width", "channels", "class"), tf.io.FixedLenFeature([], tf.int64))
    features = tf.io.parse_single_example(record, keys)
    shape = tf.stack([features[key] for key in ("height", "width", "channels")])
    image = tf.reshape(tf.io.decode_jpeg(features["image"], channels=3), shape)
    image = tf.image.resize(tf.image.convert_image_dtype(image, tf.float32), [8, 8])
    return image, tf.one_hot(features["class"], len(LABELS))


def model_garden(record: Any) -> tuple[Any, Any]:
    """Parse like official/vision/dataloaders/classification_input.py: two keys with defaults, and ids from 0."""
    import tensorflow as tf

    keys = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string, default_value=""),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64, default_value=-1),
    }
    features = tf.io.parse_single_example(record, keys)
    return resized(features["image/encoded"]), tf.one_hot(features["image/class/label"], len(LABELS))


@pytest.mark.parametrize(
    ("name", "read"),
    [("label_offset", keras_imagenet), ("plain", article), ("keep", model_garden)],
    ids=["keras_imagenet", "article", "model_garden"],
)
def test_training_code_of_other_projects_reads_every_image(
    all_published: dict[str, Published], name: str, read: Callable[[Any], tuple[Any, Any]]
):
    published = all_published[name]
    found = [pair for split in published.described["splits"] for pair in batches_of(published.shards(split), read)]
    truth = {resized(image.encoded).numpy().tobytes(): LABELS.index(image.labels[0]) for image in published.images}
    assert {image.tobytes(): int(label.argmax()) for image, label in found} == truth
    assert len(found) == len(truth)
    assert {label.sum() for _, label in found} == {1.0}  # An id out of range would give zeros.


def test_records_have_the_keys_that_keras_imagenet_documents(tmp_path: Path):
    """The color space is left out, because its code does not read it and all images are RGB."""
    import tensorflow as tf

    folder = publish(imagenet(tmp_path / "source"), tmp_path / "workspace", max_leaked_fraction=1, label_offset=1)
    bytes_keys = ("image/class/synset", "image/class/text", "image/format", "image/filename", "image/encoded")
    schema = dict.fromkeys(bytes_keys, tf.io.FixedLenFeature([], tf.string))
    int_keys = ("image/height", "image/width", "image/channels", "image/class/label")
    schema |= dict.fromkeys(int_keys, tf.io.FixedLenFeature([], tf.int64))
    examples = parsed([str(path) for path in folder.glob("train-*")], schema)
    assert len(examples) == 2
    for each in examples:
        height, width, channels = tf.io.decode_jpeg(each["image/encoded"]).shape
        assert (each["image/height"], each["image/width"], each["image/channels"]) == (height, width, channels)
        assert each["image/format"] == b"JPEG"
        assert each["image/filename"].endswith(b".JPEG")


def test_the_detection_decoder_of_the_model_garden_reads_every_box(all_published: dict[str, Published]):
    """Like tf_example_decoder.py in official/vision/dataloaders, with regenerate_source_id: ours have no source_id."""
    import tensorflow as tf

    published = all_published["boxes"]
    schema = {"image/encoded": tf.io.FixedLenFeature((), tf.string)}
    schema |= dict.fromkeys(("image/height", "image/width"), tf.io.FixedLenFeature((), tf.int64, -1))
    floats = [f"image/object/bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax")]
    schema |= dict.fromkeys([*floats, "image/object/area"], tf.io.VarLenFeature(tf.float32))
    ints = ("image/object/class/label", "image/object/is_crowd")
    schema |= dict.fromkeys(ints, tf.io.VarLenFeature(tf.int64))
    keys = MODEL_GARDEN | {"ids": "image/none", "names": "image/none", "box_names": "image/none"}
    found = {}
    for split in published.described["splits"]:
        for each in parsed(published.shards(split), schema):
            # The decoder computes both if they are missing.
            assert (len(each["image/object/area"]), len(each["image/object/is_crowd"])) == (0, 0)
            found[each["image/encoded"]] = seen(each, keys)
    truth = expected(published, bytes)
    assert found == {content: each._replace(ids=[], names=[], box_names=[]) for content, each in truth.items()}


# --- tfrecord of PyPI -------------------------------------------------------------------------------------------------

READ_WITH_TFRECORD = """
import json, pickle, sys
from tfrecord import tfrecord_loader

read = lambda path: list(tfrecord_loader(path, None, None, compression_type="gzip" if path.endswith(".gz") else None))
pickle.dump({path: read(path) for path in json.load(sys.stdin)}, sys.stdout.buffer)
"""


@pytest.fixture(scope="module")
def read_by_tfrecord(all_published: dict[str, Published]) -> dict[str, list[dict[str, Any]]]:
    """Examples by shard, read in a separate process: the package declares the same messages as TensorFlow."""
    files = [path for one in all_published.values() for split in one.described["splits"] for path in one.shards(split)]
    command = [sys.executable, "-c", READ_WITH_TFRECORD]
    done = subprocess.run(command, input=json.dumps(files).encode(), capture_output=True, check=True)
    return pickle.loads(done.stdout)


def test_tfrecord_of_pypi_reads_every_image(published: Published, read_by_tfrecord: Mapping[str, Any]):
    found = {
        split: [
            (each[published.keys["content"]], seen(each, published.keys))
            for path in published.shards(split)
            for each in read_by_tfrecord[path]
        ]
        for split in published.described["splits"]
    }
    check(published, found, expected(published, content_in_record(published)))


READ_PARTS_WITH_TFRECORD = """
import json, pickle, sys
from tfrecord import tfrecord_loader

shard, index, parts = json.load(sys.stdin)
found = [list(tfrecord_loader(shard, index, None, shard=(part, parts))) for part in range(parts)]
pickle.dump(found, sys.stdout.buffer)
"""


def test_tfrecord_of_pypi_divides_a_shard_by_its_index(
    all_published: dict[str, Published], read_by_tfrecord: Mapping[str, Any]
):
    published = all_published["few shards"]
    shard = Path(published.shards("train")[0])
    index = published.folder / "index" / f"{shard.stem}.idx"
    command = [sys.executable, "-c", READ_PARTS_WITH_TFRECORD]
    given = json.dumps([str(shard), str(index), 3]).encode()
    parts = pickle.loads(subprocess.run(command, input=given, capture_output=True, check=True).stdout)
    whole = [each["image/encoded"] for each in read_by_tfrecord[str(shard)]]
    assert [each["image/encoded"] for part in parts for each in part] == whole
    assert [len(part) for part in parts] == [1, 1, 2]  # 4 records: no part reads all of them


# --- DALI and Grain, in their own environment -------------------------------------------------------------------------

READ_WITH_DALI = """
import json, pickle, sys
import nvidia.dali.tfrecord as tfrec
from nvidia.dali import fn, pipeline_def


def read(shards, indexes, keys):
    text, number = tfrec.FixedLenFeature((), tfrec.string, ""), tfrec.FixedLenFeature([1], tfrec.int64, -1)
    features = {keys[name]: text for name in ("content", "names")}
    features |= {keys[name]: number for name in ("height", "width", "ids")}

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def records():
        read = fn.readers.tfrecord(path=shards, index_path=indexes, features=features, name="reader")
        return tuple(read[key] for key in features)

    batches = records()
    batches.build()
    for _ in range(batches.reader_meta("reader")["epoch_size"]):
        values = dict(zip(features, (batch.at(0) for batch in batches.run())))
        yield {key: value.tobytes() if features[key] is text else value.tolist() for key, value in values.items()}


pickle.dump([list(read(*given)) for given in json.load(sys.stdin)], sys.stdout.buffer)
"""
READ_WITH_GRAIN = """
import json, pickle, sys
import grain
from pipeline.dataset.shards import Shards

found = [list(grain.MapDataset.source(Shards(*given)).shuffle(seed=1)) for given in json.load(sys.stdin)]
pickle.dump(found, sys.stdout.buffer)
"""
BY_DALI = [case for case in UNCOMPRESSED if "boxes" not in case]
"""DALI reads only one text in a feature."""


@pytest.mark.long
def test_dali_reads_every_image_by_the_indexes(all_published: dict[str, Published]):
    given = []
    for name, split in _parts(BY_DALI):
        published = all_published[name]
        shards = [Path(path) for path in published.shards(split)]
        indexes = [str(published.folder / "index" / f"{path.stem}.idx") for path in shards]
        given.append([list(map(str, shards)), indexes, dict(published.keys)])
    _check_all(all_published, BY_DALI, pickle.loads(run_with_readers(READ_WITH_DALI, json.dumps(given).encode())))


@pytest.mark.long
def test_grain_reads_every_image(all_published: dict[str, Published]):
    given = [[str(all_published[name].folder), split] for name, split in _parts(ALL)]
    _check_all(all_published, ALL, pickle.loads(run_with_readers(READ_WITH_GRAIN, json.dumps(given).encode())))


def _parts(cases: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, split) for name in cases for split in ("train", "validation")]


def _check_all(
    all_published: Mapping[str, Published], cases: Sequence[str], records: Sequence[Sequence[dict[str, Any]]]
) -> None:
    """Check the records of all splits of some datasets, in the order of `_parts`."""
    of_part = dict(zip(_parts(cases), records, strict=True))
    for name in cases:
        published = all_published[name]
        found = {
            split: [
                (_first(each[published.keys["content"]]), seen(each, published.keys)) for each in of_part[name, split]
            ]
            for split in published.described["splits"]
        }
        check(published, found, expected(published, content_in_record(published)))


def _first(value: Any) -> bytes:
    return value if isinstance(value, bytes) else value[0]


# --- TensorFlow Datasets ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tfds() -> Any:
    import tensorflow_datasets

    return tensorflow_datasets


def flat(features: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested features by their keys in the record."""
    found: dict[str, Any] = {}
    for name, value in features.items():
        found |= flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def decoded(encoded: bytes) -> bytes:
    """Decode with TensorFlow like TFDS, because another decoder can give other pixels."""
    import tensorflow as tf

    return tf.io.decode_image(encoded, channels=3).numpy().tobytes()


def of_tfds(examples: Iterable[Mapping[str, Any]], keys: Mapping[str, str]) -> list[tuple[bytes, Seen]]:
    pairs = []
    for example in map(flat, examples):
        content = example[keys["content"]]
        pairs.append((content if isinstance(content, bytes) else content.tobytes(), seen(example, keys)))
    return pairs


@pytest.mark.parametrize("name", UNCOMPRESSED)
def test_tensorflow_datasets_reads_every_image(tfds: Any, all_published: dict[str, Published], name: str):
    published = all_published[name]
    builder = tfds.builder_from_directory(published.folder)
    found = {
        split: of_tfds(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=True)), published.keys)
        for split in builder.info.splits
    }
    check(published, found, expected(published, pixels if name == "raw" else decoded))
    counts = {split: info.num_examples for split, info in builder.info.splits.items()}
    assert counts == {split: len(images) for split, images in found.items()}


@pytest.mark.parametrize("name", [name for name in CASES if name != "gzip"])
def test_tensorflow_datasets_knows_the_names_of_the_classes(tfds: Any, all_published: dict[str, Published], name: str):
    published = all_published[name]
    features = tfds.builder_from_directory(published.folder).info.features
    for key in ("ids", "box_ids") if "boxes" in name else ("ids",):
        feature = features
        for part in published.keys[key].split("/"):
            feature = feature[part]
        labels = [*LABELS, LEAF] if "boxes" in name else LABELS
        assert [feature.int2str(number + published.offset) for number in range(len(labels))] == labels
        assert feature.num_classes == len(labels) + published.offset


def test_tensorflow_datasets_skips_an_empty_shard(tfds: Any, all_published: dict[str, Published]):
    published = all_published["keep"]
    shards = published.described["splits"]["train"]["shards"]
    assert 0 in [shard["examples"] for shard in shards[1:-1]]
    builder = tfds.builder_from_directory(published.folder)
    parts = [len(builder.as_dataset(split=part)) for part in ("train[:2]", "train[2:]")]
    assert parts == [2, published.described["splits"]["train"]["examples"] - 2]


def test_compressed_shards_have_no_files_of_tensorflow_datasets(all_published: dict[str, Published]):
    names = {path.name for path in all_published["gzip"].folder.iterdir()}
    assert "train-00000-of-00010.tfrecord.gz" in names
    assert not [name for name in names if name in ("features.json", "dataset_info.json") or name.endswith(".txt")]


# --- gray images, which keep their bytes ------------------------------------------------------------------------------


def by_tensorflow(content: bytes) -> Any:
    import tensorflow as tf

    return tf.io.decode_image(content, channels=3, expand_animations=False).numpy()


def by_articles(content: bytes) -> Any:
    """Despite its name, `decode_jpeg` also reads PNG."""
    import tensorflow as tf

    return tf.io.decode_jpeg(content, channels=3).numpy()


def by_model_garden(content: bytes) -> Any:
    """Decode like `random_crop_image_v2` of official/vision/ops/preprocess_ops.py, with the size in the header."""
    import tensorflow as tf

    if not tf.io.is_jpeg(content):
        return by_tensorflow(content)  # as `parse_eval_image` of classification_input.py
    height, width = tf.image.extract_jpeg_shape(content)[:2]
    return tf.image.decode_and_crop_jpeg(content, [0, 0, height, width], channels=3).numpy()


def by_pillow(content: bytes) -> Any:
    """Most readers without TensorFlow decode this way."""
    import numpy as np

    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def by_tenfold(content: bytes) -> Any:
    import tensorflow as tf

    from pipeline.input import decode
    from pipeline.records.format import RecordFormat

    height, width = by_pillow(content).shape[:2]
    stored = decode.Stored(tf.constant(content), tf.constant(height), tf.constant(width), tf.constant(0))
    size = tf.constant([height, width])
    return decode.decode_crop(stored, tf.concat([[0, 0], size], 0), RecordFormat(), size).numpy()


def as_exact_rgb(encoded: bytes) -> bytes:
    """Return three equal channels with the levels that another decoder finds."""
    import imagecodecs
    import numpy as np

    decode = imagecodecs.png_decode if encoded.startswith(b"\x89PNG") else imagecodecs.jpeg8_decode
    levels = np.asarray(decode(encoded))
    assert levels.ndim == 2
    return np.stack([levels] * 3, -1).tobytes()


def gray_images(published: Published) -> list[bytes]:
    files = [image.encoded for image in published.images]
    return [content for content in files if Image.open(io.BytesIO(content)).mode == "L"]


@pytest.mark.parametrize("read", [by_tensorflow, by_articles, by_model_garden, by_pillow, by_tenfold])
@pytest.mark.parametrize("name", ["keep", "plain"])
def test_gray_images_are_exact_rgb(
    all_published: dict[str, Published], read_by_tfrecord: Mapping[str, Any], name: str, read: Callable[[bytes], Any]
):
    """The images come from the records, as `tfrecord` returns them."""
    published = all_published[name]
    key = published.keys["content"]
    paths = [path for split in published.described["splits"] for path in published.shards(split)]
    records = {bytes(each[key]): each for path in paths for each in read_by_tfrecord[path]}
    for content in gray_images(published):
        pixels = read(content)
        assert (pixels.shape, pixels.tobytes()) == ((*pixels.shape[:2], 3), as_exact_rgb(content))
        assert records[content][published.keys["height"]] == len(pixels)
        assert records[content]["image/channels" if name == "keep" else "channels"] == 3
    assert len(gray_images(published)) == 2


def test_gray_images_are_exact_rgb_to_tensorflow_datasets(tfds: Any, all_published: dict[str, Published]):
    published = all_published["keep"]
    builder = tfds.builder_from_directory(published.folder)
    found = {
        example["image"]["encoded"].tobytes()
        for split in builder.info.splits
        for example in tfds.as_numpy(builder.as_dataset(split=split))
    }
    assert {as_exact_rgb(content) for content in gray_images(published)} <= found
