"""What to train on: SOURCE or TABLE, LABEL and PARAMS, checked before anything starts."""

import json
import os
from pathlib import Path
from typing import Any

from pipeline.config import settings_from
from pipeline.data_date import PLACEHOLDERS, before_placeholder, is_dated, unknown_placeholder
from pipeline.errors import TenfoldError
from pipeline.preflight import preflight
from pipeline.sources.listing import recognises
from scripts.airflow.errors import Refused
from scripts.airflow.progress import say

Conf = dict[str, Any]
_EXAMPLE = """a JSON object like '{"epochs": 3}'"""


def read_params(text: str) -> Conf:
    """Return PARAMS as a dictionary. Raises Refused if it is no JSON object."""
    try:
        params = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise Refused(f"PARAMS must be {_EXAMPLE}, got {text!r}: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(params, dict):
        raise Refused(f"PARAMS must be {_EXAMPLE}, got {text!r}")
    return params


def read_source(text: str) -> str:
    """Return SOURCE as an absolute path, or the address of a bucket. Raises Refused if there is no such place."""
    if not text or "://" in text:
        return text
    path, known = _path_of("SOURCE", text)
    if not known.is_dir() and not recognises(known):
        problem = "is neither" if known.exists() else "does not exist"
        raise Refused(
            f"SOURCE must be a folder of images or a list (.csv, .jsonl, .parquet), got {text!r}: {known} {problem}"
        )
    return path


def read_table(text: str) -> str:
    """Return TABLE as an absolute path, or the address of a bucket. Raises Refused if there is no such place."""
    if not text or "://" in text:
        return text
    path, known = _path_of("TABLE", text)
    if not known.exists():
        raise Refused(
            f"TABLE must be a file or folder (CSV, Parquet or TFRecord), got {text!r}: {known} does not exist"
        )
    return path


def _path_of(name: str, text: str) -> tuple[str, Path]:
    """Return a path as an absolute one, and the part of it that must exist."""
    if unknown := unknown_placeholder(text):
        raise Refused(
            f"{name} must have no placeholders except {PLACEHOLDERS}, got {text!r}: {unknown} is not one of them"
        )
    path = os.path.abspath(Path(text).expanduser())  # noqa: PTH100 - resolve() would replace the person's own links
    # The data date is not known yet, so only the folder above the placeholder can be checked.
    return path, Path(before_placeholder(path) + "x").parent if is_dated(path) else Path(path)


def read_request(source: str, params: str) -> Conf:
    """Return the settings of the run. Without `source_uri`, they mean the sample images."""
    return _with_source("SOURCE", read_source(source), read_params(params))


def read_table_request(table: str, label: str, params: str) -> Conf:
    """Return the settings of a run on a table."""
    conf = _with_source("TABLE", read_table(table), read_params(params))
    if label and "label_column" in conf:
        raise Refused(
            f"LABEL={label!r} and label_column={conf['label_column']!r} in PARAMS are both given: give only one of them"
        )
    conf = {"label_column": label, **conf} if label else conf
    if not conf.get("label_column"):
        raise Refused(f"LABEL is missing: name the column that the model learns, such as TABLE={table} LABEL=churn")
    return conf


def _with_source(name: str, uri: str, conf: Conf) -> Conf:
    if uri and "source_uri" in conf:
        raise Refused(
            f"{name}={uri!r} and source_uri={conf['source_uri']!r} in PARAMS are both given: give only one of them"
        )
    return {"source_uri": uri, **conf} if uri else conf


def check_settings(conf: Conf, example_kind: str = "images") -> Conf:
    """Return the settings with absolute paths: a task runs in another folder than the person does.

    Raises Refused for whatever the first task would refuse, before Airflow is started.
    """
    try:
        settings = settings_from({**conf, "example_kind": example_kind})
        if settings.source_uri and not is_dated(settings.source_uri):
            preflight(settings)
    except TenfoldError as error:
        raise Refused(str(error)) from error
    return {name: getattr(settings, name) for name in conf}


def or_sample_images(conf: Conf, samples: Path) -> Conf:
    """Return the settings with a source: the sample images if none is given.

    They have a dataset name of their own. Otherwise, their classes would stay in the label map of the user's dataset.
    """
    if "source_uri" in conf:
        return conf
    draw_samples_once(samples)
    return {"source_uri": str(samples), "dataset_name": "samples", **conf}


def draw_samples_once(samples: Path) -> None:
    """Draw the sample images the first time somebody asks for them."""
    if not samples.exists():
        # Imported here, because nothing else of this package needs an imaging library.
        from pipeline.sources.samples import draw_samples

        say(f"Drawing sample images into {samples}")
        draw_samples(samples)
