"""An Airflow with a real scheduler and the DAGs of this project, for the tests of a file."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import httpx

from scripts.airflow.client import FINISHED, Client
from scripts.airflow.embedded import Embedded, prepare
from scripts.airflow.ready import wait_until_ready
from scripts.airflow.settings import ROOT, Layout
from scripts.airflow.signals import Signals
from tests.airflow_database import copy_database
from tests.waiting import until

T = TypeVar("T")


@contextmanager
def embedded_airflow(folder: Path, settings: Mapping[str, str]) -> Iterator[Embedded]:
    """Start an Airflow with settings of its own, whose files are in the folder, and stop it at the end."""
    copy_database(folder / "home")
    embedded = prepare(
        Layout(folder / "home", folder / "workspace", ROOT / "dags"), background=False, settings=settings
    )
    try:
        with Signals() as signals, closing(client_of(embedded)) as client:
            since = datetime.now(UTC)
            embedded.start(signals)
            wait_until_ready(embedded, client, since, signals)
            client.unpause()
        yield embedded
    finally:
        embedded.stop()


def client_of(embedded: Embedded) -> Client:
    """Return a client for `image_dataset`."""
    return Client(embedded.url, embedded.password, "image_dataset")


def ended(client: Client, run_id: str) -> str:
    """Wait for the end of a run, and return its state."""
    return wait(lambda: client.run(run_id)["state"], is_expected=FINISHED.__contains__)


def wait(look: Callable[[], T], is_expected: Callable[[T], object] = bool) -> T:
    """Wait for a value. On SQLite, the server may not answer while a task writes.

    Requests are half a second apart, because each needs processor time.
    """
    return until(look, 480, 0.5, is_expected=is_expected, errors=httpx.HTTPError)
