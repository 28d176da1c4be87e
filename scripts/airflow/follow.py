"""Follow what a command started in Airflow: one run, a backfill, or the training after it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote

import httpx
from typing_extensions import override

from scripts.airflow.client import ACTIVE, FINISHED, Client, Json
from scripts.airflow.errors import Failed, Interrupted
from scripts.airflow.patience import passing
from scripts.airflow.progress import Display, Stage, say, stages_of
from scripts.airflow.remote import Airflow
from scripts.airflow.signals import Signals

PLACES = ("workspace", "local_folder")
"""Settings that decide where the record of a training is."""
POLL_S = 1.0
RUNS_PER_S = 100
"""More runs than this are looked at less often than once in POLL_S. A look at 365 runs takes the API server 0.2 s."""
TOLERANCE_S = 60.0
"""A refusal counts as temporary for this many seconds, because an ingress without its backend answers 404."""
GIVE_UP_LIMIT_S = 60.0
"""How long a person who pressed Ctrl-C waits for a locked database. On a busy machine, one answer may take 30 s."""
_LAST_LOOKS = 4
"""After a cancellation, runs are listed this many times, because a scheduler may still start one."""


class Job(ABC):
    """The runs of a DAG that a command started. Errors name it as `what`, and refer to `page` of Airflow's UI."""

    def __init__(self, client: Client, what: str, page: str) -> None:
        self.client = client
        self.what = what
        self.page = page

    def start(self) -> None:  # noqa: B027 - not all are started from here
        """Start it in Airflow, unless Airflow starts it by itself."""

    def awaits_runs(self) -> bool:
        """Return whether runs will follow that Airflow has not created yet."""
        return False

    @abstractmethod
    def runs(self) -> list[Json]:
        """Return its runs so far."""

    def own_runs(self) -> list[Json]:
        """Return those of its runs that end with it if a person interrupts the command."""
        return self.runs()

    @abstractmethod
    def stages(self, runs: Sequence[Json]) -> list[Stage]:
        """Return what a person sees of its runs."""

    def cancel(self) -> None:
        """Mark its active runs as failed."""
        for look in range(_LAST_LOOKS):
            # A scheduler that read a run before it was marked as failed may still set it to running. One look misses
            # that.
            time.sleep(POLL_S if look else 0)
            for run in self.own_runs():
                if run["state"] in ACTIVE:
                    give_up(self.client, run["dag_run_id"])


class SingleRun(Job):
    """One run."""

    def __init__(self, client: Client, conf: Json, run_id: str, places: Json) -> None:
        page = f"/dags/{quote(client.dag_id, safe='')}/runs/{quote(run_id, safe=':')}"
        super().__init__(client, f"the run {run_id} of {client.dag_id}", page)
        self.run_id = run_id
        self._conf = conf
        self._places = {**places, **{name: conf[name] for name in PLACES if conf.get(name)}}

    def start(self) -> None:
        """Trigger it."""
        self.client.trigger(self._conf, self.run_id)

    @override
    def runs(self) -> list[Json]:
        return [self.client.run(self.run_id)]

    @override
    def stages(self, runs: Sequence[Json]) -> list[Stage]:
        return stages_of_run(self.client, self.run_id, self._places, self.run_id)

    def cancel(self) -> None:
        """Mark the run as failed. If its trigger was cut off, it may not be active yet."""
        give_up(self.client, self.run_id)


def follow(airflow: Airflow, job: Job, display: Display, signals: Signals) -> list[Json]:
    """Start a job and show it until its runs have ended. Return them. A signal marks them as failed.

    Raises:
        Failed: Airflow refused the job, or a process of Airflow died.
        httpx.HTTPError: Airflow did not answer for as long as the client asks, or refused for TOLERANCE_S seconds.
    """
    try:
        _start(job)
        return _watch(airflow, job, display, signals)
    except Interrupted:
        job.client = job.client.hurried(GIVE_UP_LIMIT_S)
        try:
            job.cancel()
        except httpx.HTTPError as error:
            say(f"Could not cancel {job.what} ({error}): cancel it in Airflow's UI")
        raise


def _start(job: Job) -> None:
    try:
        job.start()
    except httpx.HTTPStatusError as error:
        if passing(error):
            raise
        raise Failed(f"Airflow refused to start {job.what}: {error.response.text}") from error


def _watch(airflow: Airflow, job: Job, display: Display, signals: Signals) -> list[Json]:
    start = time.monotonic()
    refused_since: float | None = None
    runs: list[Json] = []
    while True:
        airflow.check()
        try:
            # Asked first: an event that becomes a run between the two calls would otherwise be in neither.
            awaits_runs = job.awaits_runs()
            runs = job.runs()
            stages = job.stages(runs)
        except httpx.HTTPStatusError as error:
            refused_since = refused_since or time.monotonic()
            # The client has already repeated a call with a temporary error for minutes.
            if passing(error) or time.monotonic() - refused_since > TOLERANCE_S:
                raise
        else:
            refused_since = None
            display.show(stages, time.monotonic() - start)
            if not awaits_runs and all(run["state"] in FINISHED for run in runs):
                return runs
        signals.pause(pause_after(len(runs)))


def pause_after(runs: int) -> float:
    """Return the seconds between two looks at some runs."""
    return max(POLL_S, runs / RUNS_PER_S)


@contextmanager
def naming(airflow: Airflow, job: Job) -> Iterator[None]:
    """Raise Failed, which names the job, if Airflow does not answer or refuses in this block: the job may go on."""
    try:
        yield
    except httpx.HTTPError as error:
        reason = passing(error) or str(error).partition("\n")[0] or type(error).__name__
        if airflow.stays:
            goes_on = f"continues without this command: see {airflow.pages}{job.page}"
        else:
            goes_on = f"ends together with this command: see {airflow.where_logs_are}, and start it again"
        raise Failed(f"gave up on Airflow at {airflow.url}: {reason}. {job.what} {goes_on}") from error


def give_up(client: Client, run_id: str) -> None:
    """Mark a run as failed, and say so. A run whose trigger was cut off may not be there."""
    try:
        client.fail(run_id)
        say(f"The run {run_id} is marked as failed")
    except httpx.HTTPError as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.NOT_FOUND:
            say(
                f"Airflow has no run {run_id} of {client.dag_id}. If Airflow was slow to answer, the run may still "
                "start: look for it in the list of runs"
            )
            return
        say(f"The run {run_id} could not be marked as failed: {error}")


def stages_of_run(client: Client, run_id: str, places: Json, training: str) -> list[Stage]:
    """Return the stages of a run. A training says its epoch, from its record in `places`."""
    from pipeline.runs.run import describe_progress  # Imports NumPy, which other commands do not need.

    note = describe_progress(places, training) if training else ""
    return stages_of(client.task_instances(run_id), {"train": note})
