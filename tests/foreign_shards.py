"""TFRecord files as other programs write them, for tests. TensorFlow writes all bytes of the records."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

Row = Mapping[str, Any]
"""A value or a list by feature. None is a missing value."""
_UUID = "9c1e2f0a-5d2b-4b39-8d0e-3f1f3c0f7a11"
LAYOUTS: Mapping[str, tuple[str, Callable[[bytes], bytes]]] = {
    "spark-tfrecord": (f"part-{{:05}}-{_UUID}-c000.tfrecord", bytes),
    "spark-tfrecord, gzip": (f"part-{{:05}}-{_UUID}-c000.tfrecord.gz", gzip.compress),
    "spark-tfrecord, deflate": (f"part-{{:05}}-{_UUID}-c000.tfrecord.deflate", zlib.compress),
    "spark-tfrecord, partitions": (f"date=2020-01-{{:02}}/part-00000-{_UUID}.c000.tfrecord", bytes),
    "spark-tensorflow-connector": ("part-r-{:05}", bytes),
    "spark-tensorflow-connector, gzip": ("part-r-{:05}.gz", gzip.compress),
    "spark-tensorflow-connector, deflate": ("part-r-{:05}.deflate", zlib.compress),
    "shards": ("train-{:05}-of-00003.tfrecord", bytes),
    "shards of TensorFlow Datasets": ("made-train.tfrecord-{:05}-of-00003", bytes),
    "shards without suffix": ("train-{:05}-of-00003", bytes),
    "shards, compressed without suffix": ("train-{:05}-of-00003", gzip.compress),
    "shards, compressed by TFRecordOptions": ("train-{:05}.tfrecords", zlib.compress),
}
"""The name of a part by its number, and how its bytes are compressed, for each program."""


def feature(value: Any) -> tf.train.Feature:
    """Return a value, or a list of values, as a feature."""
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    texts = [each.encode() if isinstance(each, str) else each for each in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))


def example(row: Row) -> bytes:
    """Return a row as tf.train.Example. A missing value has no feature."""
    return tf.train.Example(features=_features(row)).SerializeToString()


def sequence_example(row: Row, lists: Mapping[str, Sequence[Any]]) -> bytes:
    """Return a row as tf.train.SequenceExample. `lists` has the value of each step by feature."""
    steps = {name: tf.train.FeatureList(feature=[feature(value) for value in values]) for name, values in lists.items()}
    return tf.train.SequenceExample(
        context=_features(row), feature_lists=tf.train.FeatureLists(feature_list=steps)
    ).SerializeToString()


def write_file(path: Path, records: Iterable[bytes], compress: Callable[[bytes], bytes] = bytes) -> Path:
    """Write records into a file, and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    path.write_bytes(compress(path.read_bytes()))
    return path


def write_folder(folder: Path, records: Sequence[bytes], layout: str = "spark-tfrecord", parts: int = 3) -> Path:
    """Write records as the parts of a folder with the other files that Hadoop writes, and return the folder."""
    name, compress = LAYOUTS[layout]
    for number in range(parts):
        path = write_file(folder / name.format(number), records[number::parts], compress)
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0\0\0\2\0")
    (folder / "_SUCCESS").touch()
    (folder / "._SUCCESS.crc").write_bytes(b"crc\0\0\0\2\0")
    return folder


def _features(row: Row) -> tf.train.Features:
    return tf.train.Features(feature={name: feature(value) for name, value in row.items() if value is not None})
