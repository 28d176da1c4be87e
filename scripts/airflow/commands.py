"""The commands. Each returns its exit code."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime

from pipeline.config.allowed import open_warning
from scripts.airflow.backfill import (
    BackfillRuns,
    RetrainRuns,
    failure_before,
    report_of_dates,
    trainer_of,
    training_report,
)
from scripts.airflow.checks import RETRAIN_SCHEDULE
from scripts.airflow.client import Client, new_run_id
from scripts.airflow.embedded import USUAL, Embedded, prepare, recorded_airflow, sweep, usable_airflow
from scripts.airflow.errors import Failed
from scripts.airflow.follow import SingleRun, follow, naming
from scripts.airflow.keys import USER
from scripts.airflow.patience import Patience
from scripts.airflow.progress import clock, display_for, say
from scripts.airflow.ready import ANY_TIME, end_forgotten_runs, require_slots, wait_until_ready
from scripts.airflow.record import exclusive_home
from scripts.airflow.remote import Airflow, remote_from
from scripts.airflow.request import (
    Backfill,
    Conf,
    draw_samples_once,
    needed_settings,
    needs_sample_images,
    with_sample_images,
)
from scripts.airflow.results import failure_of, results
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals

NEXT = """
Next: open the report in a browser. Then
  make run SOURCE=/path/to/images   trains on your own images, with a folder for each class
  make run TABLE=FILE LABEL=COLUMN  trains on a table: CSV, JSON lines, Parquet, Arrow, TFRecord
  make up                           starts Airflow and keeps it running, with a form and live pages"""


def run(layout: Layout, dag_id: str, conf: Conf, signals: Signals) -> int:
    """Run the DAG once and show it until it ends, in the named Airflow, in that of `up`, or else in a temporary one."""
    begin = time.monotonic()
    if needs_samples := needs_sample_images(dag_id, conf):
        say("This draws 900 sample images and trains a small model on them, in 1 to 4 minutes on 2 cores")
    with _airflow(layout, dag_id, signals) as (airflow, client):
        conf = with_sample_images(conf, layout.samples) if needs_samples else conf
        lines = run_once(airflow, client, conf, signals)
    say("\n".join(["", *lines, f"Done in {clock(time.monotonic() - begin)}", NEXT]))
    return 0


def run_once(airflow: Airflow, client: Client, conf: Conf, signals: Signals) -> list[str]:
    """Run the DAG in this Airflow, and return its results. Raises Failed with the error of the task that failed."""
    require_slots(client, conf)
    say(f"Running {client.dag_id} with {conf}")
    job = SingleRun(client, conf, new_run_id(), {"workspace": str(airflow.layout.workspace)})
    with naming(airflow, job):
        [ended] = follow(airflow, job, display_for(sys.stdout), signals)
        if ended["state"] == "failed":
            raise Failed(failure_of(client, job.run_id))
        return results(client, job.run_id)


def backfill(layout: Layout, request: Backfill, signals: Signals) -> int:
    """Make a dataset for each date, then train. Return 1 if a date or the last training failed."""
    begin = time.monotonic()
    with _airflow(layout, request.dag_id, signals, request) as (airflow, client):
        trainer = trainer_of(airflow, client, signals)
        say(f"Backfilling {request} with {request.conf}")
        dates = BackfillRuns(client, request)
        with naming(airflow, dates):
            follow(airflow, dates, display_for(sys.stdout), signals)
            dates.close()
            outcome = dates.outcome()
        say("\n".join(["", *report_of_dates(client, request, outcome)]))
        failed = bool(outcome.failed or outcome.refused)
        if trainer:
            retraining = RetrainRuns(trainer, outcome.since)
            with naming(airflow, retraining):
                runs = follow(airflow, retraining, display_for(sys.stdout), signals)
                failure = [] if runs else failure_before(trainer, client, outcome)
                say("\n".join(["", *training_report(trainer, runs), *failure]))
            failed = failed or bool(failure) or any(run["state"] == "failed" for run in runs)
    say(f"Done in {clock(time.monotonic() - begin)}")
    return 1 if failed else 0


def up(layout: Layout, dag_id: str, signals: Signals) -> int:
    """Start an Airflow that stays."""
    if airflow := usable_airflow(layout):
        say("Airflow is already running, with the settings from its start. To change settings, run `make down` first")
    else:
        with exclusive_home(layout.home):
            draw_samples_once(layout.samples)
            airflow = prepare(layout, background=True)
            try:
                with _started(airflow, dag_id, signals) as client:
                    # A person has paused them for a maintenance, and decides when they go on.
                    if paused := client.paused_dags():
                        say(f"Paused, so they start no task: {', '.join(paused)}. Switch them on under Dags in the UI")
                    # Not for a temporary Airflow: only the user of this command has its password.
                    if warning := open_warning():
                        say(warning)
            # The processes have sessions of their own, so they would outlive this command.
            except BaseException:
                airflow.stop()
                raise
            say(f"Sample images: {layout.samples}")
            say("Airflow runs until you stop it with `make down`. `make status` lists its processes")
    say(f"Airflow: {airflow.url}/dags/{dag_id}   user: {USER}   password: {airflow.password}")
    return 0


def down(layout: Layout) -> int:
    """Stop the Airflow of `up`, with the tasks it runs."""
    with exclusive_home(layout.home):
        say("Airflow is stopped" if sweep(layout) else "Airflow is not running")
    return 0


def status(layout: Layout) -> int:
    """Say what runs. 0 if Airflow is usable, else 1."""
    airflow = recorded_airflow(layout)
    if airflow is None:
        say("Airflow is not running. `make up` starts it")
        return 1
    dead = airflow.dead()
    for name, process in airflow.record.processes.items():
        say(f"{name:<14} {'dead, see ' + str(airflow.log(name)) if name in dead else f'process {process.pid}'}")
    say(f"Airflow: {airflow.url}   user: {USER}   password: {airflow.password}")
    return 1 if dead else 0


@contextmanager
def _airflow(
    layout: Layout, dag_id: str, signals: Signals, request: Backfill | None = None
) -> Iterator[tuple[Airflow, Client]]:
    """Provide the named Airflow or that of `up`. If there is none, start one that suits a backfill, for this block."""
    if airflow := remote_from(os.environ, layout) or usable_airflow(layout):
        say(f"Using the Airflow at {airflow.url}")
        with closing(_client(airflow, dag_id, signals)) as client:
            wait_until_ready(airflow, client, ANY_TIME, signals)
            client.unpause()
            yield airflow, client
    else:
        settings = needed_settings(request, os.environ) if request else USUAL
        with exclusive_home(layout.home), own_airflow(layout, dag_id, signals, settings) as own:
            yield own


@contextmanager
def own_airflow(
    layout: Layout, dag_id: str, signals: Signals, settings: Mapping[str, str] = USUAL
) -> Iterator[tuple[Embedded, Client]]:
    """Start an Airflow that is ready to run the DAG. Stop it, with all its processes, after the block.

    It has no schedule of `retrain`, which would start a training that nobody asked for.
    """
    airflow = prepare(layout, background=False, settings={RETRAIN_SCHEDULE: "", **settings})
    try:
        with _started(airflow, dag_id, signals) as client:
            client.unpause()
            # Only in a temporary Airflow, where no other command can have active runs.
            end_forgotten_runs(client)
            yield airflow, client
    finally:
        say("Stopping Airflow")
        airflow.stop()


@contextmanager
def _started(airflow: Embedded, dag_id: str, signals: Signals) -> Iterator[Client]:
    """Start Airflow, and provide a client when it is ready to run the DAG."""
    say(f"Starting Airflow at {airflow.url} (logs: {airflow.layout.logs})")
    # The database may hold a parse of older code, so the DAG must be parsed after this time.
    begin, since = time.monotonic(), datetime.now(UTC)
    with closing(_client(airflow, dag_id, signals)) as client:
        airflow.start(signals, client.ready if airflow.stays else None)
        wait_until_ready(airflow, client, since, signals)
        say(f"Airflow is ready after {time.monotonic() - begin:.0f} s")
        yield client


def _client(airflow: Airflow, dag_id: str, signals: Signals) -> Client:
    def pause(seconds: float) -> None:
        airflow.check()  # An Airflow that has died will not answer.
        signals.pause(seconds)

    return Client(airflow.url, airflow.password, dag_id, Patience(pause))
