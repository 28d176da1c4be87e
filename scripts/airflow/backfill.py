"""Start a backfill, show it date by date, and return its outcome."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime

import httpx

from scripts.airflow.client import ACTIVE, FINISHED, Client, Json
from scripts.airflow.dates import Backfill
from scripts.airflow.errors import Interrupted, Refused
from scripts.airflow.follow import GIVE_UP_LIMIT_S, give_up
from scripts.airflow.patience import BUSY
from scripts.airflow.progress import Display, Stage, say
from scripts.airflow.remote import Running
from scripts.airflow.signals import Signals
from scripts.airflow.times import time_of
from scripts.airflow.watch import POLL_S, RunStatus, naming, starting, watch

_LAST_LOOKS = 4
"""After a cancellation, runs are listed this many times, because a scheduler may still start one."""
_RANGE = ("from_date", "to_date")
_BUSY: Mapping[int, str] = {**BUSY, httpx.codes.CONFLICT: "Airflow has not closed an earlier backfill yet"}


@dataclass(frozen=True)
class Outcome:
    """What a backfill found and did."""

    since: datetime
    """Start of the backfill."""
    runs: list[Json]
    """The runs that it made or started again."""
    skipped: list[Json]
    """The runs that existed, and that it left as they were."""
    missing: list[date]
    """Days without a run, because the schedule of the DAG has none there."""

    @property
    def failed(self) -> list[Json]:
        """Runs that did not succeed."""
        return [run for run in self.runs if run["state"] == "failed"]


def run_backfill(airflow: Running, client: Client, request: Backfill, display: Display, signals: Signals) -> Outcome:
    """Start a backfill, or find it under way, and show it until all its runs have ended.

    Raises:
        Refused: If another backfill is under way.
    """
    what = f"the backfill of {client.dag_id} from {request.first} to {request.last}"
    with naming(airflow, what, f"/dags/{client.dag_id}/backfills"):
        return _run(airflow, client, request, display, signals)


def _run(airflow: Running, client: Client, request: Backfill, display: Display, signals: Signals) -> Outcome:
    try:
        backfill = _start(client, request)
        since = _created_at(backfill)
        watch(airflow, lambda: _status(_outcome(client, request, since).runs), display, signals)
    except Interrupted:
        _cancel(client, request)
        raise
    # Airflow closes finished backfills only twice a minute, and refuses another one until then.
    client.close_backfill(backfill["id"])
    return _outcome(client, request, since)


def _start(client: Client, request: Backfill) -> Json:
    with starting(f"the backfill of {client.dag_id}"):
        # If an answer is lost, the backfill may have been created anyway. So each try looks for it first.
        return client.patience.until_answered(lambda: _under_way(client, request) or _create(client, request), _BUSY)


def _create(client: Client, request: Backfill) -> Json:
    for backfill in client.open_backfills():
        if _is_same(backfill, request, client.dag_id):
            # It has ended, or its runs could not be created. Airflow closes neither at once, and creates no other until
            # then.
            client.close_backfill(backfill["id"])
    return client.create_backfill(request.body(client.dag_id))


def _under_way(client: Client, request: Backfill) -> Json | None:
    """Return this backfill if it is running. Raises Refused if another backfill is running."""
    for backfill in client.open_backfills():
        runs = _runs_between(client, *(datetime.fromisoformat(backfill[name]) for name in _RANGE))
        if not any(run["state"] in ACTIVE for run in runs if _was_queued_since(run, _created_at(backfill))):
            continue  # None of its runs is active.
        if not _is_same(backfill, request, client.dag_id):
            raise Refused(
                f"another backfill of {client.dag_id} is running, from {backfill['from_date']} to "
                f"{backfill['to_date']}: wait until it ends, or cancel it in Airflow's UI"
            )
        say("This backfill is already running: following it")
        return backfill
    return None


def _is_same(backfill: Json, request: Backfill, dag_id: str) -> bool:
    body = request.body(dag_id)
    times = all(time_of(backfill[name]) == time_of(body[name]) for name in _RANGE)
    return times and all(backfill[name] == body[name] for name in ("dag_run_conf", "reprocess_behavior"))


def _outcome(client: Client, request: Backfill, since: datetime) -> Outcome:
    # A manual run has the time of its trigger as its date, and stands for no day.
    scheduled = [run for run in _runs_between(client, request.begin, request.end) if run["run_type"] != "manual"]
    runs = [run for run in scheduled if _was_queued_since(run, since)]
    seen = {_moment_of(run).date() for run in scheduled}
    missing = [day for day in request.days if day not in seen]
    return Outcome(since, runs, [run for run in scheduled if run not in runs], missing)


def _runs_between(client: Client, first: datetime, last: datetime) -> list[Json]:
    return client.runs({"logical_date_gte": first.isoformat(), "logical_date_lte": last.isoformat()})


def _created_at(backfill: Json) -> datetime:
    return datetime.fromisoformat(backfill["created_at"])


def _was_queued_since(run: Json, since: datetime) -> bool:
    # Airflow does not say which backfill a run belongs to. But each backfill queues its runs, also earlier ones again.
    queued = time_of(run["queued_at"])
    return queued is not None and queued >= since


def _status(runs: list[Json]) -> RunStatus:
    started = [Stage(date_of(run), _text(run)) for run in runs if run["state"] != "queued"]
    return RunStatus(started, all(run["state"] in FINISHED for run in runs))


def _text(run: Json) -> str:
    begin, end = time_of(run["start_date"]), time_of(run["end_date"])
    if run["state"] not in FINISHED or begin is None or end is None:
        return str(run["state"])
    return f"{'done' if run['state'] == 'success' else 'failed'}, {(end - begin).total_seconds():.0f} s"


def date_of(run: Json) -> str:
    """Return the date of a run, with the time if that is not midnight."""
    moment = _moment_of(run)
    return moment.strftime("%Y-%m-%d" if (moment.hour, moment.minute) == (0, 0) else "%Y-%m-%dT%H:%M")


def _moment_of(run: Json) -> datetime:
    return datetime.fromisoformat(run["logical_date"])


def _cancel(client: Client, request: Backfill) -> None:
    """Cancel the backfill, and mark its active runs as failed."""
    hurried = client.hurried(GIVE_UP_LIMIT_S)
    try:
        for backfill in hurried.open_backfills():
            if _is_same(backfill, request, client.dag_id):
                _cancel_one(hurried, request, backfill)
    except httpx.HTTPError as error:
        say(f"The backfill could not be cancelled ({error}): cancel it in Airflow's UI")


def _cancel_one(client: Client, request: Backfill, backfill: Json) -> None:
    client.close_backfill(backfill["id"])
    say("The backfill is cancelled")
    for look in range(_LAST_LOOKS):
        # A scheduler that read a run before it was marked as failed may still set it to running. One look misses that.
        time.sleep(POLL_S if look else 0)
        for run in _outcome(client, request, _created_at(backfill)).runs:
            if run["state"] in ACTIVE:
                give_up(client, run["dag_run_id"])
