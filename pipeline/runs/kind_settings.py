"""The settings of a training that depend on the kind of its examples: images, or the rows of a table."""

from collections.abc import Sequence
from typing import Any

from pipeline.config import IMAGE_MODELS, TABLE_MODELS, Settings
from pipeline.dataset.manifest import Dataset
from pipeline.errors import SettingsError

_DEFAULT = Settings.model_fields["model"].default


def settings_of_training(settings: Settings, dataset: Dataset) -> Settings:
    """Return the settings of a training on a dataset. The default model, small_cnn, means mlp for a table.

    Raises:
        SettingsError: If a setting does not fit the kind of the examples.
    """
    if dataset.table and settings.model == _DEFAULT:
        settings = settings.model_copy(update={"model": TABLE_MODELS[0]})
    require_model(settings, dataset)
    if dataset.table:
        _require_fit_of_table(settings, dataset)
    return settings


def require_model(settings: Settings, dataset: Dataset) -> None:
    """Refuse a model of images for a table, and a model of a table for images.

    Raises:
        SettingsError: With the models that fit.
    """
    what, models = ("a table", TABLE_MODELS) if dataset.table else ("images", IMAGE_MODELS)
    if ":" not in settings.model and settings.model not in models:
        raise SettingsError(
            f"model must be {', '.join(models)} or package.module:function for {what}, as in {dataset.name}, got "
            f"{settings.model!r}"
        )


def _require_fit_of_table(settings: Settings, dataset: Dataset) -> None:
    refused: dict[str, tuple[Sequence[Any], str]] = {
        # setting: (the values that fit, why)
        "balanced": ((False,), "class_weights=balanced does the same for the loss"),
        "cache": (("auto", "off"), "rows are read from their shards in each epoch, because nothing of them is decoded"),
    }
    if dataset.table["task"] == "regression":
        reason = "a regression has no classes"
        refused |= {"class_weights": (("none",), reason), "label_smoothing": ((0.0,), reason)}
    for name, (values, why) in refused.items():
        if (value := getattr(settings, name)) not in values:
            fitting = " or ".join(str(each).lower() for each in values)
            raise SettingsError(
                f"{name} must be {fitting} for a table, as in {dataset.name}, got {str(value).lower()}: {why}"
            )
