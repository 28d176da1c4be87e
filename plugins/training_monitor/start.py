"""What the page that starts a run is told about a form while a person fills it in. Starts nothing."""

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pipeline.config.example_kinds import IMAGES, TABLE
from pipeline.errors import AccessError, FileSystemError, SettingsError, SourceError, StorageError
from pipeline.storage import BucketPath

if TYPE_CHECKING:
    from pipeline.config.settings import Settings
    from pipeline.sources.look import SourceLook
    from pipeline.watch.questions import Questions

DAGS: Mapping[str, str] = {"image_training": IMAGES, "tabular_training": TABLE}
"""The DAGs that the page starts, each with its kind of examples."""
MAX_COLUMNS = 500
"""At most this many columns are offered to the person."""
_PARTS_OF_DISK = 3
"""Local places with this many equal parts count as one disk: /mnt/flowers and the places below it."""
_OF_SOURCE = (
    *("source_uri", "user_project", "data_date", "list_encoding", "csv_delimiter", "csv_columns", "csv_skip_lines"),
    *("label_column", "key_column", "group_column", "split_column"),
)
"""Settings that say where the source is, how its first line is read, and what its columns are for."""


def check_form(dag_id: str, form: Mapping[str, Any], looks: "Questions") -> dict[str, Any]:
    """Return what is wrong with each field of a form, what is at its source, and the name that the dataset would get.

    `looks` asks the file system or the bucket of the source, with a deadline.
    """
    from pipeline.config.allowed import refusals
    from pipeline.config.settings import problems_of, settings_from

    values = {**form, "example_kind": DAGS[dag_id]}
    problems = problems_of(values)
    sound = {name: values[name] for name in ("example_kind", *_OF_SOURCE) if name in values.keys() - problems}
    look, name = None, ""
    try:
        # With a wrong value elsewhere, there is still a source to look at.
        settings = settings_from(sound if problems else values)
        problems = {**refusals(settings), **problems}
        if not settings.source_uri:
            problems = {**_without_source(settings.example_kind), **problems}
        elif "source_uri" not in problems:
            look, name = _look(settings, looks), settings.dataset_name
            problems = {**_problems_of_columns(settings, look.columns), **problems}
    except SettingsError as error:  # There is no such time zone, or a list of allowed places has a wrong entry.
        problems = {"source_uri": str(error), **problems}
    source = look and asdict(replace(look, columns=look.columns[:MAX_COLUMNS]))
    return {"problems": problems, "source": source, "dataset_name": name}


def _without_source(kind: str) -> dict[str, str]:
    """Return what is wrong without a source. In the Airflow of `make up`, sample images take its place."""
    from pipeline.config.preflight import without_source

    has_samples = kind == IMAGES and os.environ.get("TENFOLD_SAMPLES")
    return {} if has_samples else {"source_uri": without_source(kind)}


def _look(settings: "Settings", looks: "Questions") -> "SourceLook":
    """Return what is at the source, or why this is not known."""
    from pipeline.sources.look import LOOK_S, SourceLook, look_at
    from pipeline.watch.questions import NoAnswer

    place = settings.dated().source
    # Other disks answer, if one is silent.
    store = place.bucket if isinstance(place, BucketPath) else "/".join(place.parts[:_PARTS_OF_DISK])
    key = ("look", place, settings.list_encoding, settings.csv_delimiter)
    try:
        look = looks.ask(store, key, lambda: look_at(place, settings.list_encoding, settings.csv_delimiter), str(place))
    except NoAnswer:
        return SourceLook(f"{place} has not answered within {LOOK_S:.0f} s.", is_usable=False)
    except (StorageError, FileSystemError, SourceError, AccessError) as error:
        return SourceLook(str(error), is_usable=False)
    if str(place) != str(settings.source):  # It has a date.
        look = replace(look, words=f"{place}: {look.words}")
    return look


def _problems_of_columns(settings: "Settings", columns: tuple[str, ...]) -> dict[str, str]:
    """Return what is wrong with the columns that settings of a table name, if the columns are known."""
    # With these settings, the first line is not the header.
    if settings.example_kind != TABLE or not columns or settings.csv_columns or settings.csv_skip_lines:
        return {}
    from pipeline.tables.infer import Columns, require_columns

    named = {role: getattr(settings, f"{role}_column") for role in ("label", "key", "group", "split")}
    # A field of a struct has a name such as geo.lat, and belongs to the column geo.
    fields = [name for name in named.values() if name.partition(".")[0] in columns]
    try:
        require_columns(Columns(**named), [*columns, *fields])
    except SettingsError as error:
        return {str(error).partition(" ")[0]: str(error)}
    return {}
