"""Measure how often the 95% intervals of a model's figures contain the true figure, by simulation.

    make bench-intervals
    python -m benchmarks.intervals [--sets N] [--examples N ...] [--quick] [--json FILE]

Each validation set is drawn from a population whose figures are known: those of very many examples. The models are of
usual quality and too sure of themselves. Some classes are rare, and numbers are skewed. There is also a calibrated
model, and there are rows in groups of ten, whose errors are alike. A sound interval contains the true figure in 95% of
the sets. Of 200 sets, chance allows 90% to 99%.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.machine import say
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.calibration import CalibrationError
from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.multilabel import MultiLabelPredictions
from pipeline.evaluation.one_label import Predictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.table_classes import ClassPredictions

SETS, EXAMPLES = 200, (20, 200, 2000)
POPULATION = 1_000_000
"""The true figures are those of this many examples."""
PER_GROUP = 10
Array = NDArray[Any]
Draw = Callable[[int, np.random.Generator], tuple[Answers, Answers]]
"""Draws a number of examples, and returns the answers of two models to them."""


def main(arguments: list[str] | None = None) -> None:
    """Simulate, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=SETS, help="validation sets of each size")
    parser.add_argument("--examples", type=int, nargs="+", default=EXAMPLES, help="examples of a validation set")
    parser.add_argument("--quick", action="store_true", help="ten small sets, to see that all of it runs")
    parser.add_argument("--json", type=Path, help="also write the figures into a file")
    options = parser.parse_args(arguments)
    sets, sizes, population = options.sets, options.examples, POPULATION
    if options.quick:
        sets, sizes, population = 10, (20, 40), 20_000
    covered: dict[str, list[float]] = {}
    for title, draw in SIMULATED.items():
        truth = dict(figures(*draw(population, np.random.default_rng(1)), is_truth=True))
        for size in sizes:
            say(f"{title}: {sets} sets of {size:,}")
            for name, share in coverage(draw, truth, size, sets).items():
                covered.setdefault(f"{title}: {name}", []).append(share)
    head = ["figure", *(f"{size:,} examples" for size in sizes)]
    print(f"| {' | '.join(head)} |", "|---" * len(head) + "|", sep="\n")
    for name, row in covered.items():
        print(f"| {name} | {' | '.join(f'{share:.1%}' for share in row)} |")
    if options.json:
        options.json.write_text(json.dumps({"sets": sets, "examples": list(sizes), "covered": covered}, indent=1))


def coverage(draw: Draw, truth: dict[str, Estimate], size: int, sets: int) -> dict[str, float]:
    """Return the share of the validation sets whose interval contains the true figure, by the name of the figure."""
    hits: dict[str, list[bool]] = {}
    for number in range(sets):
        for name, found in figures(*draw(size, np.random.default_rng([2, size, number]))):
            assert found.low <= found.value <= found.high, (name, found)
            hits.setdefault(name, []).append(found.low <= truth[name].value <= found.high)
    return {name: float(np.mean(each)) for name, each in hits.items()}


def figures(ours: Answers, theirs: Answers, is_truth: bool = False) -> Iterator[tuple[str, Estimate]]:
    """Yield name and estimate of each figure of a model, and of the difference to another model.

    Of the true figures, only the values are computed.
    """
    blocks = ours.blocks(seed=0)
    for metric in ours.metrics:
        if not is_truth or isinstance(metric.estimator, CalibrationError):
            found = metric.estimator.estimate(ours, blocks)
        else:
            value = metric.estimator.value(ours)
            found = None if value is None else of_value(value)
        if found:
            yield metric.title, found
    difference = of_value(ours.score - theirs.score) if is_truth else ours.difference(theirs, seed=0)
    yield f"difference in {ours.scored_by.title}", difference


def of_value(value: float) -> Estimate:
    """Return an estimate without an interval."""
    return Estimate(value, value, value)


# --- populations ------------------------------------------------------------------------------------------------------


def one_label(count: int, random: np.random.Generator) -> tuple[Answers, Answers]:
    """Draw images of seven classes, of which a model recognizes most and is too sure, and another one fewer."""
    labels = random.choice(7, count, p=[0.4, 0.2, 0.15, 0.1, 0.05, 0.05, 0.05])
    shared = random.normal(size=(count, 7))
    logits = (shared + 0.5 * random.normal(size=(count, 7)) + gain * np.eye(7)[labels] for gain in (2.5, 2.2))
    ours, theirs = (Predictions.of_batch(labels, softmax(1.5 * each)) for each in logits)
    return ours, theirs


def calibrated(count: int, random: np.random.Generator) -> tuple[Answers, Answers]:
    """Draw images whose labels follow the probabilities of a model, and a model that is less sure of them."""
    probabilities = softmax(2 * random.normal(size=(count, 7)))
    labels = (probabilities.cumsum(axis=1) < random.random((count, 1))).sum(axis=1).clip(0, 6)
    others = softmax(np.log(probabilities) + random.normal(size=(count, 7)))
    return Predictions.of_batch(labels, probabilities), Predictions.of_batch(labels, others)


def several_labels(count: int, random: np.random.Generator) -> tuple[Answers, Answers]:
    """Draw images of four labels, the rarest of which a fifth of the images has."""
    labels = random.random((count, 4)) < [0.5, 0.4, 0.3, 0.2]
    shared = random.normal(size=labels.shape)
    logits = (gain * (labels - 0.5) + shared + 0.5 * random.normal(size=labels.shape) for gain in (3.0, 2.5))
    ours, theirs = (MultiLabelPredictions.of_batch(labels, sigmoid(1.5 * each)) for each in logits)
    return ours, theirs


def classes(count: int, random: np.random.Generator) -> tuple[Answers, Answers]:
    """Draw rows of two classes, the second of which 30% of them have."""
    labels = (random.random(count) < 0.3).astype(int)
    shared = random.normal(size=count)
    ours, theirs = (
        binary(labels, 1.5 * (gain * (labels - 0.6) + shared + 0.5 * random.normal(size=count))) for gain in (2.5, 2.0)
    )
    return ours, theirs


def three_classes(count: int, random: np.random.Generator) -> tuple[Answers, Answers]:
    """Draw rows of three classes."""
    labels = random.choice(3, count, p=[0.5, 0.3, 0.2])
    ours, theirs = (
        ClassPredictions.of_batch(labels, softmax(random.normal(size=(count, 3)) + gain * np.eye(3)[labels]))
        for gain in (2.0, 1.5)
    )
    return ours, theirs


def numbers(count: int, random: np.random.Generator) -> tuple[Answers, Answers]:
    """Draw rows whose labels and errors follow a normal distribution."""
    labels, shared = random.normal(size=count), random.normal(size=count)
    ours, theirs = (
        RegressionPredictions.of_batch(labels, labels + 0.4 * shared + share * random.normal(size=count))
        for share in (0.2, 0.3)
    )
    return ours, theirs


def skewed_numbers(count: int, random: np.random.Generator) -> tuple[Answers, Answers]:
    """Draw rows with a skewed label, as prices have, whose errors grow with it and have outliers."""
    labels = random.lognormal(0, 0.5, count)
    shared = random.standard_t(5, count)
    ours, theirs = (
        RegressionPredictions.of_batch(labels, labels * (1 + 0.2 * shared + share * random.normal(size=count)))
        for share in (0.1, 0.2)
    )
    return ours, theirs


def grouped_classes(count: int, random: np.random.Generator) -> tuple[Answers, Answers]:
    """Draw rows of two classes in groups. All rows of a group are easy or hard."""
    labels = (random.random(count) < 0.4).astype(int)
    group, of_group = in_groups(count, random)
    sure = 2.5 + 1.5 * of_group
    ours, theirs = (
        replace(binary(labels, gain * sure * (labels - 0.5) + random.normal(size=count)), group=group)
        for gain in (1.0, 0.8)
    )
    return ours, theirs


def grouped_numbers(count: int, random: np.random.Generator) -> tuple[Answers, Answers]:
    """Draw rows in groups. All labels of a group are shifted, and most of it is not predicted."""
    group, of_group = in_groups(count, random)
    labels = 10 + 2 * random.normal(size=count) + of_group
    ours, theirs = (
        replace(
            RegressionPredictions.of_batch(labels, labels - 0.7 * of_group + share * random.normal(size=count)),
            group=group,
        )
        for share in (0.5, 0.6)
    )
    return ours, theirs


def in_groups(count: int, random: np.random.Generator) -> tuple[Array, Array]:
    """Return the group of each row, and a random number that all rows of a group share."""
    group = np.arange(count, dtype=np.int32) // PER_GROUP
    return group, random.normal(size=group[-1] + 1)[group]


def binary(labels: Array, logits: Array) -> ClassPredictions:
    """Return answers of two classes."""
    second = sigmoid(logits)
    return ClassPredictions.of_batch(labels, np.stack([1 - second, second], axis=1))


def sigmoid(logits: Array) -> Array:
    """Return probabilities of single logits."""
    probabilities: Array = 1 / (1 + np.exp(-logits))
    return probabilities


def softmax(logits: Array) -> Array:
    """Return probabilities of the logits of classes, (n, classes)."""
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Array = scores / scores.sum(axis=1, keepdims=True)
    return probabilities


SIMULATED: dict[str, Draw] = {
    "images, one label": one_label,
    "images, a calibrated model": calibrated,
    "images, several labels": several_labels,
    "table, two classes": classes,
    "table, three classes": three_classes,
    "table, a number": numbers,
    "table, a skewed number": skewed_numbers,
    "table, two classes in groups": grouped_classes,
    "table, a number in groups": grouped_numbers,
}

if __name__ == "__main__":
    main()
