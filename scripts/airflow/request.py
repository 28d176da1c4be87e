"""What to train on: SOURCE and PARAMS, checked before anything starts."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import settings_from, settings_of_command_line
from pipeline.errors import SettingsError, TenfoldError
from pipeline.preflight import preflight
from pipeline.sources.listing import recognises
from scripts.airflow.errors import Refused
from scripts.airflow.progress import say

Conf = dict[str, Any]
_EXAMPLE = """a JSON object like '{"epochs": 3}'"""


def read_params(text: str) -> Conf:
    """PARAMS as a dictionary. Raises Refused when it is no JSON object."""
    try:
        params = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise Refused(f"PARAMS must be {_EXAMPLE}, got {text!r}: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(params, dict):
        raise Refused(f"PARAMS must be {_EXAMPLE}, got {text!r}")
    return params


def read_source(text: str) -> str:
    """SOURCE as an absolute path; a bucket's address stays as it is. Raises Refused when there is no such place."""
    if not text or "://" in text:
        return text
    path = os.path.abspath(Path(text).expanduser())  # noqa: PTH100 - resolve() would replace the person's own links
    # {date} becomes the data date of the run, so only the folder above it can be there already.
    known = Path(path.partition("{date}")[0] + "x").parent if "{date}" in path else Path(path)
    if not known.is_dir() and not recognises(known):
        found = "is neither" if known.exists() else "does not exist"
        raise Refused(
            f"SOURCE must be a folder of images or a list (.csv, .jsonl, .parquet), got {text!r}: {known} {found}"
        )
    return path


def read_request(source: str, params: str) -> Conf:
    """The settings of the run; without `source_uri` where the sample images are meant."""
    conf = read_params(params)
    uri = read_source(source)
    if uri and "source_uri" in conf:
        raise Refused(f"SOURCE={source!r} and source_uri={conf['source_uri']!r} in PARAMS: give one of them")
    return {"source_uri": uri, **conf} if uri else conf


def check_settings(conf: Conf) -> Conf:
    """The settings with absolute paths: a task runs in another folder than the person does.

    Raises Refused for whatever the first task would refuse, before Airflow is started.
    """
    try:
        settings = settings_from(conf)
        if settings.source_uri and "{date}" not in settings.source_uri:
            preflight(settings)
    except TenfoldError as error:
        raise Refused(str(error)) from error
    return {name: getattr(settings, name) for name in conf}


def check_schedule(environ: Mapping[str, str]) -> None:
    """Refuse a schedule, or a file of its settings, with which the DAG could not be imported or would always fail."""
    schedule, file = environ.get("TENFOLD_SCHEDULE", ""), environ.get("TENFOLD_SETTINGS", "")
    try:
        settings = settings_of_command_line(Path(file) if file else None, [])
    except SettingsError as error:
        raise Refused(f"TENFOLD_SETTINGS={file}: {error}") from error
    if schedule and not (schedule.startswith("@") or len(schedule.split()) in (5, 6, 7)):
        raise Refused(f"TENFOLD_SCHEDULE must be a cron expression or a preset like @daily, got {schedule!r}")
    if schedule and not settings.source_uri:
        raise Refused("TENFOLD_SCHEDULE needs a file of settings with a source_uri: name it in TENFOLD_SETTINGS")
    if schedule:
        say(f"Schedule: {schedule}, with the settings of {file}. Its latest date starts at once")


def with_source(conf: Conf, workspace: Path) -> Conf:
    """The settings with a source: the sample images where none is given.

    They have a data set name of their own: their classes would else stay in the label map of the user's.
    """
    if "source_uri" in conf:
        return conf
    return {"source_uri": str(sample_folder(workspace)), "dataset_name": "samples", **conf}


def sample_folder(workspace: Path) -> Path:
    """Where the sample images lie, drawn the first time somebody asks."""
    folder = workspace / "samples"
    if not folder.exists():
        # Here, since nothing else of this package needs an imaging library.
        from pipeline.samples import draw_samples

        say(f"Drawing sample images into {folder}")
        draw_samples(folder)
    return folder
