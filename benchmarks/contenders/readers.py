"""The input pipelines that are measured, each as a user would write it from the documentation of what it uses.

A pipeline takes a job and returns a function of a number of epochs, whose iterator gives each batch as it arrives; what
outlives an epoch is made once. A job says: `measure` (of MEASURES), `folder` (of the dataset, or of the files of this
reader), `image_size`, `batch_size`, `images` (in an epoch), `epochs` (in a round), and for some more. With the crop
"whole", every pipeline shows whole images, for the check of their pixels. Imports are inside, so that a process pays
for its own pipeline alone.
"""

import atexit
import glob
import hashlib
import io
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.contenders import Job
from benchmarks.contenders.batches import WORKERS, Batch, Batches, part_of
from benchmarks.contenders.rival_readers import RIVALS

Pipeline = Callable[[Job], Batches]

BLOG_SHUFFLE, KERAS_IMAGENET_SHUFFLE, SHUFFLE = 1024, 8192, 1024
MANY = 1_000_000
STEPS = 100


# --- this project -----------------------------------------------------------------------------------------------------


def read_tenfold(job: Job) -> Batches:
    """This project's batches, taken as its training takes them; an epoch is filled up with images of no weight."""
    import numpy as np

    from pipeline.input import BatchOptions, one_ahead, training_batches
    from pipeline.system.malloc import keep_large_blocks

    keep_large_blocks()  # As a training does: otherwise, malloc returns the memory of each batch to the system.
    names = {field.name for field in fields(BatchOptions)}
    options = BatchOptions(**{name: value for name, value in job.items() if name in names})

    @cache  # a training makes it once, too
    def dataset(epochs: int) -> Any:
        return training_batches(Path(job["folder"]), options, epochs=epochs)

    def batches(epochs: int) -> Iterator[Batch]:
        for images, labels, weights in one_ahead(dataset(epochs)):
            yield Batch(int(np.count_nonzero(weights)), images, labels)

    return batches


def read_tenfold_cached(job: Job) -> Batches:
    """Return the same from memory: the first, untimed round fills the cache, and all others go on from there."""
    endless = read_tenfold(job)(MANY)

    def batches(epochs: int) -> Iterator[Batch]:
        wanted = epochs * job["images"]
        while wanted > 0:
            batch = next(endless)
            wanted -= batch.size
            yield batch

    return batches


# --- articles and plain TensorFlow ------------------------------------------------------------------------------------


def read_raw_files(job: Job) -> Batches:
    """Return raw files as the Heartbeat article reads them, which is slower than necessary.

    Python finds the label of one image at a time, under its lock. On the way to the accelerator, float32 takes four
    times as many bytes as uint8.
    """
    import tensorflow as tf

    folder, size = Path(job["folder"]), job["image_size"]
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())

    def image_and_label(path: Any) -> tuple[Any, Any]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        label = tf.py_function(lambda path: classes.index(Path(path.numpy().decode()).parent.name), [path], tf.int32)
        resized = tf.image.resize(image, [size, size])
        return tf.ensure_shape(resized, [size, size, 3]) / 255.0, tf.ensure_shape(label, [])

    images = f"{glob.escape(str(folder))}/*/*"
    return _again(
        tf.data.Dataset.list_files([f"{images}.{suffix}" for suffix in ("jpg", "jpeg", "JPG", "JPEG")])
        .map(image_and_label)
        .batch(job["batch_size"])
        .prefetch(tf.data.AUTOTUNE)
    )


def read_files_in_turn(job: Job) -> Batches:
    """Return raw files as `tenfold compare-inputs` reads them: one after another."""
    return _compared_files(job, parallel=False)


def read_files_in_parallel(job: Job) -> Batches:
    """Return raw files as `tenfold compare-inputs` reads them: with a parallel map and prefetched batches."""
    return _compared_files(job, parallel=True)


def _compared_files(job: Job, parallel: bool) -> Batches:
    import numpy as np

    from pipeline.dataset.manifest import load
    from pipeline.input import BatchOptions, one_ahead
    from pipeline.input.raw_files import raw_batches, raw_files_of
    from pipeline.system.malloc import keep_large_blocks

    keep_large_blocks()
    folder = Path(job["folder"])
    options = BatchOptions(image_size=job["image_size"], batch_size=job["batch_size"], crop=job.get("crop", "random"))
    files = raw_files_of(folder, load(folder), job["source"])

    @cache  # a training makes it once, too
    def dataset(epochs: int) -> Any:
        return raw_batches(files, options, parallel, epochs)

    def batches(epochs: int) -> Iterator[Batch]:
        for images, labels, weights, *_ in one_ahead(dataset(epochs)) if parallel else dataset(epochs):
            yield Batch(int(np.count_nonzero(weights)), images, labels)

    return batches


def read_article_tfrecord(job: Job) -> Batches:
    """Return the article's TFRecord: a serial map, and a shuffle of decoded float32."""
    import tensorflow as tf

    def image_and_label(record: Any) -> tuple[Any, Any]:
        features = _parse(record)
        return _whole_image(features, job["image_size"]) / 255.0, features["image/class/label"]

    return _again(
        tf.data.Dataset.from_tensor_slices(_shards(job))
        .interleave(tf.data.TFRecordDataset)
        .map(image_and_label)
        .shuffle(BLOG_SHUFFLE)
        .batch(job["batch_size"])
        .prefetch(tf.data.AUTOTUNE)
    )


def read_keras_imagenet(job: Job) -> Batches:
    """keras_imagenet by its documented behavior: inception-style crops, float32 from -1 to 1."""
    import tensorflow as tf

    def image_and_label(record: Any) -> tuple[Any, Any]:
        features = _parse(record)
        crop = _whole_image if job.get("crop") == "whole" else _inception_crop
        image = tf.image.random_flip_left_right(crop(features, job["image_size"]))
        return image / 127.5 - 1.0, features["image/class/label"]

    return _again(
        tf.data.Dataset.from_tensor_slices(_shards(job))
        .shuffle(len(_shards(job)))
        .interleave(tf.data.TFRecordDataset, cycle_length=4)
        .shuffle(KERAS_IMAGENET_SHUFFLE)
        .map(image_and_label, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(job["batch_size"])
        .prefetch(tf.data.AUTOTUNE)
    )


def read_tfdata_whole(job: Job) -> Batches:
    """Return the best of plain tf.data that sees the whole image."""
    return _best_tfdata(job, _whole_image)


def read_tfdata_crop(job: Job) -> Batches:
    """Return the best of plain tf.data with a random-resized crop, cut out while decoding by the stored size."""
    resize = {"method": job.get("method", "bilinear"), "antialias": job.get("antialias", False)}
    decode = partial(_random_resized_crop, resize=resize)
    return _best_tfdata(job, _whole_image if job.get("crop") == "whole" else decode)


def read_tfds(job: Job) -> Batches:
    """TensorFlow Datasets on this project's shards, as they are published: it decodes, the user resizes."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def resized(example: Any) -> tuple[Any, Any]:
        image = tf.image.resize(example["image"]["encoded"], [job["image_size"]] * 2)
        return _to_uint8(image), example["image"]["class"]["label"]

    return _again(
        tfds.builder_from_directory(job["folder"])
        .as_dataset(split="train", shuffle_files=True)
        .shuffle(SHUFFLE)
        .map(resized, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(job["batch_size"])
        .prefetch(tf.data.AUTOTUNE)
    )


def _best_tfdata(job: Job, decode: Callable[[Any, int], Any]) -> Batches:
    import tensorflow as tf

    def image_and_label(record: Any) -> tuple[Any, Any]:
        features = _parse(record)
        return _to_uint8(decode(features, job["image_size"])), features["image/class/label"]

    return _again(
        tf.data.Dataset.from_tensor_slices(_shards(job))
        .shuffle(len(_shards(job)))
        .interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .shuffle(SHUFFLE)
        .map(image_and_label, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .batch(job["batch_size"])
        .prefetch(tf.data.AUTOTUNE)
    )


def _again(dataset: Any) -> Batches:
    """Return the epochs of a dataset of TensorFlow."""
    # The end of an iterator may wait for TensorFlow's autotuning, nearly as long as it lived. That is no reading.
    ended: list[Any] = []

    def batches(epochs: int) -> Iterator[Batch]:
        for _ in range(epochs):
            iterator = iter(dataset)
            ended.append(iterator)
            for images, labels in iterator:
                yield Batch(images.shape[0], images, labels)

    return batches


def _shards(job: Job) -> list[str]:
    return sorted(str(path) for path in Path(job["folder"]).glob("train-*.tfrecord"))


def _parse(record: Any) -> Any:
    import tensorflow as tf

    number = tf.io.FixedLenFeature([], tf.int64)
    numbers = dict.fromkeys(("image/height", "image/width", "image/class/label"), number)
    return tf.io.parse_single_example(record, {"image/encoded": tf.io.FixedLenFeature([], tf.string)} | numbers)


def _to_uint8(image: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tf.round(image), tf.uint8)


def _whole_image(features: Any, size: int) -> Any:
    import tensorflow as tf

    return tf.image.resize(tf.io.decode_jpeg(features["image/encoded"], channels=3), [size, size])


def _random_resized_crop(features: Any, size: int, resize: Mapping[str, Any]) -> Any:
    """Return a random part of the image, 8 to 100% of its area, and in half of the cases its mirror image.

    `resize` holds the options of `tf.image.resize`.
    """
    import tensorflow as tf

    sides = tf.cast(tf.stack([features["image/height"], features["image/width"]]), tf.float32)
    area = tf.random.uniform([], 0.08, 1.0) * tf.reduce_prod(sides)
    ratio = tf.exp(tf.random.uniform([], tf.math.log(3 / 4), tf.math.log(4 / 3)))
    # Cut to the image, where others draw again: nothing here depends on a condition.
    crop = tf.minimum(tf.sqrt(area * tf.stack([1 / ratio, ratio])), sides)
    corner = tf.random.uniform([2]) * (sides - crop)
    window = tf.cast(tf.concat([corner, tf.maximum(crop, 1.0)], 0), tf.int32)
    image = tf.io.decode_and_crop_jpeg(features["image/encoded"], window, channels=3)
    return tf.image.random_flip_left_right(tf.image.resize(image, [size, size], **resize))


def _inception_crop(features: Any, size: int) -> Any:
    import tensorflow as tf

    encoded = features["image/encoded"]
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        bounding_boxes=tf.zeros([1, 0, 4]),
        min_object_covered=0.1,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], extent[:2]], 0), channels=3)
    return tf.image.resize(image, [size, size])


# --- packages of others: random-resized crops and flips by Pillow, decoded by Pillow or simplejpeg --------------------


class Files:
    """Images as PyTorch takes them: by number."""

    def __init__(self, paths: Sequence[Path], load: Callable[[bytes], Any]) -> None:
        self._paths, self._load = paths, load
        self._classes = sorted({path.parent.name for path in paths})

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path = self._paths[index]
        return self._load(path.read_bytes()), self._classes.index(path.parent.name)


def read_pytorch(job: Job) -> Batches:
    """PyTorch's DataLoader over JPEG files."""
    files = Files(sorted(Path(job["folder"]).glob("*/*.jpg")), _loader(job))
    return _of_pytorch(job, files, shuffle=True, batch_size=job["batch_size"])


def read_webdataset(job: Job) -> Batches:
    """WebDataset's tar files; its workers make the batches."""
    import webdataset

    load = _loader(job)
    samples = (
        webdataset.WebDataset(sorted(map(str, Path(job["folder"]).glob("*.tar"))), shardshuffle=100)
        .shuffle(SHUFFLE)
        .to_tuple("jpg", "cls")
        .map_tuple(load, int)
        .batched(job["batch_size"])
    )
    return _of_pytorch(job, samples, batch_size=None)


def read_mosaicml(job: Job) -> Batches:
    """MosaicML Streaming's MDS shards on this disk."""
    from streaming import StreamingDataset

    load = _loader(job)

    class Samples(StreamingDataset):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            sample = super().__getitem__(index)
            return load(sample["image"]), sample["label"]

    # In a folder name of its own: two datasets of one name refuse each other, also in other processes.
    samples = Samples(local=_linked(job), shuffle=True, batch_size=job["batch_size"])
    return _of_pytorch(job, samples, batch_size=job["batch_size"])


def read_grain(job: Job) -> Batches:
    """Grain over ArrayRecord, in threads."""
    import grain

    options = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=2 * job["batch_size"])
    samples = _grain_samples(job)

    def batches(epochs: int) -> Iterator[Batch]:
        for images, labels in samples.repeat(epochs).to_iter_dataset(options).batch(job["batch_size"]):
            yield Batch(len(images), images, labels)

    return batches


def read_grain_processes(job: Job) -> Batches:
    """Grain over ArrayRecord, in worker processes that make whole batches and stay alive between rounds."""
    import grain

    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2)
    # One read thread in each process: more would compete for its core.
    read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=job["batch_size"])
    # Drop no images: each worker ends each epoch of its half with an incomplete batch.
    # The processes do not wait for each other at the end of an epoch, so its last batches may hold images of the next
    # one. The check that every image comes once reads one epoch.
    epochs = 1 if job.get("crop") == "whole" else MANY
    samples = _grain_samples(job).repeat(epochs).to_iter_dataset(read).batch(job["batch_size"]).mp_prefetch(options)
    endless = iter(samples)

    def signal_workers(number: int) -> None:
        for process in multiprocessing.active_children():
            if process.pid:
                os.kill(process.pid, number)

    atexit.register(signal_workers, signal.SIGCONT)  # A stopped process does not end.

    def batches(epochs: int) -> Iterator[Batch]:
        signal_workers(signal.SIGCONT)
        wanted = epochs * job["images"]
        while wanted > 0:
            images, labels = next(endless)
            count = min(len(images), wanted)  # a batch may reach into the next epoch
            wanted -= count
            yield Batch(count, images, labels)
        # Otherwise, the processes would fill their buffers between the rounds, beside the reader that comes next.
        signal_workers(signal.SIGSTOP)

    return batches


def _grain_samples(job: Job) -> Any:
    import grain

    load = _loader(job)

    def image_and_label(record: Any) -> tuple[Any, Any]:
        label, _, encoded = record.partition(b"\n")
        return load(encoded), int(label)

    source = grain.sources.ArrayRecordDataSource(sorted(map(str, Path(job["folder"]).glob("train-*"))))
    return grain.MapDataset.source(source).seed(0).shuffle().map(image_and_label)


def _of_pytorch(job: Job, samples: Any, **loading: Any) -> Batches:
    """Return the epochs of PyTorch's loader; its workers stay from one to the next."""
    from torch.utils.data import DataLoader

    loader = DataLoader(samples, num_workers=WORKERS, persistent_workers=True, **loading)

    def batches(epochs: int) -> Iterator[Batch]:
        for _ in range(epochs):
            for images, labels in loader:
                yield Batch(len(images), images, labels)

    return batches


def _linked(job: Job) -> str:
    folder = Path(job["folder"])
    mine = Path(job["own_folder"])
    mine.mkdir(parents=True)
    for path in folder.iterdir():
        os.link(path, mine / path.name)
    return str(mine)


def _loader(job: Job) -> Callable[[bytes], Any]:
    by = {"pillow": _by_pillow, "simplejpeg": _by_simplejpeg}[job["decoder"]]
    return partial(by, size=job["image_size"], crop=job.get("crop", "random_resized"))


def _by_pillow(encoded: Any, size: int, crop: str) -> Any:
    from PIL import Image

    image = Image.open(io.BytesIO(encoded))
    return _resized(image if image.mode == "RGB" else image.convert("RGB"), part_of(*image.size, crop), size)


def _by_simplejpeg(encoded: Any, size: int, crop: str) -> Any:
    import numpy as np
    import simplejpeg
    from PIL import Image

    pixels = simplejpeg.decode_jpeg(encoded)
    left, top, right, bottom = part_of(pixels.shape[1], pixels.shape[0], crop)
    # Cut out first: Pillow copies what it is given.
    image = Image.fromarray(np.ascontiguousarray(pixels[top:bottom, left:right]))
    return _resized(image, (0, 0, *image.size), size)


def _resized(image: Any, box: tuple[int, int, int, int], size: int) -> Any:
    import numpy as np
    from PIL import Image

    small = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.array(small.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else small)


# --- the limits -------------------------------------------------------------------------------------------------------


def limit_of_decoding(job: Job) -> Batches:
    """Nothing but libjpeg-turbo, on bytes in memory; a process a core."""
    import simplejpeg

    encoded = [image.encoded for image in _recorded(job)]

    def images(epochs: int) -> Iterator[Batch]:
        for _ in range(epochs):
            for each in encoded:
                simplejpeg.decode_jpeg(each)
                yield Batch(1)

    return images


def limit_of_copying(job: Job) -> Batches:
    """Nothing but the middle of each image of pixels in memory, copied into a batch; a process a core."""
    import numpy as np

    size = job["image_size"]
    images = [np.frombuffer(each.encoded, np.uint8).reshape(each.height, each.width, 3) for each in _recorded(job)]
    large = [image for image in images if min(image.shape[:2]) >= size]
    middles = [image[(image.shape[0] - size) // 2 :, (image.shape[1] - size) // 2 :][:size, :size] for image in large]
    middles = list(islice(cycle(middles), len(images)))  # In place of images that are too small.

    batch = np.empty((job["batch_size"], size, size, 3), np.uint8)  # a new one each time would cost as much again

    def batches(epochs: int) -> Iterator[Batch]:
        for _ in range(epochs):
            for start in range(0, len(middles), len(batch)):
                taken = middles[start : start + len(batch)]
                np.stack(taken, out=batch[: len(taken)])
                yield Batch(len(taken))

    return batches


def _recorded(job: Job) -> list[Any]:
    """Return the images of some shards."""
    from pipeline.records.format import RecordFormat, read_image
    from pipeline.records.tfrecord import read_records

    form = RecordFormat(pixels=job["pixels"])
    return [read_image(record, form) for name in job["shards"] for record in read_records(Path(job["folder"], name))]


# --- what is measured -------------------------------------------------------------------------------------------------


def whole_epochs(pipeline: Pipeline, job: Job) -> None:
    """Take every batch of the epochs of a round; timed from outside."""
    if "opened" not in job:
        job["opened"] = pipeline(job)
    _require(sum(batch.size for batch in job["opened"](job["epochs"])), job["images"] * job["epochs"])


def first_batch(pipeline: Pipeline, job: Job) -> float:
    """Return seconds from the call to the first batch; TensorFlow and this project's reader are imported before."""
    import_module("pipeline.input")
    begin = time.perf_counter()
    next(iter(pipeline(job)(1)))
    return time.perf_counter() - begin


def waiting(pipeline: Pipeline, job: Job) -> float:
    """Share of the time that a training waits for batches, whose step takes `step_s` and nothing of this machine."""
    batches = pipeline(job)(job["epochs"])
    next(batches)  # how long the first one takes is measured on its own
    waited, step_s = 0.0, float(job["step_s"])
    for _ in range(STEPS):
        time.sleep(step_s)
        begin = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - begin
    return waited / (waited + STEPS * step_s)


def memory(pipeline: Pipeline, job: Job) -> list[float]:
    """Resident MB after each of some numbers of epochs."""
    import psutil

    batches = pipeline(job)(max(job["after_epochs"]))
    found: list[float] = []
    done = 0
    for epochs in job["after_epochs"]:
        while done < epochs * job["images"]:
            done += next(batches).size
        found.append(psutil.Process().memory_info().rss / 1e6)
    _require(done + sum(batch.size for batch in batches), max(job["after_epochs"]) * job["images"])
    return found


def pixels(pipeline: Pipeline, job: Job) -> dict[str, Any]:
    """Count the images and the labels of one epoch, and the mean of its pixels, from 0 to 255."""
    import numpy as np

    low, high = job["pixel_range"]
    total, images, labels = 0.0, 0, Counter[int]()
    distinct: set[bytes] = set()
    for batch in pipeline(job)(1):
        taken = np.asarray(batch.images)[: batch.size]
        images += batch.size
        labels.update(np.asarray(batch.labels).ravel()[: batch.size].tolist())
        total += float(taken.mean(dtype=np.float64, axis=tuple(range(1, taken.ndim))).sum())
        distinct.update(hashlib.blake2b(each.tobytes(), digest_size=12).digest() for each in taken)
    mean = (total / max(images, 1) - low) / (high - low) * 255
    return {"images": images, "mean": mean, "distinct": len(distinct), "labels": sorted(labels.values())}


MEASURES: dict[str, Callable[[Pipeline, Job], Any]] = {
    measure.__name__: measure for measure in (whole_epochs, first_batch, waiting, memory, pixels)
}


def _require(count: int, wanted: int) -> None:
    if count != wanted:
        raise ValueError(f"gave {count} of {wanted} images")


def _measured(pipeline: Pipeline, job: Job) -> Any:
    return MEASURES[job["measure"]](pipeline, job)


READERS = {
    pipeline.__name__: partial(_measured, pipeline)
    for pipeline in (
        read_tenfold,
        read_tenfold_cached,
        read_raw_files,
        read_files_in_turn,
        read_files_in_parallel,
        read_article_tfrecord,
        read_keras_imagenet,
        read_tfdata_whole,
        read_tfdata_crop,
        read_tfds,
        read_pytorch,
        read_webdataset,
        read_mosaicml,
        read_grain,
        read_grain_processes,
        limit_of_decoding,
        limit_of_copying,
        *RIVALS,
    )
}
