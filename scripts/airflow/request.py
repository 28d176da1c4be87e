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
from scripts.airflow.checks import default_settings
from scripts.airflow.errors import Refused
from scripts.airflow.progress import say

Conf = dict[str, Any]
_PLACES = {
    "SOURCE": "folder of images or a list (.csv, .jsonl, .parquet)",
    "TABLE": "file or folder (CSV, Parquet or TFRecord)",
}


def read_request(source: str, table: str, label: str, params: str, kind: str) -> Conf:
    """Return the settings of a run. Without `source_uri`, they mean the sample images.

    Args:
        source: SOURCE, a folder of images or a list.
        table: TABLE, in place of it.
        label: LABEL, the column of a table that the model learns.
        params: PARAMS, other settings as JSON.
        kind: The kind of examples; empty for a DAG whose first task checks its settings.

    Raises:
        Refused: The first task would refuse them, or Airflow would.
    """
    conf = _read_params(params)
    if source and table:
        raise Refused("SOURCE and TABLE are both given: give only one of them")
    name = "TABLE" if table else "SOURCE"
    conf = _with(name, "source_uri", _read_place(name, table or source), conf)
    if kind == "table":
        conf = _with("LABEL", "label_column", label, conf)
        if not (conf.get("label_column") or default_settings(os.environ.get("TENFOLD_SETTINGS", "")).label_column):
            raise Refused("LABEL is missing: name the column of the table that the model learns, such as LABEL=churn")
    return check_settings(conf, kind) if kind else conf


def _read_params(text: str) -> Conf:
    problem = f"PARAMS must be a JSON object like '{{\"epochs\": 3}}', got {text!r}"
    try:
        params = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise Refused(f"{problem}: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(params, dict):
        raise Refused(problem)
    return params


def _with(name: str, setting: str, value: str, conf: Conf) -> Conf:
    """Return the settings with the value of a variable of `make`, if there is one."""
    if value and setting in conf:
        raise Refused(
            f"{name}={value!r} and {setting}={conf[setting]!r} in PARAMS are both given: give only one of them"
        )
    return {setting: value, **conf} if value else conf


def _read_place(name: str, text: str) -> str:
    """Return SOURCE or TABLE as an absolute path, or as the address of a bucket. Refuses a path that does not exist."""
    if not text or "://" in text:
        return text
    if unknown := unknown_placeholder(text):
        raise Refused(
            f"{name} must have no placeholders except {PLACEHOLDERS}, got {text!r}: {unknown} is not one of them"
        )
    path = os.path.abspath(Path(text).expanduser())  # noqa: PTH100 - resolve() would replace the person's own links
    # The data date is not known yet, so only the folder above the placeholder can be checked.
    known = Path(before_placeholder(path) + "x").parent if is_dated(path) else Path(path)
    is_right = known.exists() and (name == "TABLE" or known.is_dir() or recognises(known))
    if not is_right:
        wanted = f"a {_PLACES[name]}, got {text!r}: {known} {'is neither' if known.exists() else 'does not exist'}"
        raise Refused(f"{name} must be {wanted}")
    return path


def check_settings(conf: Conf, kind: str = "images") -> Conf:
    """Return the settings with absolute paths: a task runs in another folder than the person does.

    Raises Refused for whatever the first task would refuse, before Airflow is started.
    """
    try:
        settings = settings_from({**conf, "example_kind": kind})
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
