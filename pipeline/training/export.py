"""The exported model: a SavedModel that takes image files, and runs without this project.

    import tensorflow as tf

    model = tf.saved_model.load("RUN/export")
    answer = model.serve(tf.constant([open("image.jpg", "rb").read()]))
    answer["label"], answer["probability"], answer["probabilities"]

If an image may have several labels, answer["labels"] has those of each image. The file about.json beside the model
describes it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline.config import Settings
from pipeline.dataset.manifest import Dataset
from pipeline.input.decode import decode_file_for_evaluation
from pipeline.runs.run import ABOUT
from pipeline.storage import write_whole
from pipeline.storage.local import sync_tree
from pipeline.training.task import task_of

ENDPOINT = "serve"
"""Name of the endpoint. TensorFlow Serving finds it as the default signature, too."""


def export(model: keras.Model, settings: Settings, dataset: Dataset, folder: Path) -> None:
    """Write `model`, which gives probabilities, to `folder`, and replace what is there.

    Its endpoint takes `images`, JPEG or PNG files (string, (n,)). It returns the `probabilities` of all labels
    (float32, (n, labels)) in the order of about.json. For a dataset with one label for each image, it also returns
    `label` (string, (n,)) and its `probability` (float32, (n,)). For several labels, it returns the `labels` over one
    half (string, (n, the most of an image)), the likeliest first, filled up with "".
    """
    shutil.rmtree(folder, ignore_errors=True)  # An attempt that was killed may have left a part of it.
    _archive(model, settings, dataset).write_out(str(folder), verbose=False)
    sync_tree(folder)  # Before `about.json`, which promises the rest.
    about = {
        "labels": dataset.names,
        "multi_label": dataset.records.multi_label,
        "dataset": dataset.name,
        "dataset_version": dataset.version,
        "model": settings.model,
        "image_size": settings.image_size,
        "crop": settings.crop,
        "learned_with": {name: getattr(settings, name) for name in ("epochs", "batch_size", "learning_rate", "seed")},
    }
    with write_whole(folder / ABOUT, synced=True) as file:
        file.write(json.dumps(about, indent=1).encode())


def _archive(model: keras.Model, settings: Settings, dataset: Dataset) -> Any:
    # A name that is not UTF-8 gets its original bytes back.
    names = tf.constant([name.encode("utf-8", "surrogateescape") for name in dataset.names])
    task = task_of(dataset.records)

    def image(content: tf.Tensor) -> tf.Tensor:
        return decode_file_for_evaluation(content, settings.crop, settings.image_size)

    def serve(images: tf.Tensor) -> dict[str, tf.Tensor]:
        shape = (settings.image_size, settings.image_size, 3)
        # One by one, because the files of a request have different sizes.
        decoded = tf.map_fn(image, images, fn_output_signature=tf.TensorSpec(shape, tf.uint8))
        probabilities = model(decoded, training=False)
        return {**task.served(probabilities, names), "probabilities": probabilities}

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(ENDPOINT, serve, [tf.TensorSpec([None], tf.string, "images")])
    return archive
