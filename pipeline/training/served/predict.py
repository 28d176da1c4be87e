"""Predictions of a trained model for image files, or for the rows of tables: `python -m pipeline predict`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from pipeline.config.settings import Settings
from pipeline.evaluation.multilabel import THRESHOLD
from pipeline.evaluation.scales import four_digits
from pipeline.gate.new_rows import NewRows
from pipeline.images.examine import Rules, examine
from pipeline.images.rejection import Rejection
from pipeline.runs.run import find_exported_model, load_about
from pipeline.storage import Place
from pipeline.system.os_errors import retried
from pipeline.tables.served_rows import read_rows, schema_of_model
from pipeline.training.served.exported import loaded

MAX_LIKELY_LABELS = 3
"""How many labels are listed with their probability."""


def predict(
    model: Place, files: Sequence[Path], new_rows: NewRows | None = None, settings: Settings | None = None
) -> list[dict[str, Any]]:
    """Return all predictions of `each_prediction`. Those of a million rows take hundreds of megabytes."""
    return list(each_prediction(model, files, new_rows, settings))


def each_prediction(
    model: Place, files: Sequence[Path], new_rows: NewRows | None = None, settings: Settings | None = None
) -> Iterator[dict[str, Any]]:
    """Predict the labels of image files of any format that training takes, or of the rows of tables.

    Args:
        model: Folder of an exported model, or of its run.
        files: The image files. For a model of a table: table files of any format that training takes, or folders of
            them.
        new_rows: Gets the rows of tables, to compare them with the table of the model.
        settings: How CSV files are written, and how large images may be, if a person set it. Otherwise, CSV files are
            like those of the training, and images have the usual limit.

    Yields:
        For each file {"file", "label", "probability", "likely"}, where `likely` lists the most likely labels as
        {"label", "probability"}. For a model of several labels {"file", "labels", "likely"}, where `labels` lists those
        over one half. For a file that cannot be used {"file", "rejected"} with the reason.

        For a table, the same for each row, which has a "row", too. The header of a CSV file is row 1. Of other files,
        row 1 is the first one. A model of a regression gives {"file", "row", "value"}.

    Raises:
        SourceError: If there is no model, or a table cannot be read or lacks a column of the model.
    """
    folder = find_exported_model(model)
    about = load_about(folder)
    with loaded(folder) as exported:  # The model must live: its endpoint alone would lose the weights.
        if "columns" in about:
            for file in files:
                yield from predict_rows(exported, about, file, new_rows, settings)
            return
        rules = Rules(max_pixels=int(settings.max_megapixels * 1e6)) if settings else Rules()
        for file in files:
            yield _predicted(exported, about, file, rules)


def _predicted(exported: Any, about: Mapping[str, Any], file: Path, rules: Rules) -> dict[str, Any]:
    if file.is_dir():  # To read it would count as a failure of the file system.
        return {"file": str(file), "rejected": f"a folder: name the images in it, such as {file}/*"}
    # The code that prepares images for training reads all formats. The exported model reads JPEG and PNG alone.
    try:
        image = examine(retried(file.read_bytes, file), rules, key=file.name)
    except OSError as error:  # The other files still get an answer.
        image = Rejection(f"cannot be read: {error.strerror}")
    if isinstance(image, Rejection):
        return {"file": str(file), "rejected": image.reason}
    [probabilities] = exported.serve(tf.constant([image.encoded]))["probabilities"].numpy().tolist()
    return {"file": str(file), **_predicted_labels(probabilities, about)}


def _predicted_labels(probabilities: Sequence[float], about: Mapping[str, Any]) -> dict[str, Any]:
    ranked = sorted(zip(probabilities, about["labels"], strict=True), reverse=True)
    is_multi_label = about.get("multi_label")  # A model of a table does not state it.
    count = sum(probability > THRESHOLD for probability in probabilities) if is_multi_label else 1
    # `ranked` is sorted, so the first `count` are over the threshold.
    listed = ranked[: max(count, MAX_LIKELY_LABELS)]
    named = [{"label": name, "probability": round(probability, 4)} for probability, name in listed]
    predicted: dict[str, Any] = {"labels": named[:count]} if is_multi_label else named[0]
    return {**predicted, "likely": named[:MAX_LIKELY_LABELS]}


def predict_rows(
    exported: Any,
    about: Mapping[str, Any],
    file: Path,
    new_rows: NewRows | None = None,
    settings: Settings | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the prediction for each row of a table, as `predict` returns it. Raises SourceError as it does."""
    schema = schema_of_model(about, settings)
    for raw, (rows, rejected) in read_rows(file, schema):
        if new_rows is not None:
            new_rows.add(rows)
        reasons = {row: reason for row, (reason, _) in rejected.items()}
        for each in about["columns"]:
            if not each["can_be_missing"] and (each["length"] or not each["is_list"]):
                is_null = rows.column(each["name"]).is_null().to_numpy(zero_copy_only=False)
                reason = f"column {each['name']!r} has no value, and the table of the training had one in each row"
                reasons = dict.fromkeys(np.flatnonzero(is_null).tolist(), reason) | reasons
        usable = pa.array([row for row in range(rows.num_rows) if row not in reasons], pa.int64())
        predictions = iter(_predictions_of_rows(exported, rows.take(usable), about))
        unreadable = enumerate(raw.rejected)
        found = {raw.first_number + bad.after + position: {"rejected": bad.reason} for position, bad in unreadable}
        for row, number in enumerate(raw.numbers_of(range(rows.num_rows))):
            found[number] = {"rejected": reasons[row]} if row in reasons else next(predictions)
        name = str(file / raw.file) if file.is_dir() else str(file)
        yield from ({"file": name, "row": number, **found[number]} for number in sorted(found))


def _predictions_of_rows(exported: Any, rows: pa.RecordBatch, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not rows.num_rows:
        return []
    served = {
        each["name"]: _served(rows.column(each["name"]), tf.as_dtype(each["dtype"]), each["length"])
        for each in about["columns"]
    }
    predicted = exported.serve(served)
    if "value" in predicted:
        return [{"value": value} for value in predicted["value"].numpy().tolist()]
    return [_predicted_labels(each, about) for each in predicted["probabilities"].numpy().tolist()]


def _served(column: pa.Array, dtype: tf.DType, length: int | None) -> tf.Tensor:
    """Return a column in the form that an exported model takes: a missing value is NaN or "".

    `length` is that of vectors.
    """
    if length:
        vectors = np.full((len(column), length), np.nan if column.null_count else 0, dtype.as_numpy_dtype)
        vectors[column.is_valid().to_numpy(zero_copy_only=False)] = (
            column.flatten().to_numpy(zero_copy_only=False).reshape(-1, length)
        )
        return tf.constant(vectors)
    missing: Any = "" if dtype == tf.string else float("nan")
    values = [missing if value is None else value for value in column.to_pylist()]
    if pa.types.is_large_list(column.type):
        lists = [[] if value is None else value for value in column.to_pylist()]
        longest = max(map(len, lists), default=0)
        values = [[*each, *[missing] * (longest - len(each))] for each in lists]
    return tf.constant(values, dtype)


def format_predictions(result: Mapping[str, Any]) -> str:
    """Return the predictions as text, one line for each file or row."""
    return "\n".join(prediction_lines(result))


def prediction_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the line of each prediction. They are read twice, because the longest name decides the width of all."""
    width = max(map(len, map(_name, result["predictions"])), default=0)
    for each in result["predictions"]:
        yield f"{_name(each):<{width}}  {_words(each)}"


def _name(prediction: Mapping[str, Any]) -> str:
    return f"{prediction['file']}:{prediction['row']}" if "row" in prediction else str(prediction["file"])


def _words(prediction: Mapping[str, Any]) -> str:
    if "rejected" in prediction:
        noun = "row" if "row" in prediction else "image"
        return f"not a usable {noun}: {prediction['rejected']}"
    if "value" in prediction:
        return four_digits(prediction["value"])
    if "labels" in prediction:
        return _listed(prediction["labels"]) or (
            f"no label above {THRESHOLD:.0%}. The most probable are {_listed(prediction['likely'])}"
        )
    return _listed(prediction["likely"])


def _listed(labels: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['label']} {each['probability']:.1%}" for each in labels)
