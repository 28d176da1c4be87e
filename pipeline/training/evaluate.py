"""The best model on the validation split, once the last epoch is over."""

import logging
from collections.abc import Callable, Iterable, Iterator

import keras
import tensorflow as tf

from pipeline.dataset.manifest import Dataset
from pipeline.errors import Preempted
from pipeline.evaluation import metrics as evaluation
from pipeline.evaluation.metrics import Answers, joined, kept_of
from pipeline.input import one_ahead
from pipeline.runs.run import Run, best_model
from pipeline.system.progress import progress
from pipeline.training.loop import Batch
from pipeline.training.microbatches import joined as in_parts
from pipeline.training.models import with_probabilities
from pipeline.training.task import task_of

_log = logging.getLogger(__name__)


def evaluate(
    run: Run,
    dataset: Dataset,
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    batches: Iterable[Batch],
    stopping: Callable[[], bool],
    parts: int = 1,
) -> None:
    """Evaluate the best model of a run and write what came of it into its folder.

    Its weights are read into `model`, which gives logits: a second model would want a second one's memory, and a file
    that is loaded as a whole the user's own classes registered. `batches` are those of `validation_batches`, as
    `strategy` distributes them; each device takes them in so many `parts`. Raises Preempted where `stopping` says so.
    """
    best = with_probabilities(model, task_of(dataset.records))
    best.load_weights(best_model(run))
    with progress("evaluation", dataset.splits["validation"].examples) as advance:
        found = []
        for answers in predicted(strategy, best, batches, kept_of(dataset.records), parts):
            if stopping():
                raise Preempted("asked to stop in the evaluation of the best model")
            advance(len(answers.label))
            found.append(answers)
    predictions = joined(found)
    judged = evaluation.evaluation_of(predictions, dataset.names, run.settings.seed)
    evaluation.save(run.folder, predictions, judged)
    _say(judged["figures"])


def predicted(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    batches: Iterable[Batch],
    kept: type[Answers],
    parts: int = 1,
) -> Iterator[Answers]:
    """What is kept of each batch, in order and without its padding; `model` gives probabilities."""

    def of_replica(images: tf.Tensor) -> tf.Tensor:
        return in_parts(lambda part: model(part, training=False), images, parts)

    run = tf.function(lambda images: strategy.run(of_replica, args=(images,)), reduce_retracing=True)
    for images, labels, weights in one_ahead(batches):
        replicas = map(strategy.experimental_local_results, (labels, run(images), weights))
        for part in zip(*replicas, strict=True):
            of_labels, probabilities, of_weights = (tensor.numpy() for tensor in part)
            real = of_weights > 0
            yield kept.of_batch(of_labels[real], probabilities[real])


def _say(figures: dict[str, dict[str, float]]) -> None:
    words = (
        f"{name.replace('_', ' ')} {figure['value']:.1%} ({figure['low']:.1%} to {figure['high']:.1%})"
        for name, figure in figures.items()
    )
    _log.info("best model: %s", ", ".join(words))
