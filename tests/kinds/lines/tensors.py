"""Lines of text in a training. A model counts the letters of a text."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline.dataset.manifest import Dataset
from pipeline.evaluation.answers import Answers
from pipeline.input import BatchOptions
from pipeline.input.batch_kind import TrainingExamples
from pipeline.input.order import ServerSplit, batch_weights, epoch_records
from pipeline.storage import Place
from pipeline.training.model.models import ModelOptions
from pipeline.training.model.task import ONE_LABEL, Task
from pipeline.training.model.tensor_kind import TensorKind

LETTERS = [chr(letter).encode() for letter in range(ord("a"), ord("z") + 1)]


class TrainingLines:
    """The training lines of a split."""

    def __init__(self, split: ServerSplit) -> None:
        self._split = split

    def epoch(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        return epoch_records(self._split, epoch, order)

    def batches(self, examples: tf.data.Dataset, start: int, numbered: bool) -> tf.data.Dataset:
        def of_step(features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, numbers: tf.Tensor) -> Any:
            added = (tf.zeros_like(weights, tf.bool), numbers) if numbered else ()
            return features, labels, weights, *added

        return batches_of(self._split, examples, start).map(of_step)


def batches_of(split: ServerSplit, examples: tf.data.Dataset, start: int) -> tf.data.Dataset:
    labels = tf.constant([label.encode() for label in split.dataset.labels])

    def parsed(examples: Any, number: tf.Tensor) -> Any:
        numbers, serialized = examples
        texts = {name: tf.io.FixedLenFeature([], tf.string) for name in ("label", "text")}
        found = tf.io.parse_example(serialized, texts)
        ids = tf.argmax(found["label"][:, tf.newaxis] == labels, axis=1, output_type=tf.int32)
        return counts_of(found["text"]), ids, batch_weights(split, number), numbers

    batches = examples.batch(split.options.batch_size, drop_remainder=True)
    return tf.data.Dataset.zip(batches, tf.data.Dataset.range(start, tf.int64.max)).map(parsed)


def counts_of(texts: tf.Tensor) -> tf.Tensor:
    letters = tf.strings.unicode_split(texts, "UTF-8").to_tensor("")
    counts = [tf.math.count_nonzero(letters == letter, axis=1, dtype=tf.int32) for letter in LETTERS]
    return tf.ensure_shape(tf.cast(tf.stack(counts, axis=1), tf.float32), [None, len(LETTERS)])


class Lines(TensorKind):
    """Lines of text."""

    keeps_decoded = False

    def training(self, split: ServerSplit) -> TrainingExamples:
        return TrainingLines(split)

    def stages(self, split: ServerSplit) -> Mapping[str, TrainingExamples]:
        raise NotImplementedError("the stages of lines are not measured")

    def validation(self, split: ServerSplit, records: tf.data.Dataset) -> tf.data.Dataset:
        return batches_of(split, records, 0).map(lambda features, labels, weights, _: (features, labels, weights))

    def reader(self, dataset: Dataset) -> Callable[[tf.Tensor], object]:
        return lambda serialized: tf.io.parse_example(serialized, {"text": tf.io.FixedLenFeature([], tf.string)})

    def task(self, dataset: Dataset) -> Task:
        return ONE_LABEL

    def build_model(self, options: ModelOptions, dataset: Dataset) -> keras.Model:
        inputs = keras.Input([len(LETTERS)])
        return keras.Model(inputs, keras.layers.Dense(len(dataset.labels))(inputs))

    def signature(self, dataset: Dataset) -> Any:
        return tf.TensorSpec([None], tf.string, "texts")

    def features(self, options: BatchOptions, dataset: Dataset, served: tf.Tensor) -> tf.Tensor:
        return counts_of(served)

    def about(self, options: BatchOptions, dataset: Dataset) -> dict[str, Any]:
        return {}

    def exported_predictions(
        self, model: Any, about: Mapping[str, Any], folder: Place, dataset: Dataset
    ) -> Iterator[Answers]:
        raise NotImplementedError("models of lines are not promoted")


KIND = Lines()
