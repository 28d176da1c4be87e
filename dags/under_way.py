"""Runs of another DAG that are under way, as far as a task of Airflow 3.3.2 can see them.

A task cannot list runs. It can count them, and it can ask for the last run before a date. Airflow uses this request to
find the previous run of the task's own DAG (`get_previous_dagrun`), but its API takes any DAG. Runs without a date can
only be counted.
"""

import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import get_current_context

QUEUED, RUNNING = "queued", "running"
MAX_LOOKS = 1000
"""Number of runs of a state that are looked at, the newest dates first. Each takes a request to the API server."""
_END_OF_TIME = datetime(9000, 1, 1, tzinfo=UTC)
"""Later than the date of any run."""
_log = logging.getLogger(__name__)


def forms_under_way(dag_id: str) -> Iterator[Mapping[str, Any] | None]:
    """Yield the form of each run that is queued or running; None for each run that can only be counted.

    If more than MAX_LOOKS runs are in a state, the others are left out. Each of them announces its dataset at its end.
    """
    seen = set()
    saw_all = True
    # Queued runs come first: a run that starts between the two looks is then found twice, and never missed.
    for state in (QUEUED, RUNNING):
        looks = 0
        for run in _dated(dag_id, state):
            looks += 1
            if run.run_id not in seen:
                yield run.conf or {}
            seen.add(run.run_id)
        saw_all = saw_all and looks < MAX_LOOKS
    if not saw_all:
        # The difference below would take runs that were not looked at for runs without a date.
        _log.warning(
            "at least %d runs of %s are running: only those of the newest dates are checked", MAX_LOOKS, dag_id
        )
        return
    count = get_current_context()["ti"].get_dr_count(dag_id=dag_id, states=[QUEUED, RUNNING])
    yield from [None] * max(count - len(seen), 0)


def _dated(dag_id: str, state: str) -> Iterator[Any]:
    from airflow.sdk.execution_time.comms import GetPreviousDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    before = _END_OF_TIME
    for _ in range(MAX_LOOKS):
        answer: Any = SUPERVISOR_COMMS.send(GetPreviousDagRun(dag_id=dag_id, logical_date=before, state=state))
        if answer.dag_run is None:
            return
        yield answer.dag_run
        before = answer.dag_run.logical_date
