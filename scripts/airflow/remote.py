"""An Airflow that is kept by others, Compose for one: it is used, never started or stopped from here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scripts.airflow.errors import Refused
from scripts.airflow.settings import Layout

URL, PASSWORD = "TENFOLD_AIRFLOW_URL", "TENFOLD_AIRFLOW_PASSWORD"


class Running(Protocol):
    """What a run is followed in."""

    @property
    def layout(self) -> Layout:
        """Its folders."""

    @property
    def url(self) -> str:
        """Address of its API server."""

    @property
    def password(self) -> str:
        """The log-in."""

    def check(self) -> None:
        """Raise Failed where it is known to have died."""


@dataclass(frozen=True)
class Remote:
    """See Running."""

    layout: Layout
    url: str
    password: str

    def check(self) -> None:
        """Its processes cannot be seen from here; whoever follows a run notices their silence."""


def remote_from(environ: Mapping[str, str], layout: Layout) -> Remote | None:
    """The Airflow that TENFOLD_AIRFLOW_URL names, if it does. Raises Refused without its password."""
    url = environ.get(URL, "").rstrip("/")
    if url and not environ.get(PASSWORD):
        raise Refused(f"{URL}={url} needs the password of its user: set {PASSWORD}")
    return Remote(layout, url, environ[PASSWORD]) if url else None
