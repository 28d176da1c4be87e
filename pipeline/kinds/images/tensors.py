"""Images in a training: batches, model, and what an exported model takes."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from pipeline.dataset.manifest import Dataset, read_images
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import predictions_class
from pipeline.input import BatchOptions
from pipeline.input.batch_kind import TrainingExamples
from pipeline.input.images import image_reader, image_stages, training_images, validation_images
from pipeline.input.order import ServerSplit
from pipeline.records.format import as_file
from pipeline.storage import Place
from pipeline.training.model.models import ModelOptions, build_model
from pipeline.training.model.task import ONE_LABEL, SeveralLabels, Task
from pipeline.training.model.tensor_kind import EXPORTED_BATCH, TensorKind
from pipeline.training.served.file_pixels import decode_file


class ImageTensors(TensorKind):
    """Images in a training."""

    keeps_decoded = True
    is_augmented = True

    @override
    def training(self, split: ServerSplit) -> TrainingExamples:
        return training_images(split)

    @override
    def stages(self, split: ServerSplit) -> Mapping[str, TrainingExamples]:
        return image_stages(split)

    @override
    def validation(self, split: ServerSplit, records: tf.data.Dataset) -> tf.data.Dataset:
        return validation_images(split, records)

    @override
    def reader(self, dataset: Dataset) -> Callable[[tf.Tensor], object]:
        return image_reader(dataset)

    def task(self, dataset: Dataset) -> Task:
        """Return the task of one label, or of several."""
        return SeveralLabels() if dataset.records.multi_label else ONE_LABEL

    @override
    def build_model(self, options: ModelOptions, dataset: Dataset) -> keras.Model:
        return build_model(options, len(dataset.labels))

    def signature(self, dataset: Dataset) -> Any:
        """Return the spec of `images`, JPEG or PNG files."""
        return tf.TensorSpec([None], tf.string, "images")

    @override
    def features(self, options: BatchOptions, dataset: Dataset, served: tf.Tensor) -> tf.Tensor:
        shape = (options.image_size, options.image_size, 3)

        def image(file: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            content, position = file
            return decode_file(content, position, options.crop, options.image_size)

        # On a GPU, each of the small operations would wait for a copy.
        with tf.device("CPU:0"):
            # One by one, because the files of a request have different sizes.
            files = (served, tf.range(tf.size(served)))
            return tf.map_fn(image, files, fn_output_signature=tf.TensorSpec(shape, tf.uint8))

    def about(self, options: BatchOptions, dataset: Dataset) -> dict[str, Any]:
        """Return size and crop of the images."""
        return {"multi_label": dataset.records.multi_label, "image_size": options.image_size, "crop": options.crop}

    def exported_predictions(
        self, model: Any, about: Mapping[str, Any], folder: Place, dataset: Dataset
    ) -> Iterator[Answers]:
        """Yield the predictions for the stored files. The exported model decodes them itself."""
        predictions, classes = predictions_class(dataset), len(dataset.labels)
        images = read_images(folder, dataset, dataset.judged_split)
        while batch := list(islice(images, EXPORTED_BATCH)):
            served = model.serve(tf.constant([as_file(image) for image in batch]))
            probabilities = with_all_classes(served["probabilities"].numpy(), classes)
            yield predictions.of_batch(predictions.of_ids([image.labels for image in batch], classes), probabilities)


def with_all_classes(probabilities: NDArray[Any], classes: int) -> NDArray[Any]:
    """Return (n, at least `classes`) probabilities: 0 for labels that are newer than the model. Ids never change."""
    return np.pad(probabilities, ((0, 0), (0, max(classes - probabilities.shape[1], 0))))


KIND = ImageTensors()
