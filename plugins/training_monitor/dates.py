"""The dates of the datasets that Airflow's runs made: their state in the workspace, and the last run of each date.

A run is one of a dataset name if its first task stored settings with this name. A run that failed before is known by
its form: another run of the same DAG has the same source in it.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from dags.xcom_keys import SETTINGS
from pipeline.config.data_date import check_data_date, data_moment, format_data_date, has_no_time, is_dated
from pipeline.storage import BucketPath, place_of
from plugins.training_monitor.listing import MayRead
from plugins.training_monitor.runs import AirflowRun, load_runs

if TYPE_CHECKING:
    from pipeline.runs.dates import Dates, LastRun
    from pipeline.watch.questions import Questions

MAX_RUNS = 3000
"""Of at most this number of runs, the newest, the dates are looked up."""
_NEVER = datetime.min.replace(tzinfo=UTC)
_EXTRACT = "extract"
"""The task that stores the settings of a run with its data date."""
_PLACES = ("dataset_name", "workspace", "publish_uri")
_OF_FORM = ("source_uri", *_PLACES)
"""Fields of a form that decide the dataset name."""


class DatasetName(NamedTuple):
    """A dataset name with the places where it is built and published."""

    dataset_name: str
    workspace: str
    publish_uri: str


class DatedRun(NamedTuple):
    """A run that made, or tried to make, a date of a dataset."""

    number: int
    """Airflow's own number of the run."""
    dag_id: str
    date: str
    form: str
    """The fields of its form that decide the dataset name, as JSON."""
    queued: datetime | None
    """When it was queued, for the last time if it was cleared."""


class DatasetRuns:
    """The runs of some DAGs that made dates, by dataset name. The name of the newest run comes first."""

    def __init__(self, dag_ids: Collection[str], max_runs: int = MAX_RUNS) -> None:
        self._by_name: dict[DatasetName, list[DatedRun]] = {}
        self._settings: dict[DatasetName, Mapping[str, Any]] = {}
        with create_session() as session:
            stored = session.execute(_stored_settings(dag_ids).limit(max_runs)).all()
            self.looked_up = max_runs if len(stored) == max_runs else None
            """The number of runs that were looked up, if there may be older ones; None if these are all."""
            for name, run, settings in _dated_runs(stored):
                self._by_name.setdefault(name, []).append(run)
                self._settings.setdefault(name, settings)

    @property
    def names(self) -> list[DatasetName]:
        """All dataset names with dates."""
        return list(self._by_name)

    def settings(self, name: DatasetName) -> dict[str, Any]:
        """Return the settings of the newest run that decide what is shown."""
        stored = self._settings[name]
        return {field: stored[field] for field in (*_PLACES, "max_drift") if field in stored}

    def dag_ids(self, name: DatasetName) -> set[str]:
        """Return the ids of the DAGs that made it."""
        return {run.dag_id for run in self._by_name[name]}

    def last_runs(self, name: DatasetName) -> dict[str, AirflowRun]:
        """Return the last run of each date."""
        made = self._by_name[name]
        with create_session() as session:
            runs = [*made, *_without_settings(session, made)]
            in_order = sorted(runs, key=lambda run: (run.queued or _NEVER, run.number))
            last = {run.date: run.number for run in in_order}
            found = {run.number: run for run in load_runs(session, select(DagRun).where(DagRun.id.in_(last.values())))}
        return {date: found[number] for date, number in last.items() if number in found}


def _stored_settings(dag_ids: Collection[str]) -> Select[Any]:
    """Return the query of the settings that runs stored, with the forms of these runs, the newest run first."""
    return (
        # Of the whole model, Airflow would also load the run of each XCom.
        select(XComModel.dag_run_id, XComModel.dag_id, XComModel.value, DagRun.conf, DagRun.queued_at)
        .join(DagRun, DagRun.id == XComModel.dag_run_id)
        .where(XComModel.dag_id.in_(dag_ids), XComModel.task_id == _EXTRACT, XComModel.key == SETTINGS)
        .order_by(XComModel.dag_run_id.desc())
    )


def _dated_runs(stored: Iterable[Any]) -> Iterable[tuple[DatasetName, DatedRun, Mapping[str, Any]]]:
    for xcom in stored:
        settings = XComModel.deserialize_value(xcom)
        # Anyone who may change an XCom can store another value.
        if isinstance(settings, dict) and _is_date(settings.get("data_date")):
            name = DatasetName(*(str(settings.get(field, "")) for field in _PLACES))
            made = (xcom.dag_run_id, xcom.dag_id, settings["data_date"], _form(xcom.conf), xcom.queued_at)
            yield name, DatedRun(*made), settings


def _without_settings(session: Session, made: Collection[DatedRun]) -> Iterable[DatedRun]:
    """Yield the runs with the form of other runs that have not ended their first task, or that failed in it."""
    form_of_date = _placeholders([run.date for run in made])
    forms = {(run.dag_id, run.form) for run in made}
    stored = select(XComModel.dag_run_id).where(XComModel.task_id == _EXTRACT, XComModel.key == SETTINGS)
    waiting = (
        select(DagRun)
        .where(
            DagRun.dag_id.in_({run.dag_id for run in made}),
            DagRun.state != DagRunState.SUCCESS,
            DagRun.id.not_in(stored),
        )
        .order_by(DagRun.id.desc())
        .limit(MAX_RUNS)
    )
    for run in session.scalars(waiting):
        date = _date_of(run, form_of_date)
        if _is_date(date) and (run.dag_id, _form(run.conf)) in forms:
            yield DatedRun(run.id, run.dag_id, date, "", run.queued_at)


def _date_of(run: DagRun, placeholders: str) -> Any:
    """Return the data date of a run as its first task would fix it: see `Settings.dated`."""
    form = run.conf if isinstance(run.conf, dict) else {}
    if form.get("data_date"):
        return form["data_date"]
    given = str(form.get("source_uri", ""))
    source = given if is_dated(given) else placeholders
    return format_data_date(data_moment(run.logical_date or run.run_after, source), source)


def _placeholders(dates: Collection[str]) -> str:
    """Return the placeholders that give dates like these."""
    if all(map(has_no_time, dates)):
        return "{date}"
    return "{date}{hour}" if all(date.endswith(":00") for date in dates) else "{date}{hour}{minute}"


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and check_data_date(value) == value
    except ValueError:
        return False


def _form(conf: Any) -> str:
    given = conf if isinstance(conf, dict) else {}
    return json.dumps({field: str(given.get(field, "")) for field in _OF_FORM})


def state_of_dates(
    runs: DatasetRuns, name: DatasetName, may_read_log: MayRead, questions: "Questions"
) -> dict[str, Any]:
    """Return what the page shows of a dataset name.

    Reasons are left out unless the user may read the logs of all DAGs that made it. Raises what `dates_of` and
    `Questions.ask` do.
    """
    from pipeline.config.settings import settings_from
    from pipeline.runs.dates import STATES, dates_of

    last = runs.last_runs(name)
    settings = settings_from(runs.settings(name))
    known = {date: _last_run(run) for date, run in last.items()}
    read = partial(dates_of, settings, known)
    places = (place_of(settings.workspace), settings.datasets_folder)
    bucket = next((place.bucket for place in places if isinstance(place, BucketPath)), None)
    # Users may see the dates of different DAGs, and so with different settings.
    key = ("dates", settings.model_dump_json(), frozenset(known.items()))
    dates = questions.ask(bucket, key, read) if bucket else read()
    if not all(map(may_read_log, runs.dag_ids(name))):
        dates = _without_reasons(dates)
    return {
        **dates.to_json(),
        "states": dict(STATES),
        "runs": {date: {"dag_id": run.dag_id, "run_id": run.run_id, "state": run.state} for date, run in last.items()},
    }


def _last_run(run: AirflowRun) -> "LastRun":
    from pipeline.runs.dates import LastRun

    if not run.is_over:
        return LastRun("running", "")
    if run.state != DagRunState.FAILED:
        return LastRun("success", "")
    return LastRun("failed", run.failure.sentence if run.failure else "")


def _without_reasons(dates: "Dates") -> "Dates":
    """Return the same dates without error messages, which say as much as a log does."""
    shown = tuple(date if date.state == "drift" else replace(date, words="") for date in dates.dates)
    return replace(dates, dates=shown, note="")
