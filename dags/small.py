"""Runs with a small dataset: the task `extract` builds it up to the commit, and the tasks in between are skipped.

They are skipped without a process of their own, which would take longer than their work. If a person clears one of
them, it runs as in any other run.
"""

from typing import Any

from dags.xcom_keys import PLAN
from pipeline.errors import SettingsError

EXTRACT, MAKES_PLAN = "extract", "shard.plan"
"""The tasks that can make the plan of a run."""
BETWEEN = ("extract_range", MAKES_PLAN, "shard.write", "upload.approve", "upload.copy")
"""The tasks between `extract` and `upload.commit`."""


def skip_to_commit(plan_file: str) -> None:
    """Leave the plan of a small dataset for the commit, and skip the tasks in between. Only `extract` calls this.

    If the worker dies between this request and the end of `extract`, the tasks stay skipped for its next attempt. If
    that attempt finds the dataset no longer small, or has a question, `plan_of_run` says to clear `extract`.
    """
    from airflow.sdk import get_current_context
    from airflow.sdk.execution_time.comms import SkipDownstreamTasks
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    get_current_context()["ti"].xcom_push(key=PLAN, value=plan_file)
    # Airflow 3.3.2 sends this request for the exception `DownstreamTasksSkipped`. After an exception, the task has no
    # result, and then Airflow could not map a task over it that a person clears.
    SUPERVISOR_COMMS.send(SkipDownstreamTasks(tasks=list(BETWEEN)))


def plan_of_run(task_instance: Any) -> str:
    """Return the file of the plan of a run.

    The state decides who made it, because Airflow keeps the XComs of a task that ran once and is now skipped.

    Raises SettingsError if neither task made a plan.
    """
    run_id = task_instance.run_id
    of_run = {"dag_id": task_instance.dag_id, "run_ids": [run_id], "task_ids": [MAKES_PLAN]}
    state = task_instance.get_task_states(**of_run)[run_id][MAKES_PLAN]
    plan_file = task_instance.xcom_pull(task_ids=EXTRACT if state == "skipped" else MAKES_PLAN, key=PLAN)
    if not plan_file:
        raise SettingsError(
            f"this run has no plan, and `{MAKES_PLAN}` is {state}: clear `{EXTRACT}` and all tasks after it"
        )
    return str(plan_file)
