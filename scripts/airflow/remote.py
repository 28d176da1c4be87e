"""An Airflow that others keep running, such as Compose. It is used from here, and never started or stopped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scripts.airflow.errors import Refused
from scripts.airflow.settings import Layout

URL, PASSWORD = "TENFOLD_AIRFLOW_URL", "TENFOLD_AIRFLOW_PASSWORD"
PAGES = "AIRFLOW__API__BASE_URL"
"""Airflow's own setting for the address of its UI. From a container, the API has another address."""


class Running(Protocol):
    """The Airflow in which a run is shown."""

    @property
    def layout(self) -> Layout:
        """Its folders."""

    @property
    def url(self) -> str:
        """Address of its API server."""

    @property
    def password(self) -> str:
        """The log-in."""

    @property
    def pages(self) -> str:
        """Address of its UI for a browser."""

    @property
    def stays(self) -> bool:
        """Whether it keeps running when the command ends."""

    @property
    def where_logs_are(self) -> str:
        """Where a person finds the logs of its processes."""

    def work_s(self) -> float | None:
        """Return the CPU seconds of its processes, which show progress; None if they cannot be seen."""

    def check(self) -> None:
        """Raise Failed if a process of it has died."""


@dataclass(frozen=True)
class Remote:
    """A running Airflow that is known by its address only."""

    layout: Layout
    url: str
    password: str
    pages: str
    stays: bool = True

    @property
    def where_logs_are(self) -> str:
        """Its processes run elsewhere."""
        return "the logs of its API server and its dag-processor"

    def work_s(self) -> float | None:
        """Return None, because its processes cannot be seen from here."""
        return None

    def check(self) -> None:
        """Do nothing. Its processes cannot be seen from here, and the follower of a run notices their silence."""


def remote_from(environ: Mapping[str, str], layout: Layout) -> Remote | None:
    """Return the Airflow that TENFOLD_AIRFLOW_URL names, if it does. Raises Refused without its password."""
    url = environ.get(URL, "").rstrip("/")
    if url and not environ.get(PASSWORD):
        raise Refused(f"{URL}={url} needs the password of its user: set {PASSWORD}")
    return Remote(layout, url, environ[PASSWORD], pages=environ.get(PAGES) or url) if url else None
