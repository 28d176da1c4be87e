"""The settings of a training that depend on the kind of its examples, and on their number."""

from collections.abc import Mapping
from typing import Any

from pipeline.config.automatic import TrainingSettings, with_automatic_values
from pipeline.config.example_kinds import IMAGES, KINDS
from pipeline.config.settings import Settings
from pipeline.dataset.manifest import Dataset
from pipeline.errors import SettingsError
from pipeline.plan.example_kind import kind_named


def settings_of_training(settings: Settings, dataset: Dataset) -> TrainingSettings:
    """Return the settings of a training on a dataset, with the kind of its examples and all automatic values.

    The kind of the examples is that of the dataset, because the command `train` does not need the setting. Raises
    SettingsError if a setting does not fit this kind.
    """
    examples = dataset.splits["train"].examples
    return fitting_settings(settings, dataset.kind, dataset.table, dataset.name, examples)


def fitting_settings(
    settings: Settings, kind: str, facts: Mapping[str, Any], place: str, training_examples: int
) -> TrainingSettings:
    """Return the settings of a training on examples of a kind, with all automatic values.

    `facts` are those of the kind about the examples: the schema of a table. `place` is the source or the dataset, for
    messages. Raises SettingsError if the model or another setting does not fit.
    """
    require_model(settings.model, kind, place)
    for name, fitting in kind_named(kind).fitting_values(facts).items():
        if (value := getattr(settings, name)) not in fitting.values:
            values = " or ".join(_as_set(each) or "empty" for each in fitting.values)
            raise SettingsError(
                f"{name} must be {values} for a {fitting.examples}, as in {place}, got {_as_set(value)}: {fitting.why}"
            )
    return with_automatic_values(settings.model_copy(update={"example_kind": kind}), training_examples)


def require_model(model: str, kind: str, place: str) -> None:
    """Raise SettingsError, with the models that fit, if the model is one for another kind of examples.

    `place` is the source or the dataset, or empty if none is named.
    """
    models = KINDS[kind].models
    if model and ":" not in model and model not in models:
        what = kind if kind == IMAGES else f"a {kind}"
        example = f", as in {place}" if place else ""
        raise SettingsError(
            f"model must be {', '.join(models)} or package.module:function for {what}{example}, got {model!r}"
        )


def _as_set(value: Any) -> str:
    """Return a value as a person sets it."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
