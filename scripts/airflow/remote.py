"""The Airflow that a command talks to: its address and its log-in. One that others keep running is never stopped."""

from collections.abc import Mapping
from dataclasses import dataclass

from scripts.airflow.errors import Refused
from scripts.airflow.settings import Layout

URL, PASSWORD = "TENFOLD_AIRFLOW_URL", "TENFOLD_AIRFLOW_PASSWORD"
PAGES = "AIRFLOW__API__BASE_URL"
"""Airflow's own setting for the address of its UI. From a container, the API has another address."""


@dataclass
class Airflow:
    """The Airflow in which a run is shown."""

    layout: Layout
    url: str
    """Address of its API server."""
    password: str
    pages: str
    """Address of its UI for a browser."""
    stays: bool = True
    """Whether it keeps running when the command ends."""
    where_logs_are: str = "the logs of its API server and its dag-processor"
    """Where a person finds the logs of its processes."""

    def check(self) -> None:
        """Raise Failed if one of its processes has died. Does nothing for an Airflow elsewhere."""


def remote_from(environ: Mapping[str, str], layout: Layout) -> Airflow | None:
    """Return the Airflow that TENFOLD_AIRFLOW_URL names, if it does. Raises Refused without its password."""
    url = environ.get(URL, "").rstrip("/")
    if url and not environ.get(PASSWORD):
        raise Refused(f"{URL}={url} needs the password of its user: set {PASSWORD}")
    return Airflow(layout, url, environ[PASSWORD], pages=environ.get(PAGES) or url) if url else None
