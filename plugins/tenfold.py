"""What Airflow has to know of Tenfold beside its DAGs."""

from airflow.plugins_manager import AirflowPlugin

from dags.backfill_dates import BackfillDates, Dates
from dags.links import PAGES
from dags.queued import RunQueued
from plugins.training_monitor.lazy import Lazy


class TenfoldPlugin(AirflowPlugin):
    """Registers what DAGs have of ours: Airflow reads a DAG back from its database only with classes that it knows."""

    name = "tenfold"
    timetables = (BackfillDates, Dates)
    deadline_references = (RunQueued,)
    fastapi_apps = ({"app": Lazy("plugins.training_monitor.app:build"), "url_prefix": f"/{PAGES}", "name": "Tenfold"},)
    external_views = (
        {
            "name": "Training",
            "href": f"{PAGES}/run?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "training",
        },
        {
            "name": "Training monitor",
            "href": f"{PAGES}/trainings",
            "destination": "nav",
            "category": "browse",
            "url_route": "training-monitor",
            "icon": f"{PAGES}/assets/icon.svg",
            "icon_dark_mode": f"{PAGES}/assets/icon-dark.svg",
        },
        {
            "name": "Start a training",
            "href": f"{PAGES}/start",
            "destination": "nav",
            "category": "browse",
            "url_route": "start-a-training",
            "icon": f"{PAGES}/assets/icon.svg",
            "icon_dark_mode": f"{PAGES}/assets/icon-dark.svg",
        },
    )
