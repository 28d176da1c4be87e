"""The settings of one training, with values that Tenfold chooses if a setting is empty or `auto`.

The values follow from the kind of the examples, the number of training examples and the other settings. They do not
depend on the machine, so a training that continues elsewhere is the same training.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any, Literal

from pipeline.config.declarations import Decides
from pipeline.config.example_kinds import KINDS, TABLE
from pipeline.config.settings import Settings, settings_from, settings_with, validated
from pipeline.errors import SettingsError

OF_IMAGES: Mapping[str, Any] = {
    "batch_size": 32,
    "epochs": 10,
    "learning_rate": 0.001,
    "learning_rate_schedule": "constant",
    "weight_decay": 0.0,
    "patience": 0,
}
"""The values for images."""

BATCH_GROWTH = 3.0
"""The batch size for a table is this number times the square root of the training rows, rounded down to a power of two:
1,024 for 80% of 200,000 rows. Gorishniy et al. 2021 (Revisiting Deep Learning Models for Tabular Data) grow it about as
fast, from 256 for 20,000 rows to 1,024 for 500,000."""
MIN_BATCH, MAX_BATCH = 32, 4096
STEPS = 3_000
"""A training on a table takes about this many steps."""
MIN_EPOCHS, MAX_EPOCHS = 8, 100
PATIENCE, MIN_PATIENCE = 0.25, 4
"""A training on a table ends if this share of its epochs, but at least four of them, is not better."""


class TrainingSettings(Settings):
    """The settings of one training, all of which have a value."""

    model: str
    epochs: int
    batch_size: int
    learning_rate: float
    learning_rate_schedule: Literal["constant", "cosine"]
    weight_decay: float
    patience: int


AUTOMATIC = tuple(TrainingSettings.__annotations__)
"""The settings for which Tenfold can choose a value."""


def with_automatic_values(settings: Settings, training_examples: int) -> TrainingSettings:
    """Return the settings of a training on examples of the kind `settings.example_kind`. Values that are set stay.

    Raises:
        SettingsError: If a setting does not fit a chosen value. `warmup_epochs`, for example, may be too many.
    """
    values, kind = settings.model_dump(), settings.example_kind
    given = {name: values[name] for name in AUTOMATIC if values[name] not in (None, "", "auto")}
    batch_size = given.get("batch_size") or _batch_size(kind, training_examples, settings.num_training_servers)
    chosen = _of_table(given, batch_size, training_examples) if kind == TABLE else OF_IMAGES
    if "epochs" not in given and settings.warmup_epochs >= chosen["epochs"]:
        why = "which follow from the number of rows" if kind == TABLE else "the default for images"
        raise SettingsError(
            f"warmup_epochs must be less than epochs ({chosen['epochs']}), {why}, got {settings.warmup_epochs:g}: set "
            "epochs"
        )
    model = KINDS[kind].models[0]
    return validated(TrainingSettings, {**values, **chosen, "model": model, "batch_size": batch_size, **given})


def training_settings(values: Mapping[str, Any]) -> TrainingSettings:
    """Return the settings of a training from a file. In `run.json`, all have a value; those for images need none.

    Raises what `settings_from` does.
    """
    return with_automatic_values(settings_from(values), 0)


def deciding_values(settings: TrainingSettings) -> dict[str, Any]:
    """Return the values of all settings that decide a training: they are its identity."""
    return {name: getattr(settings, name) for name in settings_with(Decides.TRAINING)}


def _of_table(given: Mapping[str, Any], batch_size: int, training_rows: int) -> Mapping[str, Any]:
    steps_per_epoch = max(training_rows // batch_size, 1)
    epochs = given.get("epochs") or min(max(round(STEPS / steps_per_epoch), MIN_EPOCHS), MAX_EPOCHS)
    return {
        "epochs": epochs,
        # The rate of Adam grows with the square root of the batch size (Krizhevsky 2014).
        "learning_rate": round(0.001 * sqrt(batch_size / 64), 6),
        "learning_rate_schedule": "cosine",
        "weight_decay": 0.05,
        "patience": max(MIN_PATIENCE, round(PATIENCE * epochs)),
    }


def _batch_size(kind: str, training_examples: int, servers: int) -> int:
    """Return a batch size of which each server gets a power of two, which most numbers of GPUs divide."""
    whole = float(OF_IMAGES["batch_size"])
    if kind == TABLE:
        whole = min(max(BATCH_GROWTH * sqrt(training_examples), MIN_BATCH), MAX_BATCH)
    share = max(int(whole / servers), 1)
    return int(servers * 2 ** (share.bit_length() - 1))
