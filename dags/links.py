"""Buttons of the tasks in Airflow's UI. Their addresses are relative, because Airflow may be served below a path."""

from typing import Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperator, BaseOperatorLink

PAGES = "tenfold"
"""Path of the plugin's pages on Airflow's API server."""


class _Page(BaseOperatorLink):
    """A page of the plugin about a run."""

    page = ""

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address of the page for the run of the task."""
        return f"{PAGES}/{self.page}?{urlencode({'dag_id': ti_key.dag_id, 'run_id': ti_key.run_id})}"


class ReportLink(_Page):
    """The report of a training."""

    name, page = "Report", "report"


class CardLink(_Page):
    """The card of a dataset."""

    name, page = "Dataset card", "card"


class InputsLink(_Page):
    """The page of a comparison of inputs."""

    name, page = "Comparison of inputs", "inputs"


class TrainingLink(BaseOperatorLink):
    """The tab of the run that shows its training."""

    name = "Training"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address of the tab."""
        # Airflow's page of the run, because its menu page for a plugin drops the query string.
        return f"dags/{quote(ti_key.dag_id, safe='')}/runs/{quote(ti_key.run_id, safe='')}/plugin/training"


class CometLink(BaseOperatorLink):
    """The experiment in Comet. There is no button if the training had no API key and wrote archives."""

    name = "Comet experiment"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address that the training returned; empty if it returned none."""
        from airflow.sdk.execution_time.xcom import XCom

        address = XCom.get_value(ti_key=ti_key, key="comet")
        return address if isinstance(address, str) and address.startswith("https://") else ""
