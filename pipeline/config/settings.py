"""The one configuration: Airflow's form, the command line, the task argument and the trainer's input.

Each field carries its documentation, its range and its section in the form, and declares what its value decides, which
stages use it, and which permission it needs. `Settings` refuses what it does not know.
"""

import codecs
import difflib
import json
import os
import pkgutil
import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from pipeline.config import data_date as dates
from pipeline.config.data_gate import settings_of_checks
from pipeline.config.dataset_name import PATTERN, RULE, name_of_source, name_of_table
from pipeline.config.declarations import (
    GATE,
    MONITORING,
    PLACES,
    PROMOTION,
    SHARDS,
    SOURCE,
    TRAINING,
    AllowedBy,
    ChangesAtEpoch,
    ChangesDataset,
    ChangesReading,
    ChangesStep,
    Decides,
    Fraction,
    InFingerprint,
    OnlyFor,
    UsedBy,
)
from pipeline.config.default_folders import default_local_folder, default_workspace
from pipeline.config.example_kinds import APPLICATIONS, IMAGES, KINDS, TABLE
from pipeline.config.text_values import ColumnTypes, Names, Texts
from pipeline.errors import SettingsError
from pipeline.storage import BucketPath, Place, is_bucket, place_of

SHARDS_PER_SERVER = 10
"""Each training server gets this many training shards, unless `num_shards` sets their number."""
MAX_TRAINED_EPOCHS = 10_000
"""The largest value of `epochs`."""
MAX_PREFETCHED = 1024
"""The largest value of `prefetch_batches`."""
MAX_BATCH_SIZE = 65_536
"""The largest value of `batch_size`."""
SMALLEST_INPUT = {"InceptionResNetV2": 75}
"""Smallest input of a model, in pixels, if Keras requires more than our own minimum of 32."""

MODELS = tuple(model for entry in KINDS.values() for model in entry.models)
"""The values of `model`, apart from a user's own function."""

PlaceText = Annotated[str, Field(max_length=4096)]
"""A path or an address. No file system or bucket accepts more characters."""

Text = Annotated[str, Field(max_length=1000)]

NamesText = Annotated[str, Field(max_length=100_000)]
"""Names of columns. A table may have thousands."""

MAX_SHOWN = 200
"""An error message repeats at most this many characters of a value."""

OPTIONS_OF_COMPARISON = ("contenders", "rounds", "accelerator", "measure_seconds")
"""These are options of one command (pipeline/tuning/options.py), and no settings."""

WEIGHTS_SUFFIXES = (".weights.h5", ".h5", ".keras")
"""A file that `weights` names has one of these suffixes."""

OTHER_FILES_OF_SOURCES = frozenset(
    {
        "box_forms",
        "cells",
        "compression",
        "container_formats",
        "container_index",
        "container_rows",
        "csv_quotes",
        "detection",
        "json_blocks",
        "kept_files",
        "key_range",
        "list_rows",
        "look",
        "samples",
        "sorted_rows",
        "split_names",
        "suffixes",
        "text_delimiter",
    }
)
"""Files of pipeline/sources that are no kind of source."""


def source_kinds() -> list[str]:
    """Return the names of the files in pipeline/sources, each of which is a kind of source."""
    # The files are not imported: the sources import this module.
    package = find_spec("pipeline.sources")
    folders = package.submodule_search_locations if package else None
    return sorted({module.name for module in pkgutil.iter_modules(folders)} - OTHER_FILES_OF_SOURCES)


_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
"""A function of the user is written as package.module:function."""


if TYPE_CHECKING:
    _ExampleKind = str
else:
    _ExampleKind = Literal[tuple(KINDS)]


_Marker = TypeVar(
    "_Marker",
    Decides,
    UsedBy,
    InFingerprint,
    ChangesAtEpoch,
    ChangesDataset,
    ChangesReading,
    ChangesStep,
    AllowedBy,
    OnlyFor,
)
_Flags = TypeVar("_Flags", Decides, UsedBy)
_Model = TypeVar("_Model", bound=BaseModel)


class _SettingsBeforeGate(BaseModel):
    """The settings that people set first, and those of places, sources and shards."""

    # Defaults are validated, too: they become absolute paths, and the name of the dataset follows from the source.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    source_uri: Annotated[PlaceText, Decides.DATASET, UsedBy.BUILD, AllowedBy.SOURCES] = Field(
        "",
        title="Source",
        examples=["/data/flowers", "gs://bucket/photos/{date}"],
        description="Folder of raw images, local or gs://bucket/prefix, with one sub-folder for each class, with or "
        "without train/, validation/ and test/ above them; or a list of images (CSV, JSON lines, Parquet), or "
        "zip, tar, Parquet or TFRecord files with the images in them, or the folder of Stanford Cars or ImageNet. "
        "For a table: a file of CSV, JSON lines, Parquet, Arrow or TFRecord, or a folder of such files. "
        "{date}, {year}, {month}, {day}, {hour} and {minute} are replaced by the data date of the run. "
        "If it is empty in the Airflow of `make up`, drawn sample images are used.",
    )

    example_kind: Annotated[_ExampleKind, Decides.DATASET, UsedBy.COMMAND_LINE, ChangesReading()] = Field(
        IMAGES,
        title="Kind of examples",
        description="images: the source is a folder or a list of images. table: each row of the source (CSV, "
        "JSON lines, Parquet, Arrow or TFRecord) is an example. Settings that only the other kind uses have no effect. "
        "A DAG sets the kind.",
    )

    # This field comes after source_uri, from which its default follows: Pydantic validates fields in their order.
    dataset_name: Annotated[str, Decides.DATASET, UsedBy.BUILD | UsedBy.TRAIN] = Field(
        "",
        title="Dataset name",
        pattern=f"^({PATTERN})?$",
        description="Versions of the dataset are stored under this name. If it is empty, the dataset gets the name of "
        "the folder of the images, such as flowers for /data/flowers/{date}, or of the table. The DAG retrain "
        "then uses the name of the dataset that is new.",
    )

    num_training_servers: Annotated[
        int, Decides.DATASET | Decides.TRAINING, UsedBy.BUILD | UsedBy.TRAIN, ChangesStep()
    ] = Field(
        1,
        title="Training servers",
        ge=1,
        le=1000,
        description="Processes that train one model together, each on a machine or on some of its GPUs. Each needs a "
        "slot of the pool gpu and a worker at the same time. Ten training shards are written for each.",
    )

    model: Annotated[Text, Decides.TRAINING, UsedBy.TRAIN, ChangesStep(), AllowedBy.MODELS] = Field(
        "",
        title="Model",
        examples=list(MODELS),
        description=f"For images: small_cnn, a model of keras.applications ({', '.join(APPLICATIONS)}), or your own "
        "package.module:function, which is called with the image size and the number of classes and "
        "returns a keras.Model. For a table: mlp, or your own function, which is called with the schema and the number "
        "of classes. Empty: small_cnn for images, and mlp for a table.",
    )

    epochs: Annotated[int | None, Decides.TRAINING, UsedBy.TRAIN] = Field(
        None,
        title="Epochs",
        ge=1,
        le=MAX_TRAINED_EPOCHS,
        description="Passes over the training examples. With patience, a training can end earlier. Empty: 10 for "
        "images. For a table, it follows from the number of rows.",
    )

    batch_size: Annotated[int | None, Decides.TRAINING, UsedBy.TRAIN, ChangesStep()] = Field(
        None,
        title="Batch size",
        ge=1,
        le=MAX_BATCH_SIZE,
        description="Examples in one training step, on all training servers and GPUs together. Empty: 32 for images. "
        "For a table, it follows from the number of rows: 1,024 for 200,000 rows.",
    )

    learning_rate: Annotated[float | None, Decides.TRAINING, UsedBy.TRAIN] = Field(
        None,
        title="Learning rate",
        gt=0,
        le=10,
        description="Step size of the Adam optimizer. With a warm-up or a schedule, this is the highest value. Empty: "
        "0.001 for images. For a table, it follows from the batch size.",
    )

    workspace: Annotated[PlaceText, Decides.NOTHING, UsedBy.BUILD | UsedBy.TRAIN, AllowedBy.WORKSPACES, PLACES] = Field(
        default_factory=default_workspace,
        title="Workspace",
        description="Folder that all workers can reach, local or gs://bucket/prefix: shards, plans, checkpoints and "
        "reports are kept there.",
    )

    publish_uri: Annotated[PlaceText, Decides.NOTHING, UsedBy.BUILD | UsedBy.TRAIN, AllowedBy.PUBLISH, PLACES] = Field(
        "",
        title="Publish to",
        description="Folder in which datasets are published, local or gs://bucket/prefix. Empty: `datasets` in the "
        "workspace.",
    )

    dataset: Annotated[
        PlaceText, Decides.NOTHING, UsedBy.COMMAND_LINE, AllowedBy.WORKSPACES | AllowedBy.PUBLISH, PLACES
    ] = Field(
        "",
        title="Published dataset",
        description="Folder of a published dataset, local or gs://bucket/prefix, for the command `tenfold train`.",
    )

    local_folder: Annotated[PlaceText, Decides.NOTHING, UsedBy.TRAIN, AllowedBy.WORKSPACES, PLACES] = Field(
        default_factory=default_local_folder,
        title="Local folder",
        description="Folder on each worker for local files of a training if the workspace is a bucket: its record and "
        "checkpoints, which are mirrored to the workspace, and copies of shards.",
    )

    cache_gigabytes: Annotated[PositiveFloat, Decides.NOTHING, UsedBy.TRAIN, PLACES] = Field(
        100.0,
        title="Shard cache size (GB)",
        description="Maximum size of the copies of shards in the local folder, in gigabytes. The copies that were not "
        "used for the longest time are removed first. A training is refused if the shards that it reads at the same "
        "time need more space.",
    )

    user_project: Annotated[Text, Decides.NOTHING, UsedBy.BUILD, PLACES] = Field(
        "",
        title="Billing project",
        description="Google Cloud project that pays for reading the images, if the bucket uses requester pays.",
    )

    data_date: Annotated[Text, Decides.DATASET, UsedBy.BUILD, PLACES] = Field(
        "",
        title="Data date",
        examples=["2026-01-31", "2026-01-31T07:00"],
        description="Date for {date}, {hour} and so on in the source. A time is in UTC. Empty: the date of the run.",
    )

    source_kind: Annotated[Text, Decides.DATASET, UsedBy.BUILD, OnlyFor(IMAGES), SOURCE] = Field(
        "auto",
        title="Source format",
        json_schema_extra={"enum": ["auto", *source_kinds()]},
        description="Format of the source: the name of a file in pipeline/sources. auto detects the format.",
    )

    key_column: Annotated[Text, Decides.DATASET, UsedBy.BUILD, OnlyFor(TABLE), SOURCE] = Field(
        "",
        title="Key column",
        description="In a table: the column that identifies a row. Its value decides the split. Empty: the content of "
        "the row decides.",
    )

    columns: Annotated[NamesText, Decides.DATASET, UsedBy.BUILD, ChangesReading(), OnlyFor(TABLE), SOURCE] = Field(
        "",
        title="Columns",
        examples=["age,income,geo.*"],
        description="In a table: names of the columns to read, separated by commas, or patterns: * stands for any "
        "characters, ? for one character, and [ab] for one of a and b. A field of a struct has a name such as geo.lat. "
        "The columns that other settings name, such as the label, are always read. Empty: all columns.",
    )

    drop_columns: Annotated[NamesText, Decides.DATASET, UsedBy.BUILD, ChangesReading(), OnlyFor(TABLE), SOURCE] = Field(
        "",
        title="Columns to leave out",
        examples=["internal_*,comment"],
        description="In a table: names or patterns of columns that are not read, in the same form. A pattern never "
        "leaves out a column that another setting names.",
    )

    table_task: Annotated[
        Literal["auto", "classification", "regression"], Decides.DATASET, UsedBy.BUILD, OnlyFor(TABLE), SOURCE
    ] = Field(
        "auto",
        title="Task",
        description="What is learned from a table: a class or a number. auto: a class if the label is a text, a truth "
        "value or a whole number with at most 20 different values, else a number. 1.0 is a whole number, too.",
    )

    path_column: Annotated[Text, Decides.DATASET, UsedBy.BUILD, OnlyFor(IMAGES), SOURCE] = Field(
        "",
        title="Path column",
        description="In a list: the column of image paths, relative to the folder of the list. Empty: path, image, "
        "file, filename, file_name, image_path or uri. In Parquet or TFRecord files with images: the column of "
        "the images.",
    )

    label_column: Annotated[Text, Decides.DATASET, UsedBy.BUILD, SOURCE] = Field(
        "",
        title="Label column",
        description="In a list: the column of labels; several labels of an image are separated by |. Empty: label, "
        "class, category, labels or cls. In Parquet or TFRecord files with images: the column of labels. In zip or tar "
        "files: the field of the JSON files beside the images, or the suffix of the files with the labels (cls, json "
        "or txt). In a table: the column to learn.",
    )

    split_column: Annotated[Text, Decides.DATASET, UsedBy.BUILD, SOURCE] = Field(
        "",
        title="Split column",
        description="In a list, in a table, or in Parquet or TFRecord files with images: the column that holds train, "
        "validation or test. In zip or tar files: the field of the JSON files beside the images. Empty: split, if "
        "it exists; in a table, the names of the files or of their folders, if all of them name a split.",
    )

    group_column: Annotated[Text, Decides.DATASET, UsedBy.BUILD, SOURCE] = Field(
        "",
        title="Group column",
        description="In a list, a table, or Parquet or TFRecord files: examples of one group (a person, a scene) stay "
        "on one side of the split. In zip or tar files: the field of the JSON files beside the images. Empty: group, "
        "if it exists; in a table, none.",
    )

    list_encoding: Annotated[Text, Decides.DATASET, UsedBy.BUILD, SOURCE] = Field(
        "utf-8",
        title="List encoding",
        examples=["utf-8", "latin-1", "cp1252", "utf-16"],
        description="Text encoding of a list or table in CSV or TSV.",
    )

    csv_delimiter: Annotated[str, Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(TABLE), SOURCE] = Field(
        "",
        title="CSV delimiter",
        max_length=3,
        examples=[";", "tab"],
        description="In a table of CSV: the character between two fields, or tab. Empty: a comma, or a "
        "tab for .tsv. For .txt, the first two lines decide.",
    )

    csv_columns: Annotated[Names, Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(TABLE), SOURCE] = Field(
        [],
        title="CSV columns",
        examples=[["age", "income", "churn"]],
        description="In a table of CSV without a header: the names of all columns. Empty: the first line has them.",
    )

    csv_skip_lines: Annotated[int, Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(TABLE), SOURCE] = Field(
        0,
        title="CSV lines to skip",
        ge=0,
        le=10_000,
        description="In a table of CSV: number of lines before the header, such as comments.",
    )

    decimal_comma: Annotated[bool, Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(TABLE), SOURCE] = Field(
        False,
        title="Decimal comma",
        description="In a table: texts such as 1,5 are numbers, and texts such as 1.5 are none.",
    )

    missing_values: Annotated[Texts, Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(TABLE), SOURCE] = Field(
        ["NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A", "?"],
        title="Missing values",
        description="In a table: texts that mean a missing value. They apply to a column of CSV whose other texts are "
        "numbers, dates, times or truth values, and to the label. In other columns of texts, NA may be a continent. An "
        "empty field is missing in any case.",
    )

    strip_texts: Annotated[bool, Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(TABLE), SOURCE] = Field(
        False,
        title="Strip texts",
        description="In a table: remove the blanks around texts. Blanks around numbers, dates, times and truth values "
        "never count.",
    )

    column_types: Annotated[ColumnTypes, Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(TABLE), SOURCE] = (
        Field(
            {},
            title="Column types",
            examples=[{"zip": "string", "date": "date:%d.%m.%Y"}],
            description="In a table: the type of each column that is not to be inferred (int, float, bool, string, "
            "date or time), by its name or a pattern such as code_*. A name comes before a pattern, and a pattern "
            "before those after it. date and time may have a format of Python's strptime. A row with another value is "
            "rejected.",
        )
    )

    group_pattern: Annotated[Text, Decides.DATASET, UsedBy.BUILD, OnlyFor(IMAGES), SOURCE] = Field(
        "",
        title="Group pattern",
        examples=[r"^(.+?)_\d+$"],
        description="Regular expression for the file name without its suffix. Images with the same first group (or the "
        "same match) stay on one side of the split. Empty: only equal images do.",
    )

    label_map: Annotated[PlaceText, Decides.DATASET, UsedBy.BUILD, AllowedBy.SOURCES, SOURCE] = Field(
        "",
        title="Label map",
        description="File with one label in each line. The first has id 0. Empty: each new label of a dataset name "
        "gets the next id, and ids never change.",
    )

    crop_to_box: Annotated[
        bool, Decides.DATASET, UsedBy.BUILD, ChangesReading(), InFingerprint(), OnlyFor(IMAGES), SOURCE
    ] = Field(
        False,
        title="Crop to bounding box",
        description="Crop each image to its bounding box, if the source has one.",
    )

    num_shards: Annotated[int | None, Decides.DATASET, UsedBy.BUILD, SHARDS] = Field(
        None,
        title="Training shards",
        ge=1,
        le=1_000_000,
        description="Number of training shards. Empty: ten for each training server.",
    )

    shards_per_task: Annotated[int | None, Decides.NOTHING, UsedBy.BUILD, SHARDS] = Field(
        None,
        title="Shards per task",
        ge=1,
        le=10_000,
        description="Number of shards that one mapped Airflow task writes. Empty: 5, and the task that lists a small "
        "dataset (up to 1,000 images or 50,000 rows, and 128 MiB) also writes it.",
    )

    engine: Annotated[Literal["local", "spark", "beam"], Decides.NOTHING, UsedBy.BUILD, SHARDS] = Field(
        "local",
        title="Engine",
        description="Program that writes the shards. local: all cores of this machine on the command line, and mapped "
        "tasks in a DAG, on the workers of Airflow. spark: Apache Spark, on this machine or on a cluster. beam: Apache "
        "Beam, on this machine or on Dataflow. A comparison of inputs always uses local.",
    )

    validation_fraction: Annotated[float, Decides.DATASET, UsedBy.BUILD, InFingerprint(), SHARDS] = Field(
        0.2,
        title="Validation fraction",
        ge=0.01,
        le=0.9,
        description="Share of the examples for validation, if the source has no validation split.",
    )

    test_fraction: Annotated[float, Decides.DATASET, UsedBy.BUILD, InFingerprint(), SHARDS] = Field(
        0.0,
        title="Test fraction",
        ge=0,
        le=0.9,
        description="Share of the examples for a test split, on which the best model is evaluated and compared with "
        "the champion. They are taken from the training examples. 0: no test split, unless the source has one. If it "
        "has one, this must be 0.",
    )

    split_seed: Annotated[int, Decides.DATASET, UsedBy.BUILD, InFingerprint(), SHARDS] = Field(
        0,
        title="Split seed",
        ge=0,
        lt=2**31,
        description="Decides which examples are used for validation and test, and the order of the examples in the "
        "shards. Another value makes another version. Use the same value for all dates of a dataset name.",
    )

    max_megapixels: Annotated[
        float, Decides.DATASET, UsedBy.BUILD, ChangesReading(), InFingerprint(), OnlyFor(IMAGES), SHARDS
    ] = Field(
        50.0,
        title="Maximum image size (megapixels)",
        gt=0,
        le=2000,
        description="An image with more megapixels is rejected when its header is read, before it can fill the memory.",
    )

    max_file_megabytes: Annotated[float, Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(IMAGES), SHARDS] = (
        Field(
            256.0,
            title="Maximum file size (MB)",
            gt=0,
            le=2000,  # A record cannot hold more.
            description="Larger files are rejected without being read.",
        )
    )

    check: Annotated[
        Literal["strict", "header"], Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(IMAGES), SHARDS
    ] = Field(
        "strict",
        title="Image check",
        description="strict decodes every image completely. header only checks the structure of JPEG and PNG files "
        "that need no change, for collections without damaged files.",
    )

    prepare: Annotated[
        Literal["keep", "resize", "raw"],
        Decides.DATASET,
        UsedBy.BUILD,
        ChangesReading(),
        ChangesDataset(),
        InFingerprint(),
        OnlyFor(IMAGES),
        SHARDS,
    ] = Field(
        "keep",
        title="Image preparation",
        description="keep leaves images as they are. resize shrinks them once to prepare_size, so that each "
        "epoch decodes fewer pixels. raw also stores pixels (uint8), so that nothing is decoded; this takes more disk "
        "space.",
    )

    prepare_size: Annotated[
        int,
        Decides.DATASET,
        UsedBy.BUILD,
        ChangesReading(),
        ChangesDataset(),
        InFingerprint(),
        OnlyFor(IMAGES),
        SHARDS,
    ] = Field(
        256,
        title="Prepared image size",
        ge=16,
        le=4096,
        description="Shorter side of prepared images in pixels. Smaller images are not resized.",
    )

    feature_keys: Annotated[
        Literal["model_garden", "plain"], Decides.DATASET, UsedBy.BUILD, OnlyFor(IMAGES), SHARDS
    ] = Field(
        "model_garden",
        title="Feature keys",
        description="Names in a record: model_garden writes image/encoded, image/class/label and so on; plain writes "
        "image, height, width, channels, class (the id) and label (the name).",
    )

    label_offset: Annotated[int | None, Decides.DATASET, UsedBy.BUILD, OnlyFor(IMAGES), SHARDS] = Field(
        None,
        title="Label offset",
        ge=0,
        le=1,
        description="Id of the first label in the records. Empty: 1 for the ImageNet layout, as in the Model Garden, "
        "and 0 for others.",
    )

    compression: Annotated[
        Literal["none", "gzip"], Decides.DATASET, UsedBy.BUILD, ChangesReading(), ChangesDataset(), SHARDS
    ] = Field(
        "none",
        title="Compression",
        description="gzip makes shards of raw pixels smaller. It hardly helps with encoded images.",
    )


# A form lists the settings in the order of their declaration, so those of the checks are inserted here.
if TYPE_CHECKING:
    _SettingsToGate = _SettingsBeforeGate
else:
    _SettingsToGate = create_model("_SettingsToGate", __base__=_SettingsBeforeGate, **settings_of_checks())


class Settings(_SettingsToGate):
    """All settings of a run. Immutable; `settings_from` makes it and explains what is wrong.

    The annotation of each field holds one `Decides`, one `UsedBy`, and the section of the form, if it is in one.
    """

    near_duplicates: Annotated[bool, Decides.DATASET, UsedBy.BUILD, InFingerprint(), OnlyFor(IMAGES), GATE] = Field(
        False,
        title="Near-duplicate detection",
        description="Also search for images that look alike (perceptual hash), not only for equal images.",
    )

    ask_hours: Annotated[float, Decides.NOTHING, UsedBy.BUILD, GATE] = Field(
        24.0,
        title="Approval timeout (hours)",
        gt=0,
        # `tenfold clean` keeps the files of a build that waits for a week.
        le=144,
        description="How long an Airflow run waits for a person's answer (ask) before it fails.",
    )

    window: Annotated[int, Decides.DATASET, UsedBy.RETRAIN, TRAINING] = Field(
        1,
        title="Window (partitions)",
        ge=1,
        le=1000,
        description="Number of the newest partitions (dates) of a dataset name that a retraining uses as one dataset.",
    )

    image_size: Annotated[int, Decides.TRAINING, UsedBy.TRAIN, ChangesStep(), OnlyFor(IMAGES), TRAINING] = Field(
        96,
        title="Image size",
        ge=32,
        le=2048,
        description="Side of the square input of the model, in pixels.",
    )

    seed: Annotated[int, Decides.TRAINING, UsedBy.TRAIN, TRAINING] = Field(
        0,
        title="Training seed",
        ge=0,
        lt=2**31,
        description="Decides the initial weights, and the shuffling and augmentation of the training examples. Another "
        "value makes another training on the same dataset.",
    )

    weights: Annotated[PlaceText, Decides.TRAINING, UsedBy.TRAIN, AllowedBy.SOURCES, OnlyFor(IMAGES), TRAINING] = Field(
        "",
        title="Pretrained weights",
        description="Local file (.weights.h5 or .keras) that the model starts from. Empty: random weights; "
        "nothing is downloaded.",
    )

    continues: Annotated[PlaceText, Decides.TRAINING, UsedBy.TRAIN, AllowedBy.WORKSPACES, TRAINING] = Field(
        "",
        title="Training to continue",
        description="Folder of a training under way on equal numbers of examples, in the same workspace. It ends after "
        "its next epoch, and this training continues with its weights and its optimizer. `tenfold apply` and the tab "
        "Training set it. Empty: a training that starts with its first epoch.",
    )

    shuffle_megabytes: Annotated[int, Decides.TRAINING, UsedBy.TRAIN, ChangesReading(), ChangesAtEpoch(), TRAINING] = (
        Field(
            128,
            title="Shuffle buffer (MB)",
            ge=1,
            le=65_536,
            description="Memory of the shuffle buffer, in megabytes of encoded examples. Each example counts with the "
            "350 bytes that TensorFlow needs beside its content.",
        )
    )

    crop: Annotated[
        Literal["random", "random_resized", "whole"],
        Decides.TRAINING,
        UsedBy.TRAIN,
        ChangesReading(),
        OnlyFor(IMAGES),
        TRAINING,
    ] = Field(
        "random",
        title="Training crop",
        description="The part of an image that training sees. random: a square of 7/8 of the shorter side at a "
        "random place, without resampling if the images were prepared for it (a prepare_size of 256 for an "
        "image_size of 224). random_resized: a crop of random size, shape and place, as in training on ImageNet "
        "from scratch. whole: the whole image, squeezed into a square.",
    )

    min_crop_area: Annotated[float, Decides.TRAINING, UsedBy.TRAIN, ChangesReading(), OnlyFor(IMAGES), TRAINING] = (
        Field(
            0.25,
            title="Minimum crop area",
            gt=0,
            le=1,
            description="Smallest area of a crop with crop=random_resized, as a share of the image. 0.08 is common for "
            "ImageNet.",
        )
    )

    flip: Annotated[bool, Decides.TRAINING, UsedBy.TRAIN, ChangesReading(), OnlyFor(IMAGES), TRAINING] = Field(
        True, title="Horizontal flip", description="Mirror half of the training images."
    )

    color_jitter: Annotated[Fraction, Decides.TRAINING, UsedBy.TRAIN, ChangesReading(), OnlyFor(IMAGES), TRAINING] = (
        Field(
            0.0,
            title="Color jitter",
            description="Largest random change of brightness, contrast and saturation of training images, on the "
            "accelerator. 0.4 means up to 40%.",
        )
    )

    balanced: Annotated[bool, Decides.TRAINING, UsedBy.TRAIN, ChangesReading(), TRAINING] = Field(
        False,
        title="Class-balanced sampling",
        description="Show all classes equally often: examples of rare classes several times in an epoch, and of "
        "frequent classes not in every epoch. Not for images with several labels, and not for tables.",
    )

    cache: Annotated[
        Literal["auto", "memory", "disk", "off"],
        Decides.TRAINING,
        UsedBy.TRAIN,
        ChangesReading(),
        ChangesAtEpoch(),
        OnlyFor(IMAGES),
        TRAINING,
    ] = Field(
        "auto",
        title="Image cache",
        description="Keep decoded images for the epochs after the first: in memory, or on disk in the local folder. "
        "auto: in memory, if they fit into half of the free memory and the crop allows it (random and whole do).",
    )

    prefetch_batches: Annotated[int, Decides.NOTHING, UsedBy.TRAIN, ChangesReading(), ChangesAtEpoch(), TRAINING] = (
        Field(
            4,
            title="Prefetched batches",
            ge=1,
            le=MAX_PREFETCHED,
            description="Number of batches that each server keeps ready. More batches bridge longer pauses of the "
            "input but need more memory.",
        )
    )

    server_wait_minutes: Annotated[float, Decides.NOTHING, UsedBy.TRAIN, TRAINING] = Field(
        15.0,
        title="Server timeout (minutes)",
        gt=0,
        le=10_080,
        description="How long a training server waits for the others, and for GPUs that other trainings use, before "
        "it fails and says what is missing.",
    )

    gpus_per_server: Annotated[int, Decides.NOTHING, UsedBy.TRAIN, ChangesStep(), TRAINING] = Field(
        0,
        title="GPUs per server",
        ge=0,
        le=1000,
        description="GPUs that each training server takes for itself. No other training uses them until it ends. "
        "0: all GPUs that it sees. Servers on one machine then divide them evenly.",
    )

    patience: Annotated[int | None, Decides.TRAINING, UsedBy.TRAIN, TRAINING] = Field(
        None,
        title="Patience (epochs)",
        ge=0,
        le=10_000,
        description="The training ends if this many epochs in a row are not better in validation than the best epoch "
        "before them. The model of the best epoch is kept. 0: the training takes all epochs. Empty: 0 for images. For "
        "a table, it follows from the number of epochs.",
    )

    learning_rate_schedule: Annotated[
        Literal["auto", "constant", "cosine"], Decides.TRAINING, UsedBy.TRAIN, TRAINING
    ] = Field(
        "auto",
        title="Learning rate schedule",
        description="constant keeps the learning rate. cosine lowers it to 0 until the end of the training, along "
        "half a cosine, which usually gives a better model if the number of epochs is known. auto: constant for "
        "images, and cosine for a table.",
    )

    warmup_epochs: Annotated[NonNegativeFloat, Decides.TRAINING, UsedBy.TRAIN, TRAINING] = Field(
        0.0,
        title="Warm-up epochs",
        description="Epochs, or a part of one, in which the learning rate rises linearly from 0, for large batches and "
        "high learning rates. It must be less than the number of epochs.",
    )

    weight_decay: Annotated[float | None, Decides.TRAINING, UsedBy.TRAIN, TRAINING] = Field(
        None,
        title="Weight decay",
        ge=0,
        le=10,
        description="Share of each weight that a step removes, times the learning rate (AdamW), against overfitting. "
        "A common value is 0.05. Biases and normalization are excluded. 0: none. Empty: 0 for images, and 0.05 for a "
        "table.",
    )

    clip_norm: Annotated[NonNegativeFloat, Decides.TRAINING, UsedBy.TRAIN, TRAINING] = Field(
        0.0,
        title="Gradient clipping norm",
        description="Clips the norm of all gradients together to this value, if the loss jumps. A common value is 1. "
        "0: no clipping.",
    )

    label_smoothing: Annotated[float, Decides.TRAINING, UsedBy.TRAIN, TRAINING] = Field(
        0.0,
        title="Label smoothing",
        ge=0,
        lt=1,
        description="Share of a label that training spreads over all classes, against overconfidence and wrong "
        "labels. A common value is 0.1.",
    )

    loss: Annotated[Text, Decides.TRAINING, UsedBy.TRAIN, AllowedBy.MODELS, TRAINING] = Field(
        "",
        title="Loss",
        examples=["my_package.losses:focal"],
        description="Your own package.module:function, which is called with the labels and logits of a batch and "
        "returns the loss of each example. Empty: the cross-entropy, or for a regression the squared error, which the "
        "validation always reports.",
    )

    class_weights: Annotated[Literal["none", "balanced"], Decides.TRAINING, UsedBy.TRAIN, TRAINING] = Field(
        "none",
        title="Class weights",
        description="balanced: each class counts equally in the loss, whatever its number of training examples. "
        "Each example is still seen once in an epoch. Not for images with several labels, and not for a regression.",
    )

    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"], Decides.TRAINING, UsedBy.TRAIN, ChangesStep(), TRAINING
    ] = Field(
        "float32",
        title="Numeric precision",
        description="mixed_bfloat16 computes in 16 bits and keeps weights in 32. Choose it on NVIDIA's GPUs with "
        "compute capability 8.0 or more (A100, RTX 30, L4, H100 and later). mixed_float16 (with loss scaling) is for "
        "older ones with tensor cores. Both are slower on most CPUs.",
    )

    xla: Annotated[bool, Decides.TRAINING, UsedBy.TRAIN, ChangesStep(), TRAINING] = Field(
        False,
        title="XLA compilation",
        description="Compile the step with XLA; with several GPUs, the part of each. Choose it for long trainings on a "
        "GPU with compute capability 8.0 or more (A100, RTX 30, L4, H100 and later), most of all for models with many "
        "small layers. The first step takes up to a few minutes longer.",
    )

    freeze_epochs: Annotated[
        NonNegativeInt, Decides.TRAINING, UsedBy.TRAIN, ChangesStep(), OnlyFor(IMAGES), TRAINING
    ] = Field(
        0,
        title="Frozen epochs",
        description="For a model of keras.applications that starts from weights: epochs in which only its new head "
        "learns. 0: the whole model learns from the start.",
    )

    finetune_rate: Annotated[float, Decides.TRAINING, UsedBy.TRAIN, TRAINING] = Field(
        0.1,
        title="Fine-tuning rate factor",
        gt=0,
        le=1,
        description="The learning rate after the frozen epochs, as a share of the learning rate without them.",
    )

    simulated_step_ms: Annotated[float, Decides.TRAINING, UsedBy.TRAIN, ChangesStep(), TRAINING] = Field(
        0.0,
        title="Simulated step time (ms)",
        ge=0,
        le=60_000,
        description="For benchmarks and planning: each step waits this long instead of computing, like a host that "
        "waits for an accelerator. The model learns nothing and is never promoted. 0: off.",
    )

    checkpoint_minutes: Annotated[NonNegativeFloat, Decides.NOTHING, UsedBy.TRAIN, ChangesAtEpoch(), TRAINING] = Field(
        10.0,
        title="Checkpoint interval (minutes)",
        description="A checkpoint is written at the end of each epoch, when the training is asked to stop, and this "
        "many minutes after the last checkpoint. A killed training repeats at most this time. 0: no "
        "checkpoints by time.",
    )

    checkpoint_steps: Annotated[NonNegativeInt, Decides.NOTHING, UsedBy.TRAIN, ChangesAtEpoch(), TRAINING] = Field(
        0,
        title="Checkpoint interval (steps)",
        description="A checkpoint is also written this many training steps after the last one. 0: no checkpoints by "
        "steps.",
    )

    micro_batches: Annotated[int, Decides.NOTHING, UsedBy.TRAIN, ChangesStep(), TRAINING] = Field(
        1,
        title="Micro-batches",
        ge=1,
        le=65_536,
        description="Number of parts into which each GPU splits its share of a batch. All parts together make one "
        "update of the weights. More parts need less memory. The share must be a multiple of this number.",
    )

    stall_minutes: Annotated[NonNegativeFloat, Decides.NOTHING, UsedBy.TRAIN, TRAINING] = Field(
        30.0,
        title="Stall timeout (minutes)",
        description="A training without a step for this time counts as stuck. It logs what each of its threads is "
        "doing, ends, and is tried again from its last checkpoint. This must be longer than the first "
        "step and the final export. 0: never.",
    )

    callbacks: Annotated[Text, Decides.TRAINING, UsedBy.TRAIN, ChangesReading(), AllowedBy.MODELS, TRAINING] = Field(
        "",
        title="Keras callbacks",
        examples=["my_package.callbacks:make"],
        description="Your own package.module:function, which is called with a folder to write to (pathlib.Path) and "
        "returns a list of keras.callbacks.Callback, for example for early stopping.",
    )

    promote: Annotated[
        Literal["if_not_worse", "unless_surely_worse", "always", "never"], Decides.NOTHING, UsedBy.TRAIN, PROMOTION
    ] = Field(
        "if_not_worse",
        title="Promotion",
        description="Whether the trained model becomes the champion of its dataset name. if_not_worse promotes it if "
        "its accuracy (for images with several labels: mean average precision; for tables: log loss, or the mean "
        "absolute error) is not worse than that of the champion, and of the best champion so far, on the same "
        "examples. unless_surely_worse refuses it only if the whole 95% interval of the difference from the champion "
        "is worse. A first model must surely beat the baseline. Otherwise, only a person promotes it. always and never "
        "compare nothing.",
    )

    max_worse: Annotated[Fraction, Decides.NOTHING, UsedBy.TRAIN, PROMOTION] = Field(
        0.0,
        title="Maximum loss of quality",
        description="How much worse than each of these champions a model may be. if_not_worse applies it to the "
        "difference, unless_surely_worse to the whole interval. For images, this is a drop in accuracy: 0.01 is one "
        "percentage point. For tables, it is a share of the champion's error: 0.01 is one percent.",
    )

    advice: Annotated[Literal["off", "show", "apply"], Decides.NOTHING, UsedBy.TRAIN, MONITORING] = Field(
        "show",
        title="Advice",
        description="show: predict what would make the training faster, and show it. A person can then apply a change "
        "from the next epoch on, or by a new dataset on which the training is continued. apply: the best change is "
        "also made without a person. off: predict nothing, and take no changes.",
    )

    tensorboard: Annotated[bool, Decides.NOTHING, UsedBy.TRAIN, MONITORING] = Field(
        False,
        title="TensorBoard",
        description="Also write the values of each epoch, and aggregates of all other metrics, for TensorBoard, into "
        "tensorboard/ of the training.",
    )

    comet_project: Annotated[str, Decides.NOTHING, UsedBy.TRAIN, MONITORING] = Field(
        "tenfold",
        title="Comet project",
        # The length is a separate limit: \w{1,100} takes pydantic a third of the time that importing a DAG may take.
        pattern=r"^[\w .-]+$",
        max_length=100,
        description="Comet project to which the training is logged.",
    )

    @field_validator("source_uri", "workspace", "publish_uri", "dataset", "continues")
    @classmethod
    def _absolute_place(cls, value: str) -> str:
        # A mistyped address, such as gs:/bucket or GS://bucket, would become a local folder.
        if re.match(r"gs(:/|//)", value, re.IGNORECASE) and not is_bucket(value):
            raise ValueError("must be a local path or gs://bucket/prefix")
        return str(BucketPath.of(value)) if is_bucket(value) else _absolute(value, " or gs://bucket/prefix")

    @field_validator("list_encoding")
    @classmethod
    def _check_encoding(cls, value: str) -> str:
        try:
            # Names have one form: `UTF8` and `utf-8` are the same encoding, and the list reader compares with "utf-8".
            return codecs.lookup(value).name
        except LookupError:
            raise ValueError("must be the name of an encoding, such as utf-8, latin-1 or cp1252") from None

    @field_validator("csv_delimiter")
    @classmethod
    def _check_delimiter(cls, value: str) -> str:
        delimiter = "\t" if value in ("tab", "\\t") else value
        is_special = delimiter.isalnum() or delimiter in ('"', "\r", "\n")
        if len(delimiter) > 1 or is_special or not delimiter.isascii():
            raise ValueError("must be one character of ASCII that is no letter, digit, quote or line break, or tab")
        return delimiter

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, value: str) -> str:
        # A .weights.json file names other files, which may be anywhere.
        if value and not value.endswith(WEIGHTS_SUFFIXES):
            raise ValueError(f"must end in {' or '.join(WEIGHTS_SUFFIXES)}")
        return value

    @field_validator("weights", "label_map", "local_folder")
    @classmethod
    def _absolute_local(cls, value: str) -> str:
        return _absolute(value, "")

    @field_validator("workspace")
    @classmethod
    def _check_workspace(cls, value: str) -> str:
        if not value:
            raise ValueError("must name a folder")
        return value

    @field_validator("source_uri")
    @classmethod
    def _check_placeholders(cls, value: str) -> str:
        if unknown := dates.unknown_placeholder(value):
            raise ValueError(f"must have no placeholders except {dates.PLACEHOLDERS}, and {unknown} is not one of them")
        return value

    @field_validator("dataset_name")
    @classmethod
    def _default_dataset_name(cls, value: str, info: ValidationInfo) -> str:
        # Pydantic validates the fields in their order. The source is missing here if it was refused.
        source_uri = info.data.get("source_uri")
        if value or not source_uri:
            return value
        # Images get the name of the folder of their list. A table gets the name of its own file.
        return name_of_table(source_uri) if info.data.get("example_kind") == "table" else name_of_source(source_uri)

    @field_validator("data_date")
    @classmethod
    def _check_data_date(cls, value: str) -> str:
        return dates.check_data_date(value) if value else value

    @model_validator(mode="after")
    def _check_combinations(self) -> "Settings":
        min_size = SMALLEST_INPUT.get(self.model, 32)
        if self.image_size < min_size:
            raise ValueError(f"image_size must be at least {min_size} for {self.model}, got {self.image_size}")
        if self.cache in ("memory", "disk") and self.crop == "random_resized":
            raise ValueError(
                f"cache must be auto or off with crop=random_resized, which needs whole images, got {self.cache!r}"
            )
        if self.cache in ("memory", "disk") and self.balanced:
            raise ValueError(
                "cache must be auto or off with balanced, which selects other examples in each epoch, got "
                f"{self.cache!r}"
            )
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"test_fraction must be less than 1 - validation_fraction ({self.validation_fraction:g}), because the "
                f"other examples are for training, got {self.test_fraction:g}"
            )
        # Epochs that follow from the examples are checked when they are known.
        if self.epochs is not None and self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs must be less than epochs ({self.epochs}), got {self.warmup_epochs}")
        if self.balanced and self.class_weights == "balanced":
            raise ValueError(
                "class_weights must be none with balanced, which shows all classes equally often, got 'balanced'"
            )
        if self.loss and (self.label_smoothing or self.class_weights != "none"):
            raise ValueError(
                "loss must be empty with label_smoothing or class_weights, which change the cross-entropy, got "
                f"{self.loss!r}: do the same in your function"
            )
        if self.freeze_epochs and not (self.weights and self.model in APPLICATIONS):
            model = f"model {self.model!r}" if self.model else "the default model"
            raise ValueError(
                "freeze_epochs must be 0, unless model is one of keras.applications and weights is set, got "
                f"{self.freeze_epochs} with {model} and weights {self.weights!r}"
            )
        if self.epochs is not None and self.freeze_epochs > self.epochs:
            raise ValueError(f"freeze_epochs must be at most epochs ({self.epochs}), got {self.freeze_epochs}")
        if self.data_date and dates.has_no_time(self.data_date) and dates.needs_time(self.source_uri):
            raise ValueError(
                f"data_date must have a time, such as {self.data_date}T07:00, because source_uri has a placeholder for "
                f"it, got {self.data_date!r}"
            )
        return self

    @field_validator("model")
    @classmethod
    def _check_model(cls, value: str) -> str:
        if value and value not in MODELS and not _FUNCTION.fullmatch(value):
            names = {name.lower(): name for name in MODELS}
            if close := difflib.get_close_matches(value.lower(), names, n=1):
                raise ValueError(f"must be a known model or package.module:function (did you mean {names[close[0]]}?)")
            raise ValueError(f"must be {', '.join(MODELS)} or package.module:function")
        return value

    @field_validator("callbacks", "loss")
    @classmethod
    def _check_function(cls, value: str) -> str:
        if value and not _FUNCTION.fullmatch(value):
            raise ValueError("must be package.module:function, or empty")
        return value

    @field_validator("source_kind")
    @classmethod
    def _check_source_kind(cls, value: str) -> str:
        if value not in ("auto", *source_kinds()):
            raise ValueError(f"must be auto, {' or '.join(source_kinds())}")
        return value

    @field_validator("group_pattern")
    @classmethod
    def _check_group_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        # `re` raises the other two for huge repetitions and for deep nesting.
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"must be a regular expression ({error})") from None
        return value

    @property
    def train_shards(self) -> int:
        """Ten training shards for each training server, unless `num_shards` says otherwise."""
        return self.num_shards or SHARDS_PER_SERVER * self.num_training_servers

    @property
    def source(self) -> Place:
        """The place of the raw images, or of their list."""
        return place_of(self.source_uri, self.user_project)

    @property
    def datasets_folder(self) -> Place:
        """The folder of published datasets: `publish_uri`, or `datasets` in the workspace."""
        return place_of(self.publish_uri) if self.publish_uri else place_of(self.workspace) / "datasets"

    def dated(self, run_date: datetime | None = None) -> "Settings":
        """Return these settings with the data date filled into `source_uri`.

        The data date is that of the form, or of the run, or of now, in this order. The day of a run is that of
        TENFOLD_TIMEZONE. If the source has no placeholder, the settings stay as they are, because its images do not
        depend on a date. Raises SettingsError if there is no such time zone.
        """
        if not dates.is_dated(self.source_uri):
            return self
        if self.data_date:
            moment = datetime.fromisoformat(self.data_date)
            if not dates.has_no_time(self.data_date):  # A time is in UTC, as that of a run.
                moment = dates.data_moment(moment.replace(tzinfo=UTC), self.source_uri)
        else:
            moment = dates.data_moment(run_date or datetime.now(UTC), self.source_uri)
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


def settings_with(flags: _Flags) -> list[str]:
    """Return the names of the settings that decide one of these things, or that one of these stages uses."""
    return [name for name, own in declared(type(flags)).items() if own & flags]


def settings_for(kind: str, names: Iterable[str]) -> list[str]:
    """Return those of some settings that a kind of examples uses."""
    only = declared(OnlyFor)
    return [name for name in names if name not in only or only[name].kind == kind]


def settings_in_fingerprint(settings: Settings) -> dict[str, Any]:
    """Return the settings whose values are in a dataset's fingerprint: those that its kind of examples uses."""
    names = settings_for(settings.example_kind, declared(InFingerprint))
    # The same bytes must have the same version, so settings without an effect are left out.
    without_effect = {"prepare_size": settings.prepare == "keep", "test_fraction": not settings.test_fraction}
    return {name: getattr(settings, name) for name in names if not without_effect.get(name)}


def _absolute(value: str, alternative: str) -> str:
    if "://" in value:
        raise ValueError(f"must be a local path{alternative}")
    return os.path.abspath(os.path.expanduser(value)) if value else value  # noqa: PTH100, PTH111 - keeps {date}


def settings_from(values: Mapping[str, Any], *, strict: bool = True) -> Settings:
    """Return the settings of a form, a file or an XCom.

    Args:
        values: By field. None leaves a field at its default, because Airflow's form sends null for an emptied field.
        strict: With False, a text is read as the type of the field: "3" is 3.

    Raises:
        SettingsError: With one sentence for each field that is unknown, of the wrong type or out of range.
    """
    return validated(Settings, values, strict=strict)


def validated(model: type[_Model], values: Mapping[str, Any], *, strict: bool = True) -> _Model:
    """Return settings, or the options of one command, as `settings_from` does."""
    try:
        return model.model_validate(_given(values), strict=strict)
    except ValidationError as error:
        raise SettingsError("; ".join(_sentences(error))) from error


def problems_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what `settings_from` would refuse: a sentence for each field. A sentence begins with the field's name."""
    try:
        Settings.model_validate(_given(values), strict=True)
    except ValidationError as error:
        return {sentence.partition(" ")[0]: sentence for sentence in reversed(_sentences(error))}
    return {}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _sentences(error: ValidationError) -> list[str]:
    return [_sentence(problem) for problem in error.errors()]


def settings_of_command_line(config: Path | None, assignments: list[str]) -> Settings:
    """Return the settings of a TOML or JSON file (optional) and of `field=value` texts, which win over the file."""
    values = _read_file(config) if config else {}
    # Pydantic would read true and false as 1 and 0, because a number may be given as text.
    for name, value in values.items():
        field = Settings.model_fields.get(name)
        if field and isinstance(value, bool) and {int, float} & {field.annotation, *get_args(field.annotation)}:
            raise SettingsError(f"{name} must be a number, got {str(value).lower()}")
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
        raise SettingsError(f"{path} cannot be read as {path.suffix or 'TOML'}: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must contain settings and their values, got {type(values).__name__}")
    return values


_TYPES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
}
"""What a value must be, by the kind of error of Pydantic."""


def _sentence(problem: Any) -> str:
    field = _shorten(".".join(str(part) for part in problem["loc"]))
    if problem["type"] == "extra_forbidden" and field in OPTIONS_OF_COMPARISON:
        return f"{field} is an option of compare-inputs: write --{field.replace('_', '-')}"
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(field, Settings.model_fields, n=1)
        advice = f"did you mean {close[0]}?" if close else f"the settings are {', '.join(Settings.model_fields)}"
        return f"{field} is not a setting: {advice}"
    # Pydantic adds this prefix to the message of a ValueError.
    message = problem["msg"].removeprefix("Value error, ")
    if not field:  # The message names the fields that do not go together.
        return str(message)
    message = _TYPES.get(problem["type"], message).removeprefix("Input should be ").replace("String should ", "must ")
    message = message if message.startswith("must") else f"must be {message}"
    got = f"got {_shorten(repr(problem['input']))}"
    if field == "dataset_name" and problem["type"] == "string_pattern_mismatch":
        return f"{field} {RULE}, {got}: {name_of_source(problem['input'])} would do"
    return f"{field} {message}, {got}"


def _shorten(text: str) -> str:
    """Return the part of a text that an error message repeats. A task's log holds every message several times."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"
