"""Predictions of a trained model for image files: `python -m pipeline predict`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipeline.errors import SourceError
from pipeline.evaluation.multilabel import THRESHOLD
from pipeline.images.examine import Rules, examine
from pipeline.images.rejection import Rejection
from pipeline.runs.run import ABOUT, find_exported_model
from pipeline.storage import Place, read_json
from pipeline.system.os_errors import retried
from pipeline.training.exported import loaded

MAX_LIKELY_LABELS = 3
"""How many labels are listed with their probability."""

Ranked = Sequence[tuple[float, str]]
"""Labels with their probabilities, the likeliest first."""


def predict(model: Place, files: Sequence[Path]) -> list[dict[str, Any]]:
    """Predict the labels of image files of any format that training takes.

    Args:
        model: Folder of an exported model, or of its run.
        files: The image files.

    Returns:
        For each file {"file", "label", "probability", "likely"}, where `likely` lists the most likely labels as
        {"label", "probability"}. For a model of several labels {"file", "labels", "likely"}, where `labels` lists those
        over one half. For a file that cannot be used {"file", "rejected"} with the reason.

    Raises:
        SourceError: If there is no model, or it is one of a table.
    """
    folder = find_exported_model(model)
    about = read_json(folder / ABOUT)
    if "columns" in about:
        raise SourceError(
            f"{folder} holds a model of a table, which takes no image files: load it with tf.saved_model.load and call "
            "`serve`, see pipeline/training/export.py"
        )
    multi_label = about.get("multi_label", False)  # An older model does not say, and gives one label.
    with loaded(folder) as exported:  # The model must live: its endpoint alone would lose the weights.
        return [_predicted(exported, file, names=about["labels"], multi_label=multi_label) for file in files]


def _predicted(exported: Any, file: Path, *, names: Sequence[str], multi_label: bool) -> dict[str, Any]:
    # The code that prepares images for training turns them upright and converts them to RGB. TensorFlow would not.
    try:
        image = examine(retried(file.read_bytes, file), Rules())
    except OSError as error:  # Missing, or a folder. The other files still get an answer.
        image = Rejection(f"cannot be read: {error.strerror}")
    if isinstance(image, Rejection):
        return {"file": str(file), "rejected": image.reason}
    [probabilities] = exported.serve(tf.constant([image.encoded]))["probabilities"].numpy().tolist()
    ranked = sorted(zip(probabilities, names, strict=True), reverse=True)
    if multi_label:
        answer: dict[str, Any] = {"labels": _named([each for each in ranked if each[0] > THRESHOLD])}
    else:
        answer = _named(ranked[:1])[0]
    return {"file": str(file), **answer, "likely": _named(ranked[:MAX_LIKELY_LABELS])}


def _named(ranked: Ranked) -> list[dict[str, Any]]:
    return [{"label": name, "probability": round(probability, 4)} for probability, name in ranked]


def format_predictions(result: Mapping[str, Any]) -> str:
    """Return the predictions as text, one line for each file."""
    width = max(len(each["file"]) for each in result["predictions"])
    return "\n".join(f"{each['file']:<{width}}  {_words(each)}" for each in result["predictions"])


def _words(prediction: Mapping[str, Any]) -> str:
    if "rejected" in prediction:
        return f"not a usable image: {prediction['rejected']}"
    if "labels" in prediction:
        return _listed(prediction["labels"]) or (
            f"no label above {THRESHOLD:.0%}. The most probable are {_listed(prediction['likely'])}"
        )
    return _listed(prediction["likely"])


def _listed(labels: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['label']} {each['probability']:.1%}" for each in labels)
