"""What a person asks for, checked before anything starts.

For each run: SOURCE or TABLE, LABEL and PARAMS. For a backfill: FROM, TO and REPROCESS.
"""

import json
import os
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from pipeline.config.data_date import PLACEHOLDERS, before_placeholder, is_dated, unknown_placeholder
from pipeline.config.preflight import preflight
from pipeline.config.settings import settings_from
from pipeline.errors import TenfoldError
from pipeline.runs.training_settings import require_model
from pipeline.sources.listing import recognizes
from scripts.airflow.checks import default_settings
from scripts.airflow.errors import Refused
from scripts.airflow.progress import say

Conf = dict[str, Any]
MAX_DATES = 1000
"""Limit for the dates of one backfill, whose runs Airflow creates in one call."""
_REPROCESS = {"": "failed", "failed": "failed", "all": "completed"}
_PLACES = {
    "SOURCE": "folder of images or a list (.csv, .jsonl, .parquet)",
    "TABLE": "file or folder (CSV, JSON lines, Parquet, Arrow or TFRecord)",
}


def read_request(source: str, table: str, label: str, params: str, kind: str) -> Conf:
    """Return the settings of SOURCE, TABLE, LABEL and PARAMS. Without `source_uri`, see `needs_sample_images`.

    `kind` is the kind of examples; empty for a DAG whose settings only its first task can check.
    """
    problem = f"PARAMS must be a JSON object like '{{\"epochs\": 3}}', got {params!r}"
    try:
        conf = json.loads(params or "{}")
    except json.JSONDecodeError as error:
        raise Refused(f"{problem}: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(conf, dict):
        raise Refused(problem)
    if source and table:
        raise Refused("SOURCE and TABLE are both given: give only one of them")
    name = "TABLE" if table else "SOURCE"
    conf = _with(name, "source_uri", _read_place(name, table or source), conf)
    if kind == "table":
        conf = _with("LABEL", "label_column", label, conf)
        if not (conf.get("label_column") or default_settings(os.environ).label_column):
            raise Refused("LABEL is missing: name the column of the table that the model learns, such as LABEL=churn")
    return check_settings(conf, kind) if kind else conf


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
    if not known.exists() or (name == "SOURCE" and not known.is_dir() and not recognizes(known)):
        problem = "is neither" if known.exists() else "does not exist"
        raise Refused(f"{name} must be a {_PLACES[name]}, got {text!r}: {known} {problem}")
    return path


def check_settings(conf: Conf, kind: str = "images") -> Conf:
    """Return the settings with absolute paths: a task runs in another folder than the person does.

    Raises Refused for whatever the first task would refuse, before Airflow is started.
    """
    try:
        settings = settings_from({**conf, "example_kind": kind})
        require_model(settings.model, kind, settings.source_uri)
        if settings.source_uri and not is_dated(settings.source_uri):
            preflight(settings)
    except TenfoldError as error:
        raise Refused(str(error)) from error
    return {name: getattr(settings, name) for name in conf}


def needs_sample_images(dag_id: str, conf: Conf) -> bool:
    """Return whether a run lacks a source. `retrain` needs none, and the file of TENFOLD_SETTINGS may name one."""
    return dag_id != "retrain" and not (conf.get("source_uri") or default_settings(os.environ).source_uri)


def with_sample_images(conf: Conf, samples: Path) -> Conf:
    """Return the settings with the sample images as the source.

    They have a dataset name of their own. Otherwise, their classes would stay in the label map of the user's dataset.
    """
    draw_samples_once(samples)
    return {"dataset_name": "samples", **conf, "source_uri": str(samples)}


def draw_samples_once(samples: Path) -> None:
    """Draw the sample images the first time somebody asks for them."""
    if not samples.exists():
        # Imported here, because nothing else of this package needs an imaging library.
        from pipeline.sources.samples import draw_samples

        say(f"Drawing sample images into {samples}")
        draw_samples(samples)


@dataclass(frozen=True)
class Backfill:
    """One dataset for each date from `first` to `last`, both included."""

    dag_id: str
    first: date
    last: date
    reprocess: str
    """Which dates run again: "failed", or "completed" for all that are not under way."""
    conf: Conf
    max_active_runs: int = 2
    """Runs at the same time. SQLite has one writer: more of them mostly wait for each other's lock."""

    @property
    def days(self) -> list[date]:
        """All dates."""
        return [self.first + timedelta(days=number) for number in range((self.last - self.first).days + 1)]

    def body(self) -> dict[str, Any]:
        """Return the body of the request to Airflow."""
        return {
            "dag_id": self.dag_id,
            "from_date": datetime.combine(self.first, time.min, UTC).isoformat(),
            # Midnight of the last date would leave out the later hours of that day.
            "to_date": datetime.combine(self.last, time.max, UTC).isoformat(),
            "dag_run_conf": self.conf,
            "reprocess_behavior": self.reprocess,
            "max_active_runs": self.max_active_runs,
        }


def read_backfill(dag_id: str, first: str, last: str, reprocess: str, conf: Conf, today: date) -> Backfill:
    """Return the backfill of FROM, TO, REPROCESS and the settings. Raises Refused if it has no run, or too many."""
    begin, end = _date("FROM", first), _date("TO", last)
    if begin > end:
        raise Refused(f"FROM={begin} is after TO={end}: give the earlier date first")
    if end >= today:
        raise Refused(f"TO must be before today ({today} in UTC), because the data of today is not complete, got {end}")
    if reprocess not in _REPROCESS:
        raise Refused(f"REPROCESS must be failed or all, got {reprocess!r}")
    request = Backfill(dag_id, begin, end, _REPROCESS[reprocess], conf)
    if (count := len(request.days)) > MAX_DATES:
        raise Refused(f"FROM={begin} to TO={end} are {count} dates: give at most {MAX_DATES} at a time")
    _require_dated(conf)
    return request


def _date(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Refused(f"{name} must be a date such as 2026-01-31, got {text!r}") from None


def _require_dated(conf: Conf) -> None:
    """Raise Refused if all dates would have the same images or rows."""
    if conf.get("data_date"):
        raise Refused(
            f"PARAMS must not set data_date, got {conf['data_date']!r}: remove it, because each run uses its own date"
        )
    source = conf.get("source_uri") or default_settings(os.environ).source_uri
    if not source:
        raise Refused(
            "SOURCE is missing: give the images or the table of a date, with {date} for the date, such as "
            "SOURCE=/data/{date}"
        )
    if not is_dated(source):
        raise Refused(
            f"SOURCE={source} is the same for every date: replace the part that depends on the date with one of "
            f"{PLACEHOLDERS}, such as SOURCE={source}/{{date}}"
        )
