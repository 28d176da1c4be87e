"""The one configuration: Airflow's form, the command line, the task argument and the trainer's input.

Each field carries its documentation, its range and its section in the form, and declares what its value decides, which
stages use it, and which permission it needs. `Settings` refuses what it does not know.
"""

import codecs
import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Flag, auto
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.config import JsonDict

from pipeline import data_date as dates
from pipeline.dataset_name import PATTERN, name_of_source
from pipeline.errors import SettingsError
from pipeline.storage import BucketPath, Place, is_bucket, place_of

SHARDS_PER_SERVER = 10
SMALLEST_INPUT = {"InceptionResNetV2": 75}
"""Sides in pixels, where Keras refuses smaller ones than our own 32."""

APPLICATIONS = (
    "MobileNetV2",
    "MobileNetV3Small",
    "MobileNetV3Large",
    "EfficientNetV2B0",
    "ResNet50",
    "InceptionResNetV2",
)
"""Those of keras.applications that `model` may name."""

MODELS = ("small_cnn", *APPLICATIONS)
"""What `model` may name beside a function of the user's own."""

MAX_PLACE = 4096
"""Most characters of a path or an address. No file system or bucket takes more."""

MAX_TEXT = 1000
"""Most characters of any other text."""

MAX_SHOWN = 200
"""Most characters of a value that an error message repeats."""

WEIGHTS_SUFFIXES = (".weights.h5", ".h5", ".keras")

Action = Literal["continue", "ask", "fail"]


def source_kinds() -> list[str]:
    """Return the names of the files in pipeline/sources that define `list_images`. Each is a kind of source."""
    # The files are searched, not imported: the sources import this module.
    files = (Path(__file__).parent / "sources").glob("*.py")
    return sorted(file.stem for file in files if "\ndef list_images(" in file.read_text("utf-8"))


_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class Decides(Flag):
    """What another value of a setting leads to."""

    NOTHING = 0
    """The same dataset and the same training."""
    DATASET = auto()
    """Other bytes of a dataset: another version."""
    TRAINING = auto()
    """Another training, in a folder of its own. The setting is part of a training's identity."""


class UsedBy(Flag):
    """The stages that use a setting. The form of a DAG shows the settings of the stages that the DAG runs."""

    COMMAND_LINE = 0
    """No DAG."""
    BUILD = auto()
    """From images to a published dataset."""
    TRAIN = auto()
    """Training, promotion and monitoring."""
    RETRAIN = auto()
    """The choice of published versions to train on."""


@dataclass(frozen=True)
class InFingerprint:
    """Marks a setting whose value is part of a dataset's fingerprint, and stands in `settings` of its `dataset.json`.

    The other settings that decide a dataset are part of the fingerprint through what they lead to: the snapshot, the
    labels, the format of the records, and the numbers of shards.
    """

    position: int
    """Position in `settings`."""


class AllowedBy(Flag):
    """The lists of the administrator that permit the value of a setting (pipeline/allowed.py). One of them is enough.

    Each is an environment variable: TENFOLD_ALLOWED_SOURCES and so on.
    """

    SOURCES = auto()
    WORKSPACES = auto()
    PUBLISH = auto()
    MODELS = auto()
    """Packages whose functions may run, instead of places."""


_Marker = TypeVar("_Marker", Decides, UsedBy, InFingerprint, AllowedBy)

# Sections of the form. The settings that people set first are in no section, so that Airflow shows them unfolded.
PLACES: JsonDict = {"section": "Places"}
SOURCE: JsonDict = {"section": "Source"}
SHARDS: JsonDict = {"section": "Shards"}
GATE: JsonDict = {"section": "Data gate"}
TRAINING: JsonDict = {"section": "Training"}
PROMOTION: JsonDict = {"section": "Champion gate"}
MONITORING: JsonDict = {"section": "Monitoring"}


def _default_workspace() -> str:
    return os.environ.get("TENFOLD_WORKSPACE", "workspace")


def _default_local_folder() -> str:
    return os.environ.get("TENFOLD_LOCAL_FOLDER", "~/.cache/tenfold")


class Settings(BaseModel):
    """All settings of a run. Immutable; `settings_from` makes it and explains what is wrong.

    The annotation of each field holds one `Decides` and one `UsedBy`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    source_uri: Annotated[str, Decides.DATASET, UsedBy.BUILD, AllowedBy.SOURCES] = Field(
        "",
        title="Images",
        max_length=MAX_PLACE,
        examples=["/data/flowers", "gs://bucket/photos/{date}"],
        description="Folder of raw images, local or gs://bucket/prefix, one sub-folder a class, with or "
        "without train/, validation/ and test/ above them; or a list of them (CSV, JSON lines, Parquet), or the folder "
        "of Stanford Cars or ImageNet. "
        "{date}, {year}, {month}, {day}, {hour} and {minute} in it are filled from the data date of the run. "
        "Empty, in the Airflow of `make up`: drawn sample images.",
    )

    dataset_name: Annotated[str, Decides.DATASET, UsedBy.BUILD | UsedBy.TRAIN] = Field(
        "",
        title="Dataset name",
        pattern=f"^({PATTERN})?$",
        description="Versions of the dataset are kept under this name. If it is empty, the dataset gets the name of "
        "the folder that holds the images, such as flowers for /data/flowers/{date}. The DAG retrain then uses the "
        "name of the dataset that is new.",
    )

    num_training_servers: Annotated[int, Decides.DATASET | Decides.TRAINING, UsedBy.BUILD | UsedBy.TRAIN] = Field(
        1,
        title="Training servers",
        ge=1,
        le=1000,
        description="Machines that train one model together, each with all of its GPUs: each takes a slot of the pool "
        "gpu and a worker, all at the same time. Ten training shards are written for each.",
    )

    model: Annotated[str, Decides.TRAINING, UsedBy.TRAIN, AllowedBy.MODELS] = Field(
        "small_cnn",
        title="Model",
        max_length=MAX_TEXT,
        examples=list(MODELS),
        description=f"The small CNN, one of keras.applications ({', '.join(APPLICATIONS)}), or package.module:function "
        "of yours, which is called with the image size and the number of classes and returns a keras.Model.",
    )

    epochs: Annotated[int, Decides.TRAINING, UsedBy.TRAIN] = Field(
        10, title="Epochs", ge=1, le=10_000, description="Passes over the training examples."
    )

    batch_size: Annotated[int, Decides.TRAINING, UsedBy.TRAIN] = Field(
        32,
        title="Batch size",
        ge=1,
        le=65_536,
        description="Examples in one training step, of all training servers and GPUs together.",
    )

    learning_rate: Annotated[float, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0.001,
        title="Learning rate",
        gt=0,
        le=10,
        allow_inf_nan=False,
        description="Step size of the Adam optimizer: the highest, where it rises and falls.",
    )

    workspace: Annotated[str, Decides.NOTHING, UsedBy.BUILD | UsedBy.TRAIN, AllowedBy.WORKSPACES] = Field(
        default_factory=_default_workspace,
        title="Workspace",
        max_length=MAX_PLACE,
        json_schema_extra=PLACES,
        description="Folder that all workers can reach, local or gs://bucket/prefix: shards, plans, checkpoints and "
        "reports are kept there.",
    )

    publish_uri: Annotated[str, Decides.NOTHING, UsedBy.BUILD | UsedBy.TRAIN, AllowedBy.PUBLISH] = Field(
        "",
        title="Publish to",
        max_length=MAX_PLACE,
        json_schema_extra=PLACES,
        description="Folder that data sets are published in, local or gs://bucket/prefix. Empty: `datasets` in the "
        "workspace.",
    )

    dataset: Annotated[str, Decides.NOTHING, UsedBy.COMMAND_LINE, AllowedBy.WORKSPACES | AllowedBy.PUBLISH] = Field(
        "",
        title="Finished data set",
        max_length=MAX_PLACE,
        json_schema_extra=PLACES,
        description="Folder of a published data set, local or gs://bucket/prefix, for `python -m pipeline train` on "
        "its own.",
    )

    local_folder: Annotated[str, Decides.NOTHING, UsedBy.TRAIN, AllowedBy.WORKSPACES] = Field(
        default_factory=_default_local_folder,
        title="Local folder",
        max_length=MAX_PLACE,
        json_schema_extra=PLACES,
        description="Folder on each worker for what a training needs at hand where the workspace is a bucket: its "
        "record and checkpoints, which are mirrored to the workspace, and copies of shards.",
    )

    cache_gigabytes: Annotated[float, Decides.NOTHING, UsedBy.TRAIN] = Field(
        100.0,
        title="Shard cache",
        gt=0,
        allow_inf_nan=False,
        json_schema_extra=PLACES,
        description="How much of the local folder copies of shards may take. Copies used longest ago make room. A "
        "training that reads more at once (8 shards) is refused.",
    )

    read_shards: Annotated[Literal["cache", "direct"], Decides.NOTHING, UsedBy.TRAIN] = Field(
        "cache",
        title="Read shards",
        json_schema_extra=PLACES,
        description="How training reads shards from a bucket. cache copies them to the local folder, checked, ahead of "
        "the training. direct leaves it to TensorFlow, which fetches all of them in every epoch.",
    )

    user_project: Annotated[str, Decides.NOTHING, UsedBy.BUILD] = Field(
        "",
        title="Project that pays",
        max_length=MAX_TEXT,
        json_schema_extra=PLACES,
        description="Google Cloud project that pays for reading the images, where the requester must.",
    )

    data_date: Annotated[str, Decides.DATASET, UsedBy.BUILD] = Field(
        "",
        title="Data date",
        max_length=MAX_TEXT,
        json_schema_extra=PLACES,
        examples=["2026-01-31", "2026-01-31T07:00"],
        description="What {date} and {hour} in the source stand for, in UTC. Empty: the date of the run.",
    )

    source_kind: Annotated[str, Decides.DATASET, UsedBy.BUILD] = Field(
        "auto",
        title="Kind of source",
        max_length=MAX_TEXT,
        json_schema_extra={**SOURCE, "enum": ["auto", *source_kinds()]},
        description="How the source is laid out: a file of pipeline/sources by its name. auto: found out.",
    )

    path_column: Annotated[str, Decides.DATASET, UsedBy.BUILD] = Field(
        "",
        title="Column of paths",
        max_length=MAX_TEXT,
        json_schema_extra=SOURCE,
        description="In a list: the column of image paths, relative to the list's place. Empty: path, image, file, "
        "filename or uri.",
    )

    label_column: Annotated[str, Decides.DATASET, UsedBy.BUILD] = Field(
        "",
        title="Column of labels",
        max_length=MAX_TEXT,
        json_schema_extra=SOURCE,
        description="In a list: the column of labels; several labels of an image are separated by |. Empty: label, "
        "class, category or labels.",
    )

    split_column: Annotated[str, Decides.DATASET, UsedBy.BUILD] = Field(
        "",
        title="Column of splits",
        max_length=MAX_TEXT,
        json_schema_extra=SOURCE,
        description="In a list: the column that says train, validation or test. Empty: split, where there is one.",
    )

    group_column: Annotated[str, Decides.DATASET, UsedBy.BUILD] = Field(
        "",
        title="Column of groups",
        max_length=MAX_TEXT,
        json_schema_extra=SOURCE,
        description="In a list: images of one group (a person, a scene) stay on one side of the split. Empty: group, "
        "where there is one.",
    )

    list_encoding: Annotated[str, Decides.DATASET, UsedBy.BUILD] = Field(
        "utf-8",
        title="Encoding of the list",
        max_length=MAX_TEXT,
        examples=["utf-8", "latin-1", "cp1252", "utf-16"],
        json_schema_extra=SOURCE,
        description="Text encoding of a CSV or TSV list.",
    )

    group_pattern: Annotated[str, Decides.DATASET, UsedBy.BUILD] = Field(
        "",
        title="Pattern of groups",
        max_length=MAX_TEXT,
        examples=[r"^(.+?)_\d+$"],
        json_schema_extra=SOURCE,
        description="Regular expression on the file name without its ending: images that agree in its first group (or "
        "match) stay on one side of the split. Empty: only equal images do.",
    )

    label_map: Annotated[str, Decides.DATASET, UsedBy.BUILD, AllowedBy.SOURCES] = Field(
        "",
        title="Label map",
        max_length=MAX_PLACE,
        json_schema_extra=SOURCE,
        description="File with one label a line: the first has id 0. Empty: ids are given once for a data set name, "
        "and never move.",
    )

    crop_to_box: Annotated[bool, Decides.DATASET, UsedBy.BUILD, InFingerprint(6)] = Field(
        False,
        title="Crop to the box",
        json_schema_extra=SOURCE,
        description="Keep of each image what lies in its bounding box, where the source has one.",
    )

    num_shards: Annotated[int | None, Decides.DATASET, UsedBy.BUILD] = Field(
        None,
        title="Training shards",
        ge=1,
        le=100_000,
        json_schema_extra=SHARDS,
        description="Overrides ten for each training server.",
    )

    shards_per_task: Annotated[int, Decides.NOTHING, UsedBy.BUILD] = Field(
        5,
        title="Shards a task",
        ge=1,
        le=10_000,
        json_schema_extra=SHARDS,
        description="How many shards one mapped Airflow task writes.",
    )

    validation_fraction: Annotated[float, Decides.DATASET, UsedBy.BUILD, InFingerprint(2)] = Field(
        0.2,
        title="Validation share",
        ge=0.01,
        le=0.9,
        json_schema_extra=SHARDS,
        description="Share of the images held back for validation, where the source has no validation folder.",
    )

    split_seed: Annotated[int, Decides.DATASET, UsedBy.BUILD, InFingerprint(1)] = Field(
        0,
        title="Seed of the split",
        ge=0,
        lt=2**31,
        json_schema_extra=SHARDS,
        description="Decides which images are held back for validation, and the order of the examples in the shards. "
        "Another value makes another version. Use the same value for all dates of a dataset name.",
    )

    max_megapixels: Annotated[float, Decides.DATASET, UsedBy.BUILD, InFingerprint(3)] = Field(
        50.0,
        title="Largest image",
        gt=0,
        le=2000,
        json_schema_extra=SHARDS,
        description="An image of more megapixels is rejected from its header, before it can fill the memory.",
    )

    max_file_megabytes: Annotated[float, Decides.DATASET, UsedBy.BUILD, InFingerprint(4)] = Field(
        256.0,
        title="Largest file",
        gt=0,
        le=2000,  # a record holds no more
        json_schema_extra=SHARDS,
        description="Files of more megabytes are rejected without being read.",
    )

    check: Annotated[Literal["strict", "header"], Decides.DATASET, UsedBy.BUILD, InFingerprint(5)] = Field(
        "strict",
        title="Check",
        json_schema_extra=SHARDS,
        description="strict decodes every image completely. header only walks the structure of JPEG and PNG files that "
        "need no change: for collections that are known to be sound.",
    )

    prepare: Annotated[Literal["keep", "resize", "raw"], Decides.DATASET, UsedBy.BUILD, InFingerprint(7)] = Field(
        "keep",
        title="Prepare",
        json_schema_extra=SHARDS,
        description="keep leaves images as they are. resize shrinks them once to prepare_size, for an input 2 to 3 "
        "times faster. raw does so too and stores pixels (uint8), for one about 4 times faster, on more disk.",
    )

    prepare_size: Annotated[int, Decides.DATASET, UsedBy.BUILD, InFingerprint(9)] = Field(
        256,
        title="Prepared size",
        ge=16,
        le=4096,
        json_schema_extra=SHARDS,
        description="Shorter side of prepared images in pixels; smaller ones are left as they are.",
    )

    feature_keys: Annotated[Literal["model_garden", "plain"], Decides.DATASET, UsedBy.BUILD] = Field(
        "model_garden",
        title="Feature keys",
        json_schema_extra=SHARDS,
        description="Names in a record: model_garden writes image/encoded, image/class/label and so on; plain writes "
        "image, height, width, channels, class (the id) and label (the name).",
    )

    label_offset: Annotated[int | None, Decides.DATASET, UsedBy.BUILD] = Field(
        None,
        title="Label offset",
        ge=0,
        le=1,
        json_schema_extra=SHARDS,
        description="Id of the first label in the records. Empty: 1 for the ImageNet layout, as the Model Garden has "
        "it, else 0.",
    )

    compression: Annotated[Literal["none", "gzip"], Decides.DATASET, UsedBy.BUILD] = Field(
        "none",
        title="Compression",
        json_schema_extra=SHARDS,
        description="gzip shrinks raw shards; encoded images hardly.",
    )

    near_duplicates: Annotated[bool, Decides.DATASET, UsedBy.BUILD, InFingerprint(8)] = Field(
        False,
        title="Near-duplicates",
        json_schema_extra=GATE,
        description="Look for images that look alike (perceptual hash), beside those that are equal.",
    )

    on_rejected: Annotated[Action, Decides.NOTHING, UsedBy.BUILD] = Field(
        "fail",
        title="Too many rejected",
        json_schema_extra=GATE,
        description="What happens when more images are rejected than the share below. ask asks a person.",
    )

    max_rejected_fraction: Annotated[float, Decides.NOTHING, UsedBy.BUILD] = Field(
        0.5,
        title="Rejected share",
        ge=0,
        le=1,
        json_schema_extra=GATE,
        description="Share of the listed images that may be rejected.",
    )

    on_leak: Annotated[Action, Decides.NOTHING, UsedBy.BUILD | UsedBy.TRAIN] = Field(
        "fail",
        title="Too many leaks",
        json_schema_extra=GATE,
        description="What happens if more validation or test images are also in training than the share below allows. "
        "This applies to a version, and to a window of several dates.",
    )

    max_leaked_fraction: Annotated[float, Decides.NOTHING, UsedBy.BUILD | UsedBy.TRAIN] = Field(
        0.01,
        title="Leaked share",
        ge=0,
        le=1,
        json_schema_extra=GATE,
        description="Share of the validation and test images that may be in training too.",
    )

    on_contradiction: Annotated[Action, Decides.NOTHING, UsedBy.BUILD] = Field(
        "continue",
        title="Contradictory labels",
        json_schema_extra=GATE,
        description="What happens if more images than the share below allows are equal to one with different labels.",
    )

    max_contradictory_fraction: Annotated[float, Decides.NOTHING, UsedBy.BUILD] = Field(
        0.0,
        title="Contradictory share",
        ge=0,
        le=1,
        json_schema_extra=GATE,
        description="Share of the listed images that may be equal to an image with different labels.",
    )

    on_imbalance: Annotated[Action, Decides.NOTHING, UsedBy.BUILD] = Field(
        "continue",
        title="Classes out of balance",
        json_schema_extra=GATE,
        description="What happens when the largest class has more times the images of the smallest than below.",
    )

    max_imbalance: Annotated[float, Decides.NOTHING, UsedBy.BUILD] = Field(
        100.0,
        title="Balance",
        ge=1,
        json_schema_extra=GATE,
        allow_inf_nan=False,
        description="Training images of the largest class over those of the smallest.",
    )

    on_drift: Annotated[Action, Decides.NOTHING, UsedBy.BUILD] = Field(
        "continue",
        title="Drift",
        json_schema_extra=GATE,
        description="What happens when the images differ from those of the last version by more than the number below.",
    )

    max_drift: Annotated[float, Decides.NOTHING, UsedBy.BUILD] = Field(
        0.25,
        title="Largest drift",
        ge=0,
        json_schema_extra=GATE,
        allow_inf_nan=False,
        description="Population stability index of sizes, brightness and class shares, the largest of them: 0.1 is "
        "little, 0.25 is much.",
    )

    ask_hours: Annotated[float, Decides.NOTHING, UsedBy.BUILD] = Field(
        24.0,
        title="Hours to answer",
        gt=0,
        le=8760,
        allow_inf_nan=False,
        json_schema_extra=GATE,
        description="How long a run of Airflow waits for an answer where one of the above says ask; it fails then.",
    )

    window: Annotated[int, Decides.DATASET, UsedBy.RETRAIN] = Field(
        1,
        title="Partitions",
        ge=1,
        le=1000,
        json_schema_extra=TRAINING,
        description="How many of the newest partitions (dates) of a data set name a retraining takes, as one data set.",
    )

    image_size: Annotated[int, Decides.TRAINING, UsedBy.TRAIN] = Field(
        96,
        title="Image size",
        ge=32,
        le=2048,
        json_schema_extra=TRAINING,
        description="Side of the model's square input, in pixels.",
    )

    seed: Annotated[int, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0,
        title="Seed",
        ge=0,
        lt=2**31,
        json_schema_extra=TRAINING,
        description="Decides the initial weights, and the shuffling and augmentation of the training examples. Another "
        "value makes another training on the same dataset.",
    )

    weights: Annotated[str, Decides.TRAINING, UsedBy.TRAIN, AllowedBy.SOURCES] = Field(
        "",
        title="Weights",
        max_length=MAX_PLACE,
        json_schema_extra=TRAINING,
        description="Local file (.weights.h5 or .keras) that the model starts from. Empty: random weights; "
        "nothing is downloaded.",
    )

    shuffle_megabytes: Annotated[int, Decides.TRAINING, UsedBy.TRAIN] = Field(
        128,
        title="Shuffle buffer",
        ge=1,
        le=65_536,
        json_schema_extra=TRAINING,
        description="Memory of the shuffle buffer, in megabytes of encoded images.",
    )

    crop: Annotated[Literal["random", "random_resized", "whole"], Decides.TRAINING, UsedBy.TRAIN] = Field(
        "random",
        title="Crop",
        json_schema_extra=TRAINING,
        description="What training sees of an image. random: a square window of 7/8 of the shorter side at a random "
        "place, not resampled where images were prepared for that (a prepare_size of 256 for an image_size of 224). "
        "random_resized: a window of random size, shape and place, as ImageNet is trained from scratch. whole: all of "
        "it, squeezed into a square.",
    )

    min_crop_area: Annotated[float, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0.25,
        title="Smallest crop",
        gt=0,
        le=1,
        json_schema_extra=TRAINING,
        description="Of crop=random_resized: the smallest window, as a share of the image. ImageNet is used to 0.08.",
    )

    flip: Annotated[bool, Decides.TRAINING, UsedBy.TRAIN] = Field(
        True, title="Flip", json_schema_extra=TRAINING, description="Mirror half of the training images."
    )

    color_jitter: Annotated[float, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0.0,
        title="Color jitter",
        ge=0,
        le=1,
        json_schema_extra=TRAINING,
        description="How much brightness, contrast and saturation of training images change at random, on the "
        "accelerator: 0.4 means by up to 40%.",
    )

    balanced: Annotated[bool, Decides.TRAINING, UsedBy.TRAIN] = Field(
        False,
        title="Balance the classes",
        json_schema_extra=TRAINING,
        description="Show all classes equally often: examples of rare ones several times an epoch, of frequent ones "
        "not always. Not where images have several labels.",
    )

    cache: Annotated[Literal["auto", "memory", "disk", "off"], Decides.TRAINING, UsedBy.TRAIN] = Field(
        "auto",
        title="Keep decoded images",
        json_schema_extra=TRAINING,
        description="For the epochs after the first: in memory, or on disk in the local folder. auto: in memory, where "
        "they fit into half of what is free and the crop allows it (random and whole do).",
    )

    prefetch_batches: Annotated[int, Decides.NOTHING, UsedBy.TRAIN] = Field(
        4,
        title="Batches ready",
        ge=1,
        le=1024,
        json_schema_extra=TRAINING,
        description="How many batches are made before they are asked for, on each server. More of them bridge longer "
        "pauses of the input, and take more memory.",
    )

    server_wait_minutes: Annotated[float, Decides.NOTHING, UsedBy.TRAIN] = Field(
        15.0,
        title="Wait for servers",
        gt=0,
        le=10_080,
        json_schema_extra=TRAINING,
        description="How long a training server waits for the others, before it says who is missing.",
    )

    learning_rate_scaling: Annotated[Literal["none", "linear", "sqrt"], Decides.TRAINING, UsedBy.TRAIN] = Field(
        "none",
        title="Learning rate scaling",
        json_schema_extra=TRAINING,
        description="Takes the learning rate as one for batches of 256. linear multiplies it by batch size / 256, sqrt "
        "by the root of that, which suits Adam: so it can stay as it is when GPUs and the batch are added.",
    )

    learning_rate_schedule: Annotated[Literal["constant", "cosine"], Decides.TRAINING, UsedBy.TRAIN] = Field(
        "constant",
        title="Learning rate schedule",
        json_schema_extra=TRAINING,
        description="constant keeps the learning rate. cosine lets it fall to 0 by the end of the training, along half "
        "a cosine: mostly the better model, where the number of epochs is known.",
    )

    warmup_epochs: Annotated[float, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0.0,
        title="Warm-up",
        ge=0,
        allow_inf_nan=False,
        json_schema_extra=TRAINING,
        description="Epochs, or a part of one, in which the learning rate rises from 0 in a straight line: for large "
        "batches and high learning rates. Less than all epochs.",
    )

    weight_decay: Annotated[float, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0.0,
        title="Weight decay",
        ge=0,
        le=10,
        allow_inf_nan=False,
        json_schema_extra=TRAINING,
        description="How much of each weight a step takes away, times the learning rate (AdamW): against learning by "
        "heart, 0.05 for instance. Biases and normalization are left alone. 0: none.",
    )

    clip_norm: Annotated[float, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0.0,
        title="Largest gradient",
        ge=0,
        allow_inf_nan=False,
        json_schema_extra=TRAINING,
        description="Gradients of all weights together are shortened to this norm: for losses that jump, 1 for "
        "instance. 0: they are not.",
    )

    label_smoothing: Annotated[float, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0.0,
        title="Label smoothing",
        ge=0,
        lt=1,
        json_schema_extra=TRAINING,
        description="Share of a label that training spreads over all classes: against too much certainty and wrong "
        "labels, 0.1 for instance.",
    )

    class_weights: Annotated[Literal["none", "balanced"], Decides.TRAINING, UsedBy.TRAIN] = Field(
        "none",
        title="Class weights",
        json_schema_extra=TRAINING,
        description="balanced: each class counts equally in the loss, however many training images it has. Each image "
        "is still seen once an epoch. Not where images have several labels.",
    )

    precision: Annotated[Literal["float32", "mixed_bfloat16", "mixed_float16"], Decides.TRAINING, UsedBy.TRAIN] = Field(
        "float32",
        title="Precision",
        json_schema_extra=TRAINING,
        description="mixed_bfloat16 computes in 16 bits and keeps weights in 32: for GPUs since NVIDIA's A100. "
        "mixed_float16 (with loss scaling) for older ones with tensor cores. Slower on most CPUs.",
    )

    xla: Annotated[bool, Decides.TRAINING, UsedBy.TRAIN] = Field(
        False,
        title="XLA",
        json_schema_extra=TRAINING,
        description="Compile the step with XLA. Pays on a GPU in trainings of many minutes, for models of many small "
        "layers most; the first step takes up to a few minutes longer.",
    )

    freeze_epochs: Annotated[int, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0,
        title="Frozen epochs",
        ge=0,
        json_schema_extra=TRAINING,
        description="Of a model of keras.applications that starts from weights: epochs in which only its new head "
        "learns, before all of it does. 0: all of it learns from the start.",
    )

    finetune_rate: Annotated[float, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0.1,
        title="Fine-tuning rate",
        gt=0,
        le=1,
        json_schema_extra=TRAINING,
        description="The learning rate after the frozen epochs, as a share of what it would be.",
    )

    simulated_step_ms: Annotated[float, Decides.TRAINING, UsedBy.TRAIN] = Field(
        0.0,
        title="Simulated step (ms)",
        ge=0,
        le=60_000,
        allow_inf_nan=False,
        json_schema_extra=TRAINING,
        description="For benchmarks and planning: each step waits for this time instead of computing, as a host waits "
        "for an accelerator. The model learns nothing and is never promoted. 0: off.",
    )

    checkpoint_minutes: Annotated[float, Decides.NOTHING, UsedBy.TRAIN] = Field(
        10.0,
        title="Minutes between checkpoints",
        ge=0,
        allow_inf_nan=False,
        json_schema_extra=TRAINING,
        description="A checkpoint is written at the end of each epoch and when the training is asked to stop, and so "
        "many minutes after the last one: what a killed training does again at most. 0: not by time.",
    )

    checkpoint_steps: Annotated[int, Decides.NOTHING, UsedBy.TRAIN] = Field(
        0,
        title="Steps between checkpoints",
        ge=0,
        json_schema_extra=TRAINING,
        description="The same by training steps. 0: not by steps.",
    )

    checkpoints_kept: Annotated[int, Decides.NOTHING, UsedBy.TRAIN] = Field(
        3,
        title="Checkpoints kept",
        ge=1,
        le=100,
        json_schema_extra=TRAINING,
        description="Where the last one is damaged, training goes on from the one before.",
    )

    micro_batches: Annotated[int, Decides.NOTHING, UsedBy.TRAIN] = Field(
        1,
        title="Micro-batches",
        ge=1,
        le=65_536,
        json_schema_extra=TRAINING,
        description="Parts that each GPU takes its share of a batch in, one after another, for one update of the "
        "weights: so much less memory is needed. The share must be a multiple of it.",
    )

    on_out_of_memory: Annotated[Literal["halve", "fail"], Decides.NOTHING, UsedBy.TRAIN] = Field(
        "halve",
        title="Out of memory",
        json_schema_extra=TRAINING,
        description="halve goes on from the last checkpoint with micro-batches of half the size, again and again, down "
        "to one example: the batch size stays. fail stops the training.",
    )

    stall_minutes: Annotated[float, Decides.NOTHING, UsedBy.TRAIN] = Field(
        30.0,
        title="Minutes without a step",
        ge=0,
        allow_inf_nan=False,
        json_schema_extra=TRAINING,
        description="After so long without a step a training is taken for stuck: it says where, ends, and is tried "
        "again from its last checkpoint. Longer than the first step and the final export take. 0: never.",
    )

    callbacks: Annotated[str, Decides.TRAINING, UsedBy.TRAIN, AllowedBy.MODELS] = Field(
        "",
        title="Callbacks",
        max_length=MAX_TEXT,
        json_schema_extra=TRAINING,
        examples=["my_package.callbacks:make"],
        description="package.module:function of yours, which is called with a folder to write to (pathlib.Path) and "
        "returns a list of keras.callbacks.Callback: early stopping, for instance.",
    )

    promote: Annotated[Literal["if_not_worse", "always", "never"], Decides.NOTHING, UsedBy.TRAIN] = Field(
        "if_not_worse",
        title="Promote",
        json_schema_extra=PROMOTION,
        description="Whether the trained model becomes the champion of its data set name. if_not_worse compares its "
        "accuracy (of several labels an image: mean average precision) with that of the champion, on the same "
        "validation images, and refuses it where it is surely lower.",
    )

    max_worse: Annotated[float, Decides.NOTHING, UsedBy.TRAIN] = Field(
        0.0,
        title="Accepted loss",
        ge=0,
        le=1,
        json_schema_extra=PROMOTION,
        description="How much lower the accuracy may be and still be promoted, as a share: the whole 95% interval of "
        "the difference must lie lower for a refusal. 0.01 is one point.",
    )

    sample_hz: Annotated[float, Decides.NOTHING, UsedBy.TRAIN] = Field(
        5.0,
        title="Samples a second",
        ge=0.2,
        le=20,
        json_schema_extra=MONITORING,
        description="How often utilization is sampled.",
    )

    tensorboard: Annotated[bool, Decides.NOTHING, UsedBy.TRAIN] = Field(
        False,
        title="TensorBoard",
        json_schema_extra=MONITORING,
        description="Write the values of each epoch, and windows of all other metrics, for TensorBoard too, into "
        "tensorboard/ of the training.",
    )

    comet_project: Annotated[str, Decides.NOTHING, UsedBy.TRAIN] = Field(
        "tenfold",
        title="Comet project",
        # The length apart: \w{1,100} takes pydantic a third of all that importing a DAG may take.
        pattern=r"^[\w .-]+$",
        max_length=100,
        json_schema_extra=MONITORING,
        description="Project that the experiment is logged to.",
    )

    @field_validator("source_uri", "workspace", "publish_uri", "dataset")
    @classmethod
    def _place(cls, value: str) -> str:
        if re.match(r"gs(:/|//)", value, re.IGNORECASE) and not is_bucket(value):  # it would become a local folder
            raise ValueError("must be a local path or gs://bucket/prefix")
        return str(BucketPath.of(value)) if is_bucket(value) else _absolute(value, " or gs://bucket/prefix")

    @field_validator("list_encoding")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            return codecs.lookup(value).name
        except LookupError:
            raise ValueError("must be the name of an encoding, such as utf-8, latin-1 or cp1252") from None

    @field_validator("weights")
    @classmethod
    def _is_one_file(cls, value: str) -> str:
        if value and not value.endswith(WEIGHTS_SUFFIXES):  # a .weights.json names other files, wherever they lie
            raise ValueError(f"must end in {' or '.join(WEIGHTS_SUFFIXES)}")
        return value

    @field_validator("weights", "label_map", "local_folder")
    @classmethod
    def _local(cls, value: str) -> str:
        return _absolute(value, "")

    @model_validator(mode="after")
    def _large_enough(self) -> "Settings":
        least = SMALLEST_INPUT.get(self.model, 32)
        if self.image_size < least:
            raise ValueError(f"image_size must be at least {least} for {self.model}, got {self.image_size}")
        return self

    @model_validator(mode="after")
    def _can_be_kept(self) -> "Settings":
        if self.cache in ("memory", "disk") and self.crop == "random_resized":
            raise ValueError(
                f"cache must be auto or off with crop=random_resized, which reads whole images, got {self.cache!r}"
            )
        if self.cache in ("memory", "disk") and self.balanced:
            raise ValueError(
                f"cache must be auto or off with balanced, which takes other examples in each epoch, got {self.cache!r}"
            )
        return self

    @model_validator(mode="after")
    def _warm_in_time(self) -> "Settings":
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs must be less than epochs ({self.epochs}), got {self.warmup_epochs}")
        return self

    @model_validator(mode="after")
    def _balanced_once(self) -> "Settings":
        if self.balanced and self.class_weights == "balanced":
            raise ValueError(
                "class_weights must be none with balanced, which shows all classes equally often, got 'balanced'"
            )
        return self

    @model_validator(mode="after")
    def _can_be_frozen(self) -> "Settings":
        if self.freeze_epochs and not (self.weights and self.model in APPLICATIONS):
            raise ValueError(
                f"freeze_epochs must be 0 without weights of a model of keras.applications, got {self.freeze_epochs} "
                f"with model {self.model!r} and weights {self.weights!r}"
            )
        if self.freeze_epochs > self.epochs:
            raise ValueError(f"freeze_epochs must be at most epochs ({self.epochs}), got {self.freeze_epochs}")
        return self

    @field_validator("workspace")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value:
            raise ValueError("must name a folder")
        return value

    @field_validator("source_uri")
    @classmethod
    def _known_placeholders(cls, value: str) -> str:
        if unknown := dates.unknown_placeholder(value):
            raise ValueError(f"must hold none but {dates.PLACEHOLDERS}: {unknown} is not known")
        return value

    @field_validator("dataset_name")
    @classmethod
    def _named_after_source(cls, value: str, info: ValidationInfo) -> str:
        source_uri = info.data.get("source_uri")
        return value or (name_of_source(source_uri) if source_uri else "")

    @field_validator("data_date")
    @classmethod
    def _is_date(cls, value: str) -> str:
        return dates.check_data_date(value) if value else value

    @model_validator(mode="after")
    def _with_time(self) -> "Settings":
        if self.data_date and dates.has_no_time(self.data_date) and dates.needs_time(self.source_uri):
            raise ValueError(
                f"data_date must name a time too, such as {self.data_date}T07:00, since source_uri asks for it, "
                f"got {self.data_date!r}"
            )
        return self

    @field_validator("model")
    @classmethod
    def _is_a_model(cls, value: str) -> str:
        if value not in MODELS and not _FUNCTION.fullmatch(value):
            names = {name.lower(): name for name in MODELS}
            if close := difflib.get_close_matches(value.lower(), names, n=1):
                raise ValueError(f"must be a known model or package.module:function (did you mean {names[close[0]]}?)")
            raise ValueError(f"must be {', '.join(MODELS)} or package.module:function")
        return value

    @field_validator("callbacks")
    @classmethod
    def _is_a_function(cls, value: str) -> str:
        if value and not _FUNCTION.fullmatch(value):
            raise ValueError("must be package.module:function, or empty")
        return value

    @field_validator("source_kind")
    @classmethod
    def _is_a_kind(cls, value: str) -> str:
        if value not in ("auto", *source_kinds()):
            raise ValueError(f"must be auto, {' or '.join(source_kinds())}")
        return value

    @field_validator("group_pattern")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"must be a regular expression ({error})") from None
        return value

    @property
    def train_shards(self) -> int:
        """Ten training shards for each training server, unless `num_shards` says otherwise."""
        return self.num_shards or SHARDS_PER_SERVER * self.num_training_servers

    @property
    def source(self) -> Place:
        """Where the raw images lie, or their list."""
        return place_of(self.source_uri, self.user_project)

    @property
    def datasets_folder(self) -> Place:
        """Where versions are published: `publish_uri`, or `datasets` in the workspace."""
        return place_of(self.publish_uri) if self.publish_uri else place_of(self.workspace) / "datasets"

    def dated(self, run_date: datetime | None = None) -> "Settings":
        """These settings with the data date (that of the form, else of the run, else now in UTC) in the source's place.

        The data date of a source that asks for none stays as it is: its images are not those of a date.
        """
        if not dates.is_dated(self.source_uri):
            return self
        given = datetime.fromisoformat(self.data_date) if self.data_date else None
        moment = given or run_date or datetime.now(UTC)
        return self.model_copy(
            update={
                "data_date": dates.format_data_date(moment, self.source_uri),
                "source_uri": dates.fill(self.source_uri, moment),
            }
        )


def declared(kind: type[_Marker]) -> dict[str, _Marker]:
    """Return the declarations of one kind, by the name of the setting, in the order of the fields."""
    return {
        name: marker
        for name, field in Settings.model_fields.items()
        for marker in field.metadata
        if isinstance(marker, kind)
    }


def settings_that_decide(what: Decides) -> list[str]:
    """Return the names of the settings that decide a dataset, or a training."""
    return [name for name, decides in declared(Decides).items() if decides & what]


def settings_used_by(stages: UsedBy) -> list[str]:
    """Return the names of the settings that at least one of the stages uses."""
    return [name for name, users in declared(UsedBy).items() if users & stages]


def settings_in_fingerprint() -> list[str]:
    """Return the names of the settings whose values are in a dataset's fingerprint, in the order of `dataset.json`."""
    markers = declared(InFingerprint)
    return sorted(markers, key=lambda name: markers[name].position)


def _absolute(value: str, otherwise: str) -> str:
    if "://" in value:
        raise ValueError(f"must be a local path{otherwise}")
    return os.path.abspath(os.path.expanduser(value)) if value else value  # noqa: PTH100, PTH111 - keeps {date}


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
    _require_numbers(values)
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set takes field=value, got {assignment!r}")
        values[name.strip()] = value
    return settings_from(values, strict=False)


def _require_numbers(values: Mapping[str, Any]) -> None:
    """Refuse true and false as numbers. Pydantic would read them as 1 and 0, because a number may be given as text."""
    for name, value in values.items():
        field = Settings.model_fields.get(name)
        if field and isinstance(value, bool) and {int, float} & {field.annotation, *get_args(field.annotation)}:
            raise SettingsError(f"{name} must be a number, got {str(value).lower()}")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as {path.suffix or 'TOML'}: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must hold fields and values, got {type(values).__name__}")
    return values


def _sentence(problem: Any) -> str:
    field = _shown(".".join(str(part) for part in problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"{field} is not a setting: {_suggestion(field)}"
    message = problem["msg"].removeprefix("Value error, ")
    if not field:  # it names the fields that do not go together
        return str(message)
    message = message.removeprefix("Input should be ").replace("String should ", "must ")
    message = message if message.startswith("must") else f"must be {message}"
    return f"{field} {message}, got {_shown(repr(problem['input']))}"


def _shown(text: str) -> str:
    """Return the part of a text that an error message repeats. A task's log holds every message several times."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def _suggestion(field: str) -> str:
    close = difflib.get_close_matches(field, Settings.model_fields, n=1)
    return f"did you mean {close[0]}?" if close else f"the settings are {', '.join(Settings.model_fields)}"
