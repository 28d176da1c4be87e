"""Links from Tenfold's pages to Airflow's. They are relative, because Airflow may be served below any path."""

from urllib.parse import quote

from plugins.training_monitor.runs import AirflowRun

Link = tuple[str, str]
"""Text and address of a link."""


def log_link(run: AirflowRun) -> Link | None:
    """Return the link to the log of the task that failed first in a run; None if none failed."""
    if run.failure is None:
        return None
    dag_id, run_id, task_id = (quote(each, safe="") for each in (run.dag_id, run.run_id, run.failure.task_id))
    mapped = "" if run.failure.map_index < 0 else f"/mapped/{run.failure.map_index}"
    return f"Log of {run.failure.task_id}", f"../dags/{dag_id}/runs/{run_id}/tasks/{task_id}{mapped}"
