"""A fake task instance of a run whose plan is known."""

from collections.abc import Sequence
from typing import Any

from pipeline.storage import Place


class PlannedRun:
    """A task instance. XComs and states need a server of Airflow, which a long test has."""

    dag_id, run_id = "image_dataset", "a run"

    def __init__(self, plan: Place, questions: Sequence[str] = ()) -> None:
        self._xcoms = {("shard.plan", "plan"): str(plan), ("approve", "asked"): list(questions)}

    def get_task_states(self, **_: Any) -> dict[str, dict[str, str]]:
        """Return that the task `plan` made the plan."""
        return {self.run_id: {"shard.plan": "success"}}

    def xcom_pull(self, *, task_ids: str, key: str) -> Any:
        """Return the plan, or the questions that were asked."""
        return self._xcoms[task_ids, key]
