"""A real Airflow with the plugin, and three users: an administrator, a viewer and a user without a role."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from dags.xcom_keys import DATASET_PLACE, TRAINING_PLACE
from scripts.airflow.client import Client
from scripts.airflow.embedded import Embedded, prepare
from scripts.airflow.patience import PATIENT
from scripts.airflow.ready import wait_until_ready
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals
from tests.airflow_database import copy_database

DAG = "image_training"
USERS = {"admin": "admin", "reader": "viewer", "stranger": ""}
"""Roles by user name. A user without a role can log in, but has no permissions."""
SETTINGS = {
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
    # A careless setting of an administrator. The pages must be safe with any run id.
    "AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN": "^.+$",
}


class Ui:
    """A running Airflow, from the view of its users."""

    def __init__(self, airflow: Embedded, client: Client) -> None:
        self.url = airflow.url
        self.layout = airflow.layout
        self.client = client

    def password(self, user: str) -> str:
        """Return the password of a user. Airflow generated it."""
        return str(json.loads(self.layout.passwords.read_text())[user])

    @contextmanager
    def requests_of(self, user: str) -> Iterator[httpx.Client]:
        """Yield an HTTP client with the login of a user, or without a login if the name is empty."""
        # Longer than a writer waits for SQLite, so that a failure shows the error of the server.
        with httpx.Client(base_url=self.url, timeout=180, trust_env=False) as http:
            if user:
                login = {"username": user, "password": self.password(user)}
                token = http.post("/auth/token", json=login).raise_for_status().json()["access_token"]
                http.headers["Authorization"] = f"Bearer {token}"
            yield http

    def run_with(self, run_id: str, training: Path) -> str:
        """Add an ended run whose tasks stored the folder of a training and of its dataset. Return the run id."""
        run = f"/api/v2/dags/{DAG}/dagRuns/{quote(run_id, safe='')}"
        trigger = {"dag_run_id": run_id, "logical_date": None, "conf": {"source_uri": str(training / "no images")}}
        with self.requests_of("admin") as http:

            def send(method: str, path: str, body: Any) -> None:
                """Make a call as `Client` does: while SQLite is locked, the server answers with an error."""

                def call() -> None:
                    answer = http.request(method, path, json=body)
                    # A repeated call may find what the first one created.
                    if answer.status_code != httpx.codes.CONFLICT:
                        answer.raise_for_status()

                PATIENT.until_answered(call)

            send("POST", f"/api/v2/dags/{DAG}/dagRuns", trigger)
            for key, place in ((TRAINING_PLACE, training), (DATASET_PLACE, training / "dataset")):
                send("POST", f"{run}/taskInstances/report/xcomEntries", {"key": key, "value": str(place)})
            send("PATCH", run, {"state": "failed"})
        return run_id


def page_of(run_id: str) -> str:
    """Return the path of the tab of a run in the pages of Airflow."""
    return f"/dags/{DAG}/runs/{quote(run_id, safe=':+')}/plugin/training"


def address(path: str, run_id: str, **further: Any) -> str:
    """Return the address of a page of the plugin for a run."""
    return f"/tenfold{path}?{urlencode({'dag_id': DAG, 'run_id': run_id, **further})}"


@contextmanager
def started(layout: Layout) -> Iterator[Ui]:
    """Yield an Airflow. It ends with the block, including all its processes."""
    copy_database(layout.home)
    airflow = prepare(layout, background=False, settings=SETTINGS)
    try:
        since = datetime.now(UTC)
        airflow.start(Signals())
        with closing(Client(airflow.url, airflow.password, DAG)) as client:
            wait_until_ready(airflow, client, since, Signals())
            yield Ui(airflow, client)
    finally:
        airflow.stop()
