"""An example of a notifier that an administrator can configure. It writes to a file."""

import os
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier


class ToFile(BaseNotifier):
    """Appends a line for each call, with the method and the run."""

    def notify(self, context: Any) -> None:
        """Handle a call from a task, or from the process that reads DAGs."""
        self._write("notify", context["run_id"])

    async def async_notify(self, context: Any) -> None:
        """Handle a call from the triggerer."""
        self._write("async_notify", context["dag_run"]["dag_run_id"])

    def _write(self, how: str, run_id: str) -> None:
        with Path(os.environ["TENFOLD_TEST_NOTES"]).open("a") as file:
            file.write(f"{how} {run_id}\n")


class WithTemplate(ToFile):
    """Writes the DAG of the run, too, which Airflow fills in."""

    template_fields = ("subject",)

    def __init__(self) -> None:
        super().__init__()
        self.subject = "{{ dag_run.dag_id }}"

    def _write(self, how: str, run_id: str) -> None:
        super()._write(how, f"{run_id} of {self.subject}")
