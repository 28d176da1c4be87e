"""What to train on: SOURCE and PARAMS, checked before anything starts."""

import json
import os
from pathlib import Path
from typing import Any

from pipeline.config import settings_from
from pipeline.errors import SettingsError
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
    """SOURCE as an absolute path; a bucket's address stays as it is. Raises Refused when there is no such folder."""
    if not text or "://" in text:
        return text
    path = os.path.abspath(Path(text).expanduser())  # noqa: PTH100 - resolve() would replace the person's own links
    # {date} becomes the data date of the run, so only the folder above it can be there already.
    known = Path(path.partition("{date}")[0] + "x").parent if "{date}" in path else Path(path)
    if not known.exists():
        raise Refused(f"SOURCE must be a folder of images, got {text!r}: {known} does not exist")
    return path


def read_request(source: str, params: str) -> Conf:
    """The settings of the run; without `source_uri` where the sample images are meant."""
    conf = read_params(params)
    uri = read_source(source)
    return {"source_uri": uri, **conf} if uri else conf


def check_settings(conf: Conf) -> None:
    """Raise Refused for a setting that the first task would refuse, before Airflow is started."""
    try:
        settings_from(conf)
    except SettingsError as error:
        raise Refused(str(error)) from error


def with_source(conf: Conf, workspace: Path) -> Conf:
    """The settings with a source: the sample images where none is given."""
    return conf if "source_uri" in conf else {"source_uri": str(sample_folder(workspace)), **conf}


def sample_folder(workspace: Path) -> Path:
    """Where the sample images lie, drawn the first time somebody asks."""
    folder = workspace / "samples"
    if not folder.exists():
        # Here, since nothing else of this package needs an imaging library.
        from pipeline.samples import draw_samples

        say(f"Drawing sample images into {folder}")
        draw_samples(folder)
    return folder
