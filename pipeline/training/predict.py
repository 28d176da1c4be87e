"""What a trained model says of images: `python -m pipeline predict`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipeline.evaluation.multilabel import THRESHOLD
from pipeline.images.examine import Rules, examine
from pipeline.images.rejection import Rejection
from pipeline.runs.run import ABOUT, exported_model
from pipeline.storage import Place, read_json
from pipeline.system.os_errors import retried
from pipeline.training.exported import loaded

MOST_LIKELY = 3
"""Labels that are named with their probability."""

Ranked = Sequence[tuple[float, str]]
"""Probabilities of labels, the likeliest first."""
Answer = Callable[[Ranked], dict[str, Any]]


def predict(model: Place, files: Sequence[Path]) -> list[dict[str, Any]]:
    """What the exported `model`, or that of a run, says of image files of any format that training takes.

    Returns for each {"file", "label", "probability", "likely"}, the most likely labels as a list of {"label",
    "probability"}; of a model of several labels an image {"file", "labels", "likely"}, `labels` those over one half; or
    {"file", "rejected"} with the reason. Raises SourceError where there is no model.
    """
    folder = exported_model(model)
    about = read_json(folder / ABOUT)
    answer = _several if about.get("multi_label") else _one  # a model from before there was another kind has one
    with loaded(folder) as exported:  # held on to: its endpoint alone would lose the weights
        return [_predicted(exported, about["labels"], answer, file) for file in files]


def _predicted(exported: Any, names: Sequence[str], answer: Answer, file: Path) -> dict[str, Any]:
    # Turned upright and made RGB by what does so with the images of training: TensorFlow would show it a foreign view.
    try:
        image = examine(retried(file.read_bytes, file), Rules())
    except OSError as error:  # not there, a folder: the others are answered nevertheless
        image = Rejection(f"cannot be read: {error.strerror}")
    if isinstance(image, Rejection):
        return {"file": str(file), "rejected": image.reason}
    [probabilities] = exported.serve(tf.constant([image.encoded]))["probabilities"].numpy().tolist()
    ranked = sorted(zip(probabilities, names, strict=True), reverse=True)
    return {"file": str(file), **answer(ranked), "likely": _named(ranked[:MOST_LIKELY])}


def _one(ranked: Ranked) -> dict[str, Any]:
    return _named(ranked[:1])[0]


def _several(ranked: Ranked) -> dict[str, Any]:
    return {"labels": _named([each for each in ranked if each[0] > THRESHOLD])}


def _named(ranked: Ranked) -> list[dict[str, Any]]:
    return [{"label": name, "probability": round(probability, 4)} for probability, name in ranked]


def in_words(result: Mapping[str, Any]) -> str:
    """The predictions, a line each."""
    width = max(len(each["file"]) for each in result["predictions"])
    return "\n".join(f"{each['file']:<{width}}  {_words(each)}" for each in result["predictions"])


def _words(prediction: Mapping[str, Any]) -> str:
    if "rejected" in prediction:
        return f"no image that can be used: {prediction['rejected']}"
    if "labels" in prediction:
        return _listed(prediction["labels"]) or f"no label over {THRESHOLD:.0%}: {_listed(prediction['likely'])}"
    return _listed(prediction["likely"])


def _listed(labels: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['label']} {each['probability']:.1%}" for each in labels)
