"""The exported model: a SavedModel that takes image files, or columns of a table, and runs without this project.

    import tensorflow as tf

    model = tf.saved_model.load("RUN/export")
    answer = model.serve(tf.constant([open("image.jpg", "rb").read()]))
    answer["label"], answer["probability"], answer["probabilities"]

The graph decodes image files to the pixels that the training saw (file_pixels.py), and refuses those that it cannot.
`export` describes what models of several labels and of tables take and return. The file about.json beside the model
describes it.
"""

import shutil
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.automatic import AUTOMATIC, TrainingSettings
from pipeline.dataset.manifest import Dataset
from pipeline.input.exhaustion import is_out_of_files, out_of_files_error
from pipeline.input.options import batch_options
from pipeline.runs.run import ABOUT, EXPORT_FORMAT, TABLE_FACTS
from pipeline.storage import write_json
from pipeline.storage.local import sync_tree
from pipeline.training.model.models import with_probabilities
from pipeline.training.model.tensor_kind import task_of, tensor_kind_of


def export(model: keras.Model, settings: TrainingSettings, dataset: Dataset, folder: Path) -> None:
    """Write `model`, which gives logits, to `folder`, and replace what is there.

    Its endpoint takes `images`, JPEG or PNG files (string, (n,)), which it decodes to the pixels of the training. It
    returns the `probabilities` of all labels (float32, (n, labels)) in the order of about.json. For a dataset with one
    label for each example, it also returns `label` (string, (n,)) and its `probability` (float32, (n,)). For several
    labels, it returns the `labels` over one half (string, (n, the most of an image)), the likeliest first, filled up
    with "".

    For a table, the endpoint takes a dict with the raw values of each column, (n,), or (n, longest list) of a column of
    lists. A missing value, also at the end of a list, is "" or NaN. For this, integers of a column with missing values
    are float64. about.json has the dtypes, and the names of the arguments of the signature `serving_default`, in which
    only ASCII letters, digits and _ stay as they are. For a regression, the endpoint returns the `value` (float64,
    (n,)). table.json holds the schema and the facts of the training rows, with which new rows can be compared.

    Raises:
        FileSystemError: If a disk is full, or too many files are open.
    """
    shutil.rmtree(folder, ignore_errors=True)  # An attempt that was killed may have left a part of it.
    task, kind, options = task_of(dataset), tensor_kind_of(dataset), batch_options(settings)
    served_model = with_probabilities(model, task)
    # A name that is not UTF-8 gets its original bytes back.
    names = tf.constant([name.encode("utf-8", "surrogateescape") for name in dataset.names])

    def serve(served: Any) -> dict[str, tf.Tensor]:
        return task.served(served_model(kind.features(options, dataset, served), training=False), names)

    archive = keras.export.ExportArchive()
    archive.track(served_model)
    # TensorFlow Serving finds it as the default signature, too.
    archive.add_endpoint("serve", serve, [kind.signature(dataset)])
    try:
        archive.write_out(str(folder), verbose=False)
    except tf.errors.ResourceExhaustedError as error:
        raise (out_of_files_error(error) if is_out_of_files(error) else error) from error
    if dataset.table:
        write_json(folder / TABLE_FACTS, dict(dataset.table))
    sync_tree(folder)  # Before `about.json`, which promises the rest.
    about = {
        "format": EXPORT_FORMAT,
        "labels": dataset.names,
        "dataset": dataset.name,
        "dataset_version": dataset.version,
        **kind.about(options, dataset),
        "learned_with": {name: getattr(settings, name) for name in (*AUTOMATIC, "seed")},
    }
    write_json(folder / ABOUT, about, indent=1, synced=True)
