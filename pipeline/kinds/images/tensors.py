"""Images in a training: batches, model, and what an exported model takes."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import keras
import tensorflow as tf

from pipeline.dataset.manifest import Dataset
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import predictions_class
from pipeline.input import BatchOptions
from pipeline.input.batch_kind import TrainingExamples
from pipeline.input.decode import decode_file_for_evaluation
from pipeline.input.images import training_images, validation_images
from pipeline.input.order import ServerSplit
from pipeline.records.format import RecordedImage, as_file, read_image
from pipeline.records.tfrecord import read_records
from pipeline.storage import Place
from pipeline.training.model.models import ModelOptions, build_model
from pipeline.training.model.task import ONE_LABEL, SeveralLabels, Task
from pipeline.training.model.tensor_kind import TensorKind
from pipeline.training.served.answers import BATCH, SPLIT, with_all_classes


class ImageTensors(TensorKind):
    """Images in a training."""

    keeps_decoded = True
    is_augmented = True

    def training(self, split: ServerSplit) -> TrainingExamples:
        """Return the training images."""
        return training_images(split)

    def validation(self, split: ServerSplit, records: tf.data.Dataset) -> tf.data.Dataset:
        """Return batches of the validation images."""
        return validation_images(split, records)

    def task(self, dataset: Dataset) -> Task:
        """Return the task of one label, or of several."""
        return SeveralLabels() if dataset.records.multi_label else ONE_LABEL

    def build_model(self, options: ModelOptions, dataset: Dataset) -> keras.Model:
        """Build a model of images."""
        return build_model(options, len(dataset.labels))

    def signature(self, dataset: Dataset) -> Any:
        """Return the spec of `images`, JPEG or PNG files."""
        return tf.TensorSpec([None], tf.string, "images")

    def features(self, options: BatchOptions, dataset: Dataset, served: tf.Tensor) -> tf.Tensor:
        """Return the decoded images."""
        shape = (options.image_size, options.image_size, 3)

        def image(content: tf.Tensor) -> tf.Tensor:
            return decode_file_for_evaluation(content, options.crop, options.image_size)

        # One by one, because the files of a request have different sizes.
        return tf.map_fn(image, served, fn_output_signature=tf.TensorSpec(shape, tf.uint8))

    def about(self, options: BatchOptions, dataset: Dataset) -> dict[str, Any]:
        """Return size and crop of the images."""
        return {
            "multi_label": dataset.records.multi_label,
            "image_size": options.image_size,
            "crop": options.crop,
        }

    def exported_answers(
        self, model: Any, about: Mapping[str, Any], folder: Place, dataset: Dataset
    ) -> Iterator[Answers]:
        """Yield the answers to the stored files. The exported model decodes them itself."""
        answers = predictions_class(dataset)
        classes = len(dataset.labels)
        for images in _batches(folder, dataset):
            answer = model.serve(tf.constant([as_file(image) for image in images]))
            probabilities = with_all_classes(answer["probabilities"].numpy(), classes)
            yield answers.of_batch(answers.of_ids([image.labels for image in images], classes), probabilities)


def _batches(folder: Place, dataset: Dataset) -> Iterator[list[RecordedImage]]:
    images = (
        read_image(record, dataset.records)
        for shard in dataset.splits[SPLIT].shards
        for record in read_records(folder / shard.name)
    )
    while batch := list(islice(images, BATCH)):
        yield batch


KIND = ImageTensors()
