"""What the tasks of runs stored in Airflow's database."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import Select, and_, select
from sqlalchemy.orm import Session

from dags.xcom_keys import SETTINGS
from pipeline.config.allowed import Outputs
from pipeline.errors import SettingsError
from pipeline.storage import Place, place_of

OF_RUN = and_(TaskInstance.dag_id == DagRun.dag_id, TaskInstance.run_id == DagRun.run_id)


def places_of(session: Session, runs: Sequence[int], keys: Collection[str]) -> dict[str, dict[int, Place | None]]:
    """Return the newest place that each of the runs stored under each of some XCom keys."""
    found: dict[str, dict[int, Place | None]] = {key: {} for key in keys}
    for xcom in session.execute(xcoms(runs, keys).order_by(XComModel.timestamp)):
        found[xcom.key][xcom.dag_run_id] = _place(XComModel.deserialize_value(xcom))
    return found


def xcoms(runs: Collection[int], keys: Collection[str]) -> Select[Any]:
    """Return the query of the values that some runs stored under some XCom keys."""
    # Of the whole model, Airflow would also load the run of each XCom.
    columns = (XComModel.dag_run_id, XComModel.task_id, XComModel.map_index, XComModel.key, XComModel.value)
    return select(*columns).where(XComModel.dag_run_id.in_(runs), XComModel.key.in_(keys))


def settings_of(session: Session, runs: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the form of each of the runs, with the settings that it stored."""
    forms = select(DagRun.id, DagRun.conf).where(DagRun.id.in_(runs))
    found = {number: dict(conf) for number, conf in session.execute(forms) if isinstance(conf, dict)}
    for xcom in session.execute(xcoms(runs, [SETTINGS])):
        value = XComModel.deserialize_value(xcom)
        found.setdefault(xcom.dag_run_id, {}).update(value if isinstance(value, dict) else {})
    # The settings of thousands of runs are kept.
    from pipeline.watch.summary import changed_settings

    return {number: changed_settings(settings) for number, settings in found.items()}


def _place(value: Any) -> Place | None:
    try:
        return place_of(value) if isinstance(value, str) and value else None
    except ValueError:  # The URI names no bucket.
        return None


def allowed_of(places: Mapping[str, Place | None], outputs: Outputs) -> tuple[dict[str, Place | None], str]:
    """Return places without those that the administrator does not allow, and why one of them is left out.

    Anyone who may change an XCom can name a place, and this process opens it with its own rights.
    """
    allowed, refusal = dict(places), ""
    for key, place in places.items():
        try:
            if place:
                outputs.require(place)
        except SettingsError as error:
            allowed[key], refusal = None, str(error)
    return allowed, refusal
