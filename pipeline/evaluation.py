"""How good a model is: figures, and how sure they are, from what is kept of its probabilities. No TensorFlow.

predictions.npz    a row an example, in the order of the shards: two models can be compared on it, pair by pair
evaluation.json    figures with their intervals, classes, confusions, reliability, the most wrong examples
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline import storage
from pipeline.storage import Place

EVALUATION, PREDICTIONS = "evaluation.json", "predictions.npz"
TOP = 5
BINS = 15
"""Of confidence, all of one width."""
RESAMPLES = 1000
INTERVAL_PERCENT = 95
MOST_WRONG = 12
"""Of a bucket, the report copies the whole shard of each."""
_IN_RESULT = {"top5": "val_top5", "calibration_error": "val_calibration_error"}

Array = NDArray[Any]


class Predictions(NamedTuple):
    """What is kept of examples, a row each: all probabilities of many classes would not fit into memory."""

    label: Array
    """int32 of (n,), from 0, as the predicted class."""
    predicted: Array
    probability: Array
    """float32 of (n,), of the predicted class."""
    label_probability: Array
    in_top5: Array

    @property
    def right(self) -> Array:
        """Whether the predicted class is the true one."""
        right: Array = self.predicted == self.label
        return right


class Estimate(NamedTuple):
    """A figure of 0 to 1, and the ends of its interval."""

    value: float
    low: float
    high: float


# --- what is kept -----------------------------------------------------------------------------------------------------


def predictions_of(labels: Array, probabilities: Array) -> Predictions:
    """What is kept of a batch of labels, (n,), and probabilities, (n, classes)."""
    predicted = probabilities.argmax(axis=1)
    return Predictions(
        label=labels.astype(np.int32),
        predicted=predicted.astype(np.int32),
        probability=_of(probabilities, predicted).astype(np.float32),
        label_probability=_of(probabilities, labels).astype(np.float32),
        in_top5=_rank(probabilities, labels) < TOP,
    )


def _of(probabilities: Array, classes: Array) -> Array:
    picked: Array = probabilities[np.arange(len(classes)), classes]
    return picked


def _rank(probabilities: Array, labels: Array) -> Array:
    """How many classes come before the true one; of equal ones the lower id does, as in argmax.

    Else a model that gives all classes the same would have each of them in its top five.
    """
    of_label = _of(probabilities, labels)[:, np.newaxis]
    lower = np.arange(probabilities.shape[1]) < labels[:, np.newaxis]
    rank: Array = ((probabilities > of_label) | ((probabilities == of_label) & lower)).sum(axis=1)
    return rank


def joined(parts: Iterable[Predictions]) -> Predictions:
    """The rows of all parts, one part after another."""
    return Predictions(*map(np.concatenate, zip(*parts, strict=True)))


# --- figures ----------------------------------------------------------------------------------------------------------


def estimates(predictions: Predictions, classes: int, seed: int) -> dict[str, Estimate]:
    """accuracy, top5 (only of more than five classes) and calibration_error, each with its bootstrap interval."""
    statistic, n = _statistic(predictions), len(predictions.label)
    random = np.random.default_rng(seed)
    resampled = [statistic(np.bincount(random.integers(n, size=n), minlength=n)) for _ in range(RESAMPLES)]
    low, high = np.percentile(resampled, (50 - INTERVAL_PERCENT / 2, 50 + INTERVAL_PERCENT / 2), axis=0)
    columns = np.stack([statistic(np.ones(n)), low, high], axis=1).round(6)
    found = dict(zip(("accuracy", "top5", "calibration_error"), columns.tolist(), strict=True))
    return {name: Estimate(*values) for name, values in found.items() if name != "top5" or classes > TOP}


def difference(challenger: Predictions, champion: Predictions, seed: int) -> Estimate:
    """The accuracy of one model less that of another on the same examples, with its bootstrap interval.

    Examples are drawn in pairs, which leaves out what both models find hard. Each counts 1, 0 or -1: to draw how many
    come of each is the same as to draw them, at any number of examples. Raises ValueError where the examples differ.
    """
    if not np.array_equal(challenger.label, champion.label):
        raise ValueError("the two models were evaluated on different examples")
    differences = challenger.right.astype(int) - champion.right.astype(int)
    values, counts = np.unique(differences, return_counts=True)
    n = len(differences)
    resampled = np.random.default_rng(seed).multinomial(n, counts / n, size=RESAMPLES) @ values / n
    low, high = np.percentile(resampled, (50 - INTERVAL_PERCENT / 2, 50 + INTERVAL_PERCENT / 2))
    return Estimate(*(round(float(value), 6) for value in (differences.mean(), low, high)))


def _statistic(predictions: Predictions) -> Callable[[Array], Array]:
    """Accuracy, top-5 accuracy and calibration error of the examples, each taken as often as its weight says."""
    right, in_top5 = predictions.right.astype(float), predictions.in_top5.astype(float)
    # The error is the sum over bins of |right - confidence| of the bin's examples together, over all examples.
    surplus, bins = right - predictions.probability, _bins(predictions)

    def statistic(weights: Array) -> Array:
        gap = np.abs(np.bincount(bins, weights * surplus)).sum()
        return np.array([weights @ right, weights @ in_top5, gap]) / len(bins)

    return statistic


def _bins(predictions: Predictions) -> Array:
    bins: Array = np.minimum((predictions.probability * BINS).astype(int), BINS - 1)  # 1 belongs to the last
    return bins


def reliability(predictions: Predictions) -> list[dict[str, Any]]:
    """Each bin of confidence: its ends, its examples, their mean confidence and accuracy; None of none."""
    bins, edges = _bins(predictions), np.arange(BINS + 1) / BINS
    counts = np.bincount(bins, minlength=BINS)
    sums = [np.bincount(bins, values, BINS) for values in (predictions.probability, predictions.right)]
    confidence, accuracy = (_shares(values, counts) for values in sums)
    low, high = edges[:-1].round(6).tolist(), edges[1:].round(6).tolist()
    return _rows({"low": low, "high": high, "count": counts.tolist(), "confidence": confidence, "accuracy": accuracy})


def per_class(predictions: Predictions, names: Sequence[str]) -> list[dict[str, Any]]:
    """Each class, by id: its name, its examples, precision (None where never predicted), recall (None without any)."""
    classes = len(names)
    count, told = (np.bincount(ids, minlength=classes) for ids in (predictions.label, predictions.predicted))
    right = np.bincount(predictions.label[predictions.right], minlength=classes)
    precision, recall = _shares(right, told), _shares(right, count)
    return _rows({"name": names, "count": count.tolist(), "precision": precision, "recall": recall})


def _shares(parts: Array, wholes: Array) -> list[float | None]:
    return [round(float(part / whole), 6) if whole else None for part, whole in zip(parts, wholes, strict=True)]


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def confusions(predictions: Predictions, classes: int) -> list[list[int]]:
    """[true class, predicted class, examples], ordered; pairs without any are left out, as most are of many classes."""
    pairs, counts = np.unique(predictions.label.astype(np.int64) * classes + predictions.predicted, return_counts=True)
    rows: list[list[int]] = np.stack([pairs // classes, pairs % classes, counts], axis=1).tolist()
    return rows


def most_wrong(predictions: Predictions, most: int = MOST_WRONG) -> list[dict[str, Any]]:
    """The examples that were surest of a wrong class, by their position in the shards."""
    wrong = np.flatnonzero(~predictions.right)
    surest = wrong[np.argsort(-predictions.probability[wrong], kind="stable")[:most]]
    label, predicted = (ids[surest].tolist() for ids in (predictions.label, predictions.predicted))
    probability = predictions.probability[surest].astype(float).round(6).tolist()
    return _rows({"position": surest.tolist(), "label": label, "predicted": predicted, "probability": probability})


# --- files ------------------------------------------------------------------------------------------------------------


def evaluation_of(predictions: Predictions, names: Sequence[str], seed: int) -> dict[str, Any]:
    """The content of `evaluation.json`; `names` are those of the classes, by id."""
    classes = len(names)
    found = estimates(predictions, classes, seed)
    return {
        "examples": len(predictions.label),
        "figures": {name: estimate._asdict() for name, estimate in found.items()},
        "intervals": {"percent": INTERVAL_PERCENT, "resamples": RESAMPLES, "seed": seed},
        "classes": per_class(predictions, names),
        "confusions": confusions(predictions, classes),
        "reliability": reliability(predictions),
        "most_wrong": most_wrong(predictions),
    }


def save(folder: Path, predictions: Predictions, evaluation: dict[str, Any]) -> None:
    """Write `predictions.npz`, then `evaluation.json`, each whole."""
    save_predictions(folder, predictions)
    with storage.write_whole(folder / EVALUATION) as file:
        file.write(json.dumps(evaluation).encode())


def save_predictions(folder: Path, predictions: Predictions) -> None:
    """Write `predictions.npz`, whole."""
    with storage.write_whole(folder / PREDICTIONS) as file:
        np.savez_compressed(file, **predictions._asdict())


def load_predictions(folder: Place) -> Predictions:
    """What `predictions.npz` holds. Raises FileNotFoundError where there is none."""
    with (folder / PREDICTIONS).open("rb") as file, np.load(file) as arrays:
        return Predictions(**{name: arrays[name] for name in Predictions._fields})


def metrics_of(folder: Path) -> dict[str, float]:
    """What `result.json` says of an evaluation. Raises FileNotFoundError where there was none."""
    figures = storage.read_json(folder / EVALUATION)["figures"]
    return {name: figures[figure]["value"] for figure, name in _IN_RESULT.items() if figure in figures}
