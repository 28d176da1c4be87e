"""What a person asks for, checked before anything starts.

For each run: SOURCE or TABLE, LABEL and PARAMS. For a backfill: FROM, TO and REPROCESS.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from pipeline.config.data_date import (
    PLACEHOLDERS,
    before_placeholder,
    data_moment,
    format_data_date,
    is_dated,
    needs_time,
    unknown_placeholder,
    zone_from,
)
from pipeline.config.preflight import preflight
from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError, TenfoldError
from pipeline.runs.training_settings import require_model
from pipeline.sources.listing import recognizes
from scripts.airflow.checks import BACKFILLS, SCHEDULE_OF, default_settings
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


def read_request(source: str, table: str, label: str, params: str, kind: str, *, has_other_disks: bool = False) -> Conf:
    """Return the settings of SOURCE, TABLE, LABEL and PARAMS. Without `source_uri`, see `needs_sample_images`.

    `kind` is the kind of examples; empty for a DAG whose settings only its first task can check. If the Airflow has
    other disks than this machine, only its first task can find the places.
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
    conf = _with(name, "source_uri", _read_place(name, table or source, has_other_disks), conf)
    if kind == "table":
        conf = _with("LABEL", "label_column", label, conf)
        if not (conf.get("label_column") or default_settings(os.environ).label_column):
            raise Refused("LABEL is missing: name the column of the table that the model learns, such as LABEL=churn")
    return check_settings(conf, kind, has_other_disks=has_other_disks) if kind else conf


def _with(name: str, setting: str, value: str, conf: Conf) -> Conf:
    """Return the settings with the value of a variable of `make`, if there is one."""
    if value and setting in conf:
        raise Refused(
            f"{name}={value!r} and {setting}={conf[setting]!r} in PARAMS are both given: give only one of them"
        )
    return {setting: value, **conf} if value else conf


def _read_place(name: str, text: str, has_other_disks: bool) -> str:
    """Return SOURCE or TABLE as an absolute path, or as the address of a bucket. Refuses a path that does not exist."""
    if not text or "://" in text:
        return text
    if unknown := unknown_placeholder(text):
        raise Refused(
            f"{name} must have no placeholders except {PLACEHOLDERS}, got {text!r}: {unknown} is not one of them"
        )
    path = os.path.abspath(Path(text).expanduser())  # noqa: PTH100 - resolve() would replace the person's own links
    if has_other_disks:
        return path
    # The data date is not known yet, so only the folder above the placeholder can be checked.
    known = Path(before_placeholder(path) + "x").parent if is_dated(path) else Path(path)
    if not known.exists() or (name == "SOURCE" and not known.is_dir() and not recognizes(known)):
        problem = "is neither" if known.exists() else "does not exist"
        raise Refused(f"{name} must be a {_PLACES[name]}, got {text!r}: {known} {problem}")
    return path


def check_settings(conf: Conf, kind: str = "images", *, has_other_disks: bool = False) -> Conf:
    """Return the settings with absolute paths: a task runs in another folder than the person does.

    Raises Refused for whatever the first task would refuse, before Airflow is started.
    """
    try:
        settings = settings_from({**conf, "example_kind": kind})
        require_model(settings.model, kind, settings.source_uri)
        if settings.source_uri and not is_dated(settings.source_uri) and not has_other_disks:
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
    """One dataset for each date from `first` to `last`, both included: days of a time zone, or hours in UTC."""

    dag_id: str
    first: datetime
    last: datetime
    reprocess: str
    """Which dates run again: "failed", or "completed" for all that are not under way."""
    conf: Conf
    source: str
    """The source of the runs, with its placeholders."""
    by_hours: bool = False
    """Whether FROM and TO are hours."""
    max_active_runs: int = 2
    """Runs at the same time. SQLite has one writer: more of them mostly wait for each other's lock."""

    @property
    def names(self) -> list[str]:
        """All dates: days such as 2026-01-31, or hours such as 2026-01-31T07:00."""
        # Arithmetic on a date with a time zone is that of its wall clock, so days of 23 or 25 hours are days too.
        step = timedelta(hours=1) if self.by_hours else timedelta(days=1)
        return [self.name_of(self.first + number * step) for number in range((self.last - self.first) // step + 1)]

    def __str__(self) -> str:
        return f"{self.dag_id} from {self.name_of(self.first)} to {self.name_of(self.last)}"

    def name_of(self, moment: datetime) -> str:
        """Return the day or the hour of a moment."""
        local = moment.astimezone(self.first.tzinfo)
        return local.strftime("%Y-%m-%dT%H:00" if self.by_hours else "%Y-%m-%d")

    def data_date_of(self, moment: datetime) -> str:
        """Return the data date of a run: the name of its partition."""
        return format_data_date(data_moment(moment, self.source), self.source)

    def has_runs_of_its_hours(self, moments: Collection[datetime]) -> bool:
        """Return whether runs at these moments have the hours that are asked for, if a source depends on the hour.

        FROM and TO in hours ask for each of them. Days do not, but with a run at each midnight, all hours are 00.
        """
        if self.by_hours:
            return {*self.names} <= {self.name_of(moment) for moment in moments}
        just_before = timedelta(microseconds=1)
        within = (self.name_of(moment) == self.name_of(moment - just_before) for moment in moments)
        return not moments or not needs_time(self.source) or any(within)

    @property
    def end(self) -> datetime:
        """The last moment of the last date. Its beginning would leave out the later runs of that date."""
        after = self.last + (timedelta(hours=1) if self.by_hours else timedelta(days=1))
        return after.astimezone(UTC) - timedelta(microseconds=1)

    def body(self) -> dict[str, Any]:
        """Return the body of the request to Airflow."""
        return {
            "dag_id": self.dag_id,
            "from_date": self.first.astimezone(UTC).isoformat(),
            "to_date": self.end.isoformat(),
            "dag_run_conf": self.conf,
            "reprocess_behavior": self.reprocess,
            "max_active_runs": self.max_active_runs,
        }


def needed_settings(request: Backfill, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of an Airflow that is started for a backfill, beside those of the environment.

    Raises Refused if the source has `{minute}`, and no schedule of the DAG or of its backfills gives the minutes.
    """
    if not needs_time(request.source) or environ.get(BACKFILLS):
        return {}
    if "{minute}" in request.source and not environ.get(SCHEDULE_OF.get(request.dag_id, "")):
        raise Refused(
            f"the source {request.source} has {{minute}}, but only full hours would have a run: set {BACKFILLS} to a "
            "schedule with a run for each of its dates, such as '*/15 * * * *'"
        )
    return {BACKFILLS: "@hourly"}


def read_backfill(dag_id: str, first: str, last: str, reprocess: str, conf: Conf, now: datetime) -> Backfill:
    """Return the backfill of FROM, TO, REPROCESS and the settings. Raises Refused if it has no run, or too many."""
    by_hours = "T" in first
    if by_hours != ("T" in last):
        raise Refused(f"FROM and TO must both be days or both be hours, got FROM={first} and TO={last}")
    begin, end = (_date(name, text, by_hours) for name, text in (("FROM", first), ("TO", last)))
    if begin > end:
        raise Refused(f"FROM={first} is after TO={last}: give the earlier date first")
    if reprocess not in _REPROCESS:
        raise Refused(f"REPROCESS must be failed or all, got {reprocess!r}")
    source = conf.get("source_uri") or default_settings(os.environ).source_uri
    request = Backfill(dag_id, begin, end, _REPROCESS[reprocess], conf, source, by_hours)
    # The first date is compared, too: `end` of the last date that Python has would be later than any date.
    if end >= now or request.end >= now:
        today = "this hour" if by_hours else "today"
        raise Refused(
            f"TO must be before {today} ({request.name_of(now)} in {begin.tzinfo}), because the data of {today} is not "
            f"complete, got {last}"
        )
    if (count := len(request.names)) > MAX_DATES:
        raise Refused(f"FROM={first} to TO={last} are {count} dates: give at most {MAX_DATES} at a time")
    _require_dated(conf, source)
    if by_hours and not needs_time(source):
        raise Refused(
            f"FROM={first} is an hour, but the source {source} has no {{hour}}: give days, such as {first[:10]}"
        )
    return request


def _date(name: str, text: str, by_hours: bool) -> datetime:
    """Return a day as its beginning in TENFOLD_TIMEZONE, or an hour in UTC."""
    try:
        if by_hours and (hour := datetime.fromisoformat(text)) == hour.replace(
            minute=0, second=0, microsecond=0, tzinfo=None
        ):
            return hour.replace(tzinfo=UTC)
        return datetime.combine(date.fromisoformat(text), time.min, zone_from(os.environ))
    except ValueError:
        raise Refused(
            f"{name} must be a day such as 2026-01-31, or an hour such as 2026-01-31T07, got {text!r}"
        ) from None
    except SettingsError as error:
        raise Refused(str(error)) from error


def _require_dated(conf: Conf, source: str) -> None:
    """Raise Refused if all dates would have the same images or rows."""
    where = "PARAMS" if "data_date" in conf else "the file of TENFOLD_SETTINGS"
    if data_date := conf.get("data_date", default_settings(os.environ).data_date):
        raise Refused(
            f"{where} must not set data_date, got {data_date!r}: remove it, because each run uses its own date"
        )
    if not source:
        raise Refused(
            "SOURCE or TABLE is missing: give the images or the table of a date, with {date} for the date, such as "
            "SOURCE=/data/{date}"
        )
    if not is_dated(source):
        raise Refused(
            f"the source {source} is the same for every date: replace the part that depends on the date with one of "
            f"{PLACEHOLDERS}, such as {source}/{{date}}"
        )
