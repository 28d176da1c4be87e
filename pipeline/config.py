"""The one configuration: Airflow's form, the command line, the task argument and the trainer's input.

Each field carries its documentation, its range and its room in the form; `Settings` refuses what it does not know.
"""

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.config import JsonDict

from pipeline.errors import SettingsError

SHARDS_PER_SERVER = 10
SMALLEST_INPUT = {"InceptionResNetV2": 75}
"""Sides in pixels, where Keras refuses smaller ones than our own 32."""

ModelName = Literal[
    "small_cnn",
    "MobileNetV2",
    "MobileNetV3Small",
    "MobileNetV3Large",
    "EfficientNetV2B0",
    "ResNet50",
    "InceptionResNetV2",
]


# The rooms of the form. What people set first stands in none: Airflow shows it unfolded.
PLACES: JsonDict = {"section": "Places"}
SHARDS: JsonDict = {"section": "Shards"}
TRAINING: JsonDict = {"section": "Training"}
MONITORING: JsonDict = {"section": "Monitoring"}


def _default_workspace() -> str:
    return os.environ.get("TENFOLD_WORKSPACE", "workspace")


class Settings(BaseModel):
    """Everything a run can be told. Immutable; `settings_from` makes it and explains what is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    source_uri: str = Field(
        "",
        title="Images",
        examples=["/data/flowers", "/data/photos/{date}"],
        description="Folder of raw images, one sub-folder a class, with or without train/, validation/ and test/ "
        "above them. {date} in it becomes the data date of the run.",
    )

    dataset_name: str = Field(
        "images",
        title="Data set name",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Versions of the data set are kept under this name.",
    )

    num_training_servers: int = Field(
        1,
        title="Training servers",
        ge=1,
        le=1000,
        description="Ten training shards are written for each of them. Training itself uses one device for now.",
    )

    model: ModelName = Field(
        "small_cnn", title="Model", description="The small CNN, or a model of keras.applications by its name there."
    )

    epochs: int = Field(10, title="Epochs", ge=1, le=10_000, description="Passes over the training examples.")

    batch_size: int = Field(32, title="Batch size", ge=1, le=65_536, description="Examples in one training step.")

    learning_rate: float = Field(
        0.001, title="Learning rate", gt=0, le=10, allow_inf_nan=False, description="Step size of the Adam optimizer."
    )

    workspace: str = Field(
        default_factory=_default_workspace,
        title="Workspace",
        json_schema_extra=PLACES,
        description="Folder that all workers can reach: shards, plans, checkpoints and reports are kept there.",
    )

    publish_uri: str = Field(
        "",
        title="Publish to",
        json_schema_extra=PLACES,
        description="Folder that data sets are published in. Empty: `datasets` in the workspace.",
    )

    dataset: str = Field(
        "",
        title="Finished data set",
        json_schema_extra=PLACES,
        description="Folder of a published data set, for `python -m pipeline train` on its own.",
    )

    data_date: str = Field(
        "",
        title="Data date",
        json_schema_extra=PLACES,
        description="YYYY-MM-DD that {date} stands for. Empty: the date of the run.",
    )

    num_shards: int | None = Field(
        None,
        title="Training shards",
        ge=1,
        le=100_000,
        json_schema_extra=SHARDS,
        description="Overrides ten for each training server.",
    )

    shards_per_task: int = Field(
        5,
        title="Shards a task",
        ge=1,
        le=10_000,
        json_schema_extra=SHARDS,
        description="How many shards one mapped Airflow task writes.",
    )

    validation_fraction: float = Field(
        0.2,
        title="Validation share",
        ge=0.01,
        le=0.9,
        json_schema_extra=SHARDS,
        description="Share of the images held back for validation, where the source has no validation folder.",
    )

    seed: int = Field(
        0,
        title="Seed",
        ge=0,
        lt=2**31,
        json_schema_extra=SHARDS,
        description="Decides the split, the order of the examples and the first weights.",
    )

    max_megapixels: float = Field(
        50.0,
        title="Largest image",
        gt=0,
        le=2000,
        json_schema_extra=SHARDS,
        description="An image of more megapixels is rejected from its header, before it can fill the memory.",
    )

    image_size: int = Field(
        96,
        title="Image size",
        ge=32,
        le=2048,
        json_schema_extra=TRAINING,
        description="Side of the model's square input, in pixels.",
    )

    weights: str = Field(
        "",
        title="Weights",
        json_schema_extra=TRAINING,
        description="Local file (.weights.h5 or .keras) that the model starts from. Empty: random weights; "
        "nothing is downloaded.",
    )

    shuffle_megabytes: int = Field(
        128,
        title="Shuffle buffer",
        ge=1,
        le=65_536,
        json_schema_extra=TRAINING,
        description="Memory of the shuffle buffer, in megabytes of encoded images.",
    )

    sample_hz: float = Field(
        5.0,
        title="Samples a second",
        ge=0.2,
        le=20,
        json_schema_extra=MONITORING,
        description="How often utilization is sampled.",
    )

    comet_project: str = Field(
        "tenfold",
        title="Comet project",
        pattern=r"^[\w .-]{1,100}$",
        json_schema_extra=MONITORING,
        description="Project that the experiment is logged to.",
    )

    @field_validator("source_uri", "workspace", "publish_uri", "dataset", "weights")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if "://" in value:
            raise ValueError("must be a local path (a bucket is not read yet: copy it with `gcloud storage cp -r`)")
        return os.path.abspath(os.path.expanduser(value)) if value else value  # noqa: PTH100, PTH111 - keeps {date}

    @model_validator(mode="after")
    def _large_enough(self) -> "Settings":
        least = SMALLEST_INPUT.get(self.model, 32)
        if self.image_size < least:
            raise ValueError(f"image_size must be at least {least} for {self.model}, got {self.image_size}")
        return self

    @field_validator("workspace")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value:
            raise ValueError("must name a folder")
        return value

    @field_validator("data_date")
    @classmethod
    def _is_date(cls, value: str) -> str:
        if value:
            try:
                return date.fromisoformat(value).isoformat()
            except ValueError:
                raise ValueError("must be a date such as 2026-01-31") from None
        return value

    @property
    def train_shards(self) -> int:
        """Ten training shards for each training server, unless `num_shards` says otherwise."""
        return self.num_shards or SHARDS_PER_SERVER * self.num_training_servers

    @property
    def datasets_folder(self) -> Path:
        """Where versions are published: `publish_uri`, or `datasets` in the workspace."""
        return Path(self.publish_uri) if self.publish_uri else Path(self.workspace) / "datasets"

    def dated(self, run_date: datetime | None = None) -> "Settings":
        """These settings with the data date (that of the form, else of the run, else today in UTC) filled in."""
        day = self.data_date or (run_date or datetime.now(UTC)).date().isoformat()
        return self.model_copy(update={"data_date": day, "source_uri": self.source_uri.replace("{date}", day)})


def settings_from(values: Mapping[str, Any], *, strict: bool = True) -> Settings:
    """Settings made from a form, a file or an XCom. With `strict=False` text is read as the field's type ("3" is 3).

    None leaves a field at its default: Airflow's form sends null for a text field that was emptied.
    Raises SettingsError with one sentence for each field that is unknown, of the wrong type or out of range.
    """
    try:
        return Settings.model_validate(
            {name: value for name, value in values.items() if value is not None}, strict=strict
        )
    except ValidationError as error:
        raise SettingsError("; ".join(_sentence(problem) for problem in error.errors())) from error


def settings_of_command_line(config: Path | None, assignments: list[str]) -> Settings:
    """Settings from a TOML or JSON file (optional) and `field=value` texts, which win over the file."""
    values = _read_file(config) if config else {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set takes field=value, got {assignment!r}")
        values[name.strip()] = value
    return settings_from(values, strict=False)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--config {path} cannot be read as {path.suffix or 'TOML'}: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"--config {path} must hold fields and values, got {type(values).__name__}")
    return values


def _sentence(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{field} is not a setting: {_suggestion(field)}"
    message = problem["msg"].removeprefix("Value error, ")
    if not field:  # it names the fields that do not go together
        return str(message)
    message = message.removeprefix("Input should be ").replace("String should ", "must ")
    message = message if message.startswith("must") else f"must be {message}"
    return f"{field} {message}, got {problem['input']!r}"


def _suggestion(field: str) -> str:
    close = difflib.get_close_matches(field, Settings.model_fields, n=1)
    return f"did you mean {close[0]}?" if close else f"the settings are {', '.join(Settings.model_fields)}"
