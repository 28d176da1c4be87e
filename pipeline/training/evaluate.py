"""The best model on the test split, or else on the validation split, once the last epoch is over."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.dataset.groups import groups_of_split
from pipeline.errors import Preempted
from pipeline.evaluation import metrics as evaluation
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import figures_in, joined, over_baseline, predictions_class
from pipeline.input import one_ahead
from pipeline.runs.run import find_best_model
from pipeline.system.progress import progress
from pipeline.training.assembly import Training
from pipeline.training.model.models import with_probabilities
from pipeline.training.step.loop import Batch, Features
from pipeline.training.step.micro_batches import concatenated

_log = logging.getLogger(__name__)


def judged_groups(training: Training) -> NDArray[np.int32]:
    """Return the groups of the examples of the evaluation, in their order. Raises what `groups_of_split` does."""
    return groups_of_split(training.dataset_folder, training.dataset, training.dataset.judged_split)


def evaluate(training: Training, batches: tf.data.Dataset, groups: NDArray[np.int32]) -> None:
    """Evaluate the best model on `batches`, and write the predictions and the evaluation into the folder of the run.

    The model of the training gets the best weights: a second model would need memory of its own, and to load a whole
    file, the classes of the user's own model would have to be registered.

    `groups` is what `judged_groups` returns. Raises Preempted if a stop is requested.
    """
    run, dataset = training.run, training.dataset
    # This shares all layers with the trained model, so loading the weights changes that, too.
    best = with_probabilities(training.model, training.task)
    best.load_weights(find_best_model(run))
    of_batches = predicted(
        training.strategy, best, training.on_devices(batches), predictions_class(dataset), training.micro_batches
    )
    parts = []
    split = dataset.judged_split
    with progress("evaluation", dataset.splits[split].examples, dataset.unit) as advance:
        for part in of_batches:
            if training.should_stop_at_step():
                raise Preempted("the training was asked to stop in the evaluation of the best model")
            advance(len(part.label))
            parts.append(part)
    predictions = replace(joined(parts), group=groups)
    judged = evaluation.evaluation_of(predictions, dataset.names, run.settings.seed, split)
    evaluation.save(run.folder, predictions, judged)
    _log.info("best model on the %s split: %s", split, "; ".join(figure.text for figure in figures_in(judged)))
    _log.info("%s", over_baseline(judged))


def predicted(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    batches: Iterable[Batch],
    predictions: type[Answers],
    micro_batches: int = 1,
) -> Iterator[Answers]:
    """Yield the predictions for each batch, in order and without padding. `model` gives predictions, not logits."""

    def of_replica(features: Features) -> tf.Tensor:
        return concatenated(lambda part: model(part, training=False), features, micro_batches, model.outputs[0].dtype)

    def of_batch(features: Features) -> tf.Tensor:
        return strategy.run(of_replica, args=(features,))

    run = tf.function(of_batch, reduce_retracing=True, autograph=False)
    for features, labels, weights in one_ahead(batches):
        # Nothing is reduced over replicas: server 0 evaluates alone, and a collective would wait for the other servers.
        replicas = map(strategy.experimental_local_results, (labels, run(features), weights))
        for part in zip(*replicas, strict=True):
            of_labels, probabilities, of_weights = (tensor.numpy() for tensor in part)
            real = of_weights > 0
            yield predictions.of_batch(of_labels[real], probabilities[real])
