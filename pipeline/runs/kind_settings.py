"""The settings of a training that depend on the kind of its examples: images, or the rows of a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config import IMAGE_MODELS, TABLE_MODELS, Settings
from pipeline.dataset.manifest import Dataset
from pipeline.errors import SettingsError

_DEFAULT = Settings.model_fields["model"].default


def settings_of_training(settings: Settings, dataset: Dataset) -> Settings:
    """Return the settings of a training on a dataset. The default model, small_cnn, means mlp for a table.

    The kind of the examples is that of the dataset, because the command `train` does not need the setting.

    Raises:
        SettingsError: If a setting does not fit the kind of the examples.
    """
    if dataset.table and settings.model == _DEFAULT:
        settings = settings.model_copy(update={"model": TABLE_MODELS[0]})
    require_kind(settings, dataset.table, dataset.name)
    return settings.model_copy(update={"example_kind": "table" if dataset.table else "images"})


def require_model(settings: Settings, dataset: Dataset) -> None:
    """Refuse a model of images for a table, and a model of a table for images.

    Raises:
        SettingsError: With the models that fit.
    """
    _require_model(settings, dataset.table, dataset.name)


def require_kind(settings: Settings, table: Mapping[str, Any], place: str) -> None:
    """Refuse a model and settings that do not fit the kind of the examples.

    Args:
        settings: Settings of the training. For a table, small_cnn means mlp.
        table: The schema of a table; empty for images.
        place: The source or the dataset, for the message.

    Raises:
        SettingsError: If a setting does not fit.
    """
    is_default = table and settings.model == _DEFAULT
    _require_model(settings.model_copy(update={"model": TABLE_MODELS[0]}) if is_default else settings, table, place)
    if table:
        _require_fit_of_table(settings, table, place)


def _require_model(settings: Settings, table: Mapping[str, Any], place: str) -> None:
    what, models = ("a table", TABLE_MODELS) if table else ("images", IMAGE_MODELS)
    if ":" not in settings.model and settings.model not in models:
        raise SettingsError(
            f"model must be {', '.join(models)} or package.module:function for {what}, as in {place}, got "
            f"{settings.model!r}"
        )


def _require_fit_of_table(settings: Settings, table: Mapping[str, Any], place: str) -> None:
    cached = "rows are read from their shards in each epoch, because nothing of them is decoded"
    weighted = "class_weights=balanced does the same for the loss"
    # setting: (kind of table, the values that fit, why)
    refused: dict[str, tuple[str, Sequence[Any], str]] = {
        "balanced": ("table", (False,), weighted),
        "cache": ("table", ("auto", "off"), cached),
        "weights": ("table", ("",), "its model starts from random weights"),
    }
    if table["task"] == "regression":
        reason = "a regression has no classes"
        for name, value in (("balanced", False), ("class_weights", "none"), ("label_smoothing", 0.0)):
            refused[name] = ("regression", (value,), reason)
    for name, (kind, values, why) in refused.items():
        if (value := getattr(settings, name)) not in values:
            fitting = " or ".join(_text(each) or "empty" for each in values)
            raise SettingsError(f"{name} must be {fitting} for a {kind}, as in {place}, got {_text(value)}: {why}")


def _text(value: Any) -> str:
    """Return a value as a person sets it."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
