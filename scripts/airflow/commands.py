"""The four commands. Each returns its exit code."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime

from scripts.airflow.client import Client
from scripts.airflow.embedded import Embedded, noted, prepare, sweep, usable
from scripts.airflow.follow import end_forgotten_runs, follow, results, wait_until_ready
from scripts.airflow.keys import USER
from scripts.airflow.progress import clock, display_for, say
from scripts.airflow.record import only_one
from scripts.airflow.request import Conf, sample_folder, with_source
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals

_EVER = datetime.min.replace(tzinfo=UTC)


def run(layout: Layout, dag_id: str, conf: Conf, signals: Signals) -> int:
    """One run from beginning to end, in the Airflow of `up` where there is one, else in one of its own."""
    begin = time.monotonic()
    if airflow := usable(layout):
        say(f"Using the Airflow at {airflow.url}")
        with closing(_client(airflow, dag_id)) as client:
            wait_until_ready(airflow, client, _EVER, signals)
            lines = _run(airflow, client, with_source(conf, layout.workspace), signals)
    else:
        with only_one(layout.home):
            conf = with_source(conf, layout.workspace)
            with _own_airflow(layout, dag_id, signals) as (airflow, client):
                lines = _run(airflow, client, conf, signals)
    say("\n".join(["", *lines, f"Done in {clock(time.monotonic() - begin)}"]))
    return 0


def up(layout: Layout, dag_id: str, signals: Signals) -> int:
    """Start an Airflow that stays."""
    if airflow := usable(layout):
        say("Airflow is already up")
    else:
        with only_one(layout.home):
            samples = sample_folder(layout.workspace)
            airflow = _start_to_stay(layout, dag_id, signals)
            say(f"Sample images: {samples}")
    say(f"Airflow: {airflow.url}/dags/{dag_id}   user: {USER}   password: {airflow.keys.password}")
    return 0


def down(layout: Layout) -> int:
    """Stop the Airflow of `up`, with the tasks it runs."""
    with only_one(layout.home):
        say("Airflow is stopped" if sweep(layout) else "Airflow is not up")
    return 0


def status(layout: Layout) -> int:
    """Say what runs. 0 if Airflow is usable, else 1."""
    airflow = noted(layout)
    if airflow is None:
        say("Airflow is not up")
        return 1
    dead = airflow.dead()
    for name, process in airflow.record.processes.items():
        say(f"{name:<14} {'dead, see ' + str(airflow.log(name)) if name in dead else f'process {process.pid}'}")
    say(f"Airflow: {airflow.url}   user: {USER}   password: {airflow.keys.password}")
    return 1 if dead else 0


@contextmanager
def _own_airflow(layout: Layout, dag_id: str, signals: Signals) -> Iterator[tuple[Embedded, Client]]:
    airflow = prepare(layout, background=False)
    try:
        with closing(_client(airflow, dag_id)) as client:
            _start(airflow, client, signals)
            end_forgotten_runs(client)
            yield airflow, client
    finally:
        say("Stopping Airflow")
        airflow.stop()


def _start_to_stay(layout: Layout, dag_id: str, signals: Signals) -> Embedded:
    airflow = prepare(layout, background=True)
    try:
        with closing(_client(airflow, dag_id)) as client:
            _start(airflow, client, signals)
    except BaseException:
        airflow.stop()
        raise
    return airflow


def _start(airflow: Embedded, client: Client, signals: Signals) -> None:
    say(f"Starting Airflow at {airflow.url} (logs: {airflow.layout.logs})")
    begin, since = time.monotonic(), datetime.now(UTC)
    airflow.start(signals)
    wait_until_ready(airflow, client, since, signals)
    say(f"Airflow is ready after {time.monotonic() - begin:.0f} s")


def _run(airflow: Embedded, client: Client, conf: Conf, signals: Signals) -> list[str]:
    say(f"Running {client.dag_id} with {conf}")
    run_id = follow(airflow, client, conf, display_for(sys.stdout), signals)
    return results(client, run_id)


def _client(airflow: Embedded, dag_id: str) -> Client:
    return Client(airflow.url, airflow.keys.password, dag_id)
