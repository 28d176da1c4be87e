"""The writers that are measured, each as a user would write it from the documentation of what it uses.

A writer takes a job: `root` (folder), `images` ([path below root, id of the class, name of the class] in the order of
the shards), `folder` (what to write into), `shards`; for our own also `range` (a plan file). Imports are inside, so
that a process pays for its own writer alone.
"""

import ctypes
import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.contenders import Job

Shard = tuple[str, list[Any]]
"""The path of a shard, and the rows of its images."""


def tenfold(job: Job) -> None:
    """This project's task of writing shards, as Airflow's mapped task calls it."""
    from pipeline.sharding.write import write_range

    write_range(Path(job["range"]), lambda *_: None)


def limit(job: Job) -> None:
    """Read, CRC32C and write, by one thread in C."""
    for _ in _written_in_c(job):
        pass


def limit_on_disk(job: Job) -> None:
    """Do the same, and put each shard on the disk while the next one is written, as Tenfold does."""
    from pipeline.storage.local import sync_path

    with ThreadPoolExecutor(1) as pool:
        synced = [pool.submit(sync_path, Path(target)) for target in _written_in_c(job)]
    for each in synced:
        each.result()


def _written_in_c(job: Job) -> Iterator[str]:
    """Write each shard, and yield its path."""
    library = ctypes.CDLL(job["library"], use_errno=True)
    for target, images in shards_of(job):
        paths = (ctypes.c_char_p * len(images))(*(path.encode() for path, _, _ in images))
        if library.write_shard(job["root"].encode(), paths, len(images), target.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)
        yield target


def decoder(job: Job) -> None:
    """Nothing but Pillow's decoding, of bytes in memory."""
    from PIL import Image

    for encoded in in_memory(job):
        Image.open(io.BytesIO(encoded)).load()


def decoder_and_encoder(job: Job) -> None:
    """Nothing but Pillow's decoding, resizing and encoding, of bytes in memory, as `prepare=resize` has it."""
    from PIL import Image

    for encoded in in_memory(job):
        image = Image.open(io.BytesIO(encoded)).convert("RGB")
        scale = job["side"] / min(image.size)
        if scale < 1:
            image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        image.save(io.BytesIO(), "JPEG", quality=95)


def array_record(job: Job) -> None:
    """ArrayRecord: the class id and the bytes, a record an image in a group of its own, as random access wants it."""
    from array_record.python.array_record_module import ArrayRecordWriter

    for target, images in shards_of(job):
        writer = ArrayRecordWriter(target, job["options"])
        for path, label, _ in images:
            writer.write(b"%d\n%b" % (label, read(job, path)))
        writer.close()


def webdataset(job: Job) -> None:
    """WebDataset: a tar file a shard, an image and its class a sample."""
    from webdataset import TarWriter

    number = 0
    for target, images in shards_of(job):
        with TarWriter(f"{target}.tar") as writer:
            for path, label, _ in images:
                writer.write({"__key__": f"{number:08d}", "jpg": read(job, path), "cls": label})
                number += 1


def mosaicml_streaming(job: Job) -> None:
    """MosaicML Streaming: MDS shards, closed by size, so that about as many of them come out."""
    from streaming import MDSWriter

    size = sum(Path(place_of(job, path)).stat().st_size for path, _, _ in job["images"])
    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=job["folder"], columns=columns, size_limit=max(1 << 16, size // job["shards"])) as writer:
        for path, label, _ in job["images"]:
            writer.write({"image": read(job, path), "label": label})


def tfrecord_package(job: Job) -> None:
    """Write with the `tfrecord` package of PyPI: protobuf and CRC32C, without TensorFlow; size from Pillow's header."""
    from PIL import Image
    from tfrecord import TFRecordWriter

    for target, images in shards_of(job):
        writer = TFRecordWriter(target)
        for path, label, text in images:
            encoded = read(job, path)
            width, height = Image.open(io.BytesIO(encoded)).size
            writer.write(
                {
                    "image/encoded": (encoded, "byte"),
                    "image/format": (b"JPEG", "byte"),
                    "image/height": (height, "int"),
                    "image/width": (width, "int"),
                    "image/channels": (3, "int"),
                    "image/filename": (path.encode(), "byte"),
                    "image/class/label": (label, "int"),
                    "image/class/text": (text.encode(), "byte"),
                }
            )
        writer.close()


def tfds(job: Job) -> None:
    """TensorFlow Datasets: the writer under its builders, with an image and a class label for features."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import example_serializer, file_adapters, naming
    from tensorflow_datasets.core import writer as writers
    from tensorflow_datasets.core.utils import shard_utils

    texts = sorted({text for _, _, text in job["images"]})
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=texts),
        }
    )
    template = naming.ShardedFileTemplate(
        data_dir=Path(job["folder"]), dataset_name="images", split="train", filetype_suffix="tfrecord"
    )
    writer = writers.Writer(
        example_serializer.ExampleSerializer(features.get_serialized_info()),
        template,
        hash_salt="train",
        disable_shuffling=False,
        example_writer=writers.ExampleWriter(file_adapters.FileFormat.TFRECORD),
        shard_config=shard_utils.ShardConfig(num_shards=job["shards"]),
    )
    for path, _, text in job["images"]:
        example = {"image": io.BytesIO(read(job, path)), "label": text}
        writer.write(path, features.encode_example(example))
    writer.finalize()


def blog_encode_again(job: Job) -> None:
    """Write as articles show: TensorFlow decodes each image and encodes it again into the record."""
    import tensorflow as tf

    def example(path: str, label: int, text: str) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(place_of(job, path)), channels=3)
        return _blog_example(tf.io.encode_jpeg(image).numpy(), image.shape, label, text)

    _write_by_tensorflow(job, example)


def blog_keep_bytes(job: Job) -> None:
    """Write as better articles show: TensorFlow decodes each image for its size and keeps the bytes."""
    import tensorflow as tf

    def example(path: str, label: int, text: str) -> Any:
        encoded = tf.io.read_file(place_of(job, path))
        return _blog_example(encoded.numpy(), tf.io.decode_jpeg(encoded, channels=3).shape, label, text)

    _write_by_tensorflow(job, example)


def imagenet_script(job: Job) -> None:
    """Write in the way of the ImageNet script of the TensorFlow models.

    Four threads write shards of their own. One session decodes every image to get its size and to check it. An example
    has thirteen features.
    """
    from threading import Thread

    import tensorflow as tf

    shape_of = _session_decoder(tf)
    shards = list(shards_of(job))
    errors: list[Exception] = []

    def write(mine: Iterable[Shard]) -> None:
        try:
            for target, images in mine:
                with tf.io.TFRecordWriter(target) as writer:
                    for path, label, text in images:
                        encoded = read(job, path)
                        example = _imagenet_example(path, encoded, shape_of(encoded), label, text)
                        writer.write(example.SerializeToString())
        except Exception as error:  # noqa: BLE001 - a thread's error is raised below
            errors.append(error)

    threads = [Thread(target=write, args=(shards[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


WRITERS = {
    writer.__name__: writer
    for writer in (
        tenfold,
        limit,
        limit_on_disk,
        decoder,
        decoder_and_encoder,
        array_record,
        webdataset,
        mosaicml_streaming,
        tfrecord_package,
        tfds,
        blog_encode_again,
        blog_keep_bytes,
        imagenet_script,
    )
}


def shards_of(job: Job) -> Iterator[Shard]:
    """Yield the path of each shard and its images; their counts differ by one at most."""
    images, shards = job["images"], job["shards"]
    for index in range(shards):
        start, end = (len(images) * edge // shards for edge in (index, index + 1))
        yield f"{job['folder']}/train-{index:05d}-of-{shards:05d}", images[start:end]


def place_of(job: Job, path: str) -> str:
    """The path of an image. It is a string, because a `Path` costs as much as reading a tiny image."""
    return f"{job['root']}/{path}"


def read(job: Job, path: str) -> bytes:
    """Return the bytes of one image."""
    with open(place_of(job, path), "rb") as file:
        return file.read()


def in_memory(job: Job) -> list[bytes]:
    """Return all images, read once in the life of the process: the first, untimed round fills it."""
    if "encoded" not in job:
        job["encoded"] = [read(job, path) for path, _, _ in job["images"]]
    encoded: list[bytes] = job["encoded"]
    return encoded


def _write_by_tensorflow(job: Job, example: Callable[[str, int, str], Any]) -> None:
    import tensorflow as tf

    for target, images in shards_of(job):
        with tf.io.TFRecordWriter(target) as writer:
            for image in images:
                writer.write(example(*image).SerializeToString())


def _blog_example(encoded: Any, shape: Any, label: int, text: str) -> Any:
    height, width, channels = shape
    return _example(
        image=encoded, height=int(height), width=int(width), channels=int(channels), label=label, text=text.encode()
    )


def _imagenet_example(path: str, encoded: Any, shape: Any, label: int, text: str) -> Any:
    height, width, channels = shape
    box: dict[str, list[float]] = {f"image/object/bbox/{side}": [] for side in ("xmin", "ymin", "xmax", "ymax")}
    return _example(
        **box,
        **{
            "image/height": height,
            "image/width": width,
            "image/colorspace": b"RGB",
            "image/channels": channels,
            "image/class/label": label,
            "image/class/synset": text.encode(),
            "image/class/text": text.encode(),
            "image/object/bbox/label": [],
            "image/format": b"JPEG",
            "image/filename": path.rpartition("/")[2].encode(),
            "image/encoded": encoded,
        },
    )


def _example(**features: Any) -> Any:
    import tensorflow as tf

    def feature(value: Any) -> Any:
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))

    return tf.train.Example(
        features=tf.train.Features(feature={key: feature(value) for key, value in features.items()})
    )


def _session_decoder(tf: Any) -> Callable[[bytes], Any]:
    """Return a function from the bytes of a JPEG to the shape of its pixels, by a session as in TensorFlow 1."""
    graph = tf.Graph()
    with graph.as_default():
        encoded = tf.compat.v1.placeholder(tf.string)
        decoded = tf.io.decode_jpeg(encoded, channels=3)
    session = tf.compat.v1.Session(graph=graph)
    return lambda content: session.run(decoded, {encoded: content}).shape
