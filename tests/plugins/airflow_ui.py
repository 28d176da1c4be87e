"""The real Airflow with our plugin, and those who look at it: one who may do all, one who may read, and a stranger."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from dags.places import DATASET_PLACE, TRAINING_PLACE
from scripts.airflow.client import Client
from scripts.airflow.embedded import Embedded, prepare
from scripts.airflow.follow import wait_until_ready
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals

DAG = "image_training"
USERS = {"admin": "admin", "reader": "viewer", "stranger": ""}
"""Roles by name. One without a role can log in, and has a right to nothing."""
SETTINGS = {
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
    # As careless as an administrator may be: what we show must not rely on it.
    "AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN": "^.+$",
}


class Ui:
    """An Airflow that runs, as its users reach it."""

    def __init__(self, airflow: Embedded, client: Client) -> None:
        self.url = airflow.url
        self.layout = airflow.layout
        self.client = client

    def password(self, user: str) -> str:
        """Of a user; Airflow thinks of those that it was given none for."""
        return str(json.loads(self.layout.passwords.read_text())[user])

    @contextmanager
    def requests_of(self, user: str) -> Iterator[httpx.Client]:
        """Requests with the log-in of a user, and without any where there is no name."""
        with httpx.Client(base_url=self.url, timeout=60, trust_env=False) as http:
            if user:
                login = {"username": user, "password": self.password(user)}
                token = http.post("/auth/token", json=login).raise_for_status().json()["access_token"]
                http.headers["Authorization"] = f"Bearer {token}"
            yield http

    def run_with(self, run_id: str, training: Path) -> str:
        """A run that has ended, whose tasks left this folder as that of its training and of its data set."""
        run = f"/api/v2/dags/{DAG}/dagRuns/{quote(run_id, safe='')}"
        trigger = {"dag_run_id": run_id, "logical_date": None, "conf": {"source_uri": str(training / "no images")}}
        with self.requests_of("admin") as http:
            http.post(f"/api/v2/dags/{DAG}/dagRuns", json=trigger).raise_for_status()
            for key, place in ((TRAINING_PLACE, training), (DATASET_PLACE, training / "dataset")):
                left = {"key": key, "value": str(place)}
                http.post(f"{run}/taskInstances/report/xcomEntries", json=left).raise_for_status()
            http.patch(run, json={"state": "failed"}).raise_for_status()
        return run_id


def page_of(run_id: str) -> str:
    """Path of a run's tab in Airflow's own pages."""
    return f"/dags/{DAG}/runs/{quote(run_id, safe=':+')}/plugin/training"


def address(path: str, run_id: str, **further: Any) -> str:
    """Return a path of our own pages, with the run that it shows."""
    return f"/tenfold{path}?{urlencode({'dag_id': DAG, 'run_id': run_id, **further})}"


@contextmanager
def started(layout: Layout) -> Iterator[Ui]:
    """An Airflow that ends with the block, with all it started."""
    layout.home.mkdir(mode=0o700)
    airflow = prepare(layout, background=False, settings=SETTINGS)
    try:
        since = datetime.now(UTC)
        airflow.start(Signals())
        with closing(Client(airflow.url, airflow.password, DAG)) as client:
            wait_until_ready(airflow, client, since, Signals())
            yield Ui(airflow, client)
    finally:
        airflow.stop()
