"""What the annotation of a setting declares: what its value decides, who uses it and may set it, and its section."""

from dataclasses import dataclass
from enum import Flag, auto
from typing import Annotated

from pydantic import Field

Fraction = Annotated[float, Field(ge=0, le=1)]


class Decides(Flag):
    """What another value of a setting leads to. `InFingerprint` says how it decides the version of a dataset."""

    NOTHING = 0
    """It leads to the same dataset and the same training."""
    DATASET = auto()
    """It leads to other bytes of a dataset, and so to another version."""
    TRAINING = auto()
    """It leads to another training, in a folder of its own. The setting is part of a training's identity."""


class UsedBy(Flag):
    """The stages that use a setting. The form of a DAG shows the settings of the stages that the DAG runs."""

    COMMAND_LINE = 0
    """No DAG uses the setting."""
    BUILD = auto()
    """The stages from images to a published dataset."""
    TRAIN = auto()
    """The stages of training, promotion and monitoring."""
    RETRAIN = auto()
    """The stage that chooses the published versions to train on."""


class InFingerprint:
    """Marks a setting whose value is part of a dataset's fingerprint, and is in `settings` of its `dataset.json`.

    The other settings that decide a dataset are part of the fingerprint through what they lead to: the snapshot, the
    labels, the format of the records, and the numbers of shards.
    """


class ChangesStep:
    """Marks a setting that changes the work of a training step.

    With other values of it, two trainings differ in speed on the same idle machine. A comparison says so first.
    """


class ChangesReading:
    """Marks a setting that changes how long the input of a training step takes to read and prepare.

    With other values of it, two trainings may differ in data wait on the same idle machine.
    """


class ChangesAtEpoch:
    """Marks a setting that a training under way can change from its next epoch on: see `pipeline/runs/changes.py`."""


class ChangesDataset:
    """Marks a setting that a training under way can change by a new dataset, on which a new training continues it.

    Each split of the new dataset has the same examples: see `pipeline/runs/continuation.py`.
    """


class AllowedBy(Flag):
    """The lists of the administrator that permit the value of a setting: see `allowed.py`. One of them is enough.

    Each is an environment variable: TENFOLD_ALLOWED_SOURCES and so on.
    """

    SOURCES = auto()
    WORKSPACES = auto()
    PUBLISH = auto()
    MODELS = auto()
    """Packages whose functions may run, instead of places."""


@dataclass(frozen=True)
class OnlyFor:
    """Marks a setting that only one kind of examples uses. The forms of the DAGs for other kinds leave it out."""

    kind: str
    """A value of `example_kind`."""


# Sections of the form. The settings that people set first are in no section, so that Airflow shows them unfolded.
PLACES = Field(json_schema_extra={"section": "Places"})
SOURCE = Field(json_schema_extra={"section": "Source"})
SHARDS = Field(json_schema_extra={"section": "Shards"})
GATE = Field(json_schema_extra={"section": "Data gate"})
TRAINING = Field(json_schema_extra={"section": "Training"})
PROMOTION = Field(json_schema_extra={"section": "Promotion"})
MONITORING = Field(json_schema_extra={"section": "Monitoring"})
