"""A backfill: start it, find its runs, and cancel it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import httpx

from scripts.airflow.client import ACTIVE, FINISHED, Client, Json
from scripts.airflow.dates import Backfill
from scripts.airflow.errors import Refused
from scripts.airflow.follow import Job
from scripts.airflow.patience import BUSY
from scripts.airflow.progress import Stage, say, time_of

_BUSY: Mapping[int, str] = {**BUSY, httpx.codes.CONFLICT: "Airflow has not closed an earlier backfill yet"}
_NEVER = datetime.max.replace(tzinfo=UTC)


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


class Dates(Job):
    """The runs of a backfill. Airflow does not say which runs belong to a backfill: it queues them after its start."""

    def __init__(self, client: Client, request: Backfill) -> None:
        what = f"the backfill of {client.dag_id} from {request.first} to {request.last}"
        super().__init__(client, what, f"/dags/{client.dag_id}/backfills")
        self._request = request
        self._since = _NEVER

    def start(self) -> None:
        """Start it, or find it under way. Raises Refused if another backfill is under way."""
        # If an answer is lost, the backfill may have been created anyway. So each try looks for it first.
        backfill = self.client.patience.until_answered(self._find_or_create, _BUSY)
        self._since = datetime.fromisoformat(backfill["created_at"])

    def runs(self) -> list[Json]:
        """Return the runs that it made or started again."""
        return self.outcome().runs

    def stages(self, runs: Sequence[Json]) -> list[Stage]:
        """Return one line for each date that has begun."""
        return [Stage(date_of(run), _text(run)) for run in runs if run["state"] != "queued"]

    def close(self) -> None:
        """Close it after its last run: Airflow does so only twice a minute, and refuses another backfill until then."""
        for backfill in self._open():
            self.client.close_backfill(backfill["id"])

    def cancel(self) -> None:
        """Cancel it, and mark its active runs as failed."""
        for backfill in self._open():
            self.client.close_backfill(backfill["id"])
            say("The backfill is cancelled")
            self._since = datetime.fromisoformat(backfill["created_at"])
            super().cancel()

    def outcome(self) -> Outcome:
        """Return the runs of all its dates, and the dates without a run."""
        scheduled = self._runs_in(self._request.body())
        runs = [run for run in scheduled if _was_queued_since(run, self._since)]
        seen = {_moment_of(run).date() for run in scheduled}
        missing = [day for day in self._request.days if day not in seen]
        return Outcome(self._since, runs, [run for run in scheduled if run not in runs], missing)

    def _find_or_create(self) -> Json:
        for backfill in self.client.open_backfills():
            since = datetime.fromisoformat(backfill["created_at"])
            queued = [run for run in self._runs_in(backfill) if _was_queued_since(run, since)]
            if not any(run["state"] in ACTIVE for run in queued):
                continue
            if self._is_this(backfill):
                say("This backfill is already running: following it")
                return backfill
            raise Refused(
                f"another backfill of {self.client.dag_id} is running, from {backfill['from_date']} to "
                f"{backfill['to_date']}: wait until it ends, or cancel it in Airflow's UI"
            )
        # An earlier one has ended, or its runs could not be created. Airflow does not close it at once, and creates no
        # other until then.
        self.close()
        return self.client.create_backfill(self._request.body())

    def _open(self) -> list[Json]:
        return [backfill for backfill in self.client.open_backfills() if self._is_this(backfill)]

    def _is_this(self, backfill: Json) -> bool:
        body = self._request.body()
        times = all(time_of(backfill[name]) == time_of(body[name]) for name in ("from_date", "to_date"))
        return times and all(backfill[name] == body[name] for name in ("dag_run_conf", "reprocess_behavior"))

    def _runs_in(self, backfill: Json) -> list[Json]:
        """Return the runs of the dates of a backfill. A manual run has its trigger as date, and stands for no day."""
        runs = self.client.runs({"logical_date_gte": backfill["from_date"], "logical_date_lte": backfill["to_date"]})
        return [run for run in runs if run["run_type"] != "manual"]


def _was_queued_since(run: Json, since: datetime) -> bool:
    queued = time_of(run["queued_at"])
    return queued is not None and queued >= since


def _text(run: Json) -> str:
    if run["state"] not in FINISHED or run["duration"] is None:
        return str(run["state"])
    return f"{'done' if run['state'] == 'success' else 'failed'}, {run['duration']:.0f} s"


def date_of(run: Json) -> str:
    """Return the date of a run, with the time if that is not midnight."""
    moment = _moment_of(run)
    return moment.strftime("%Y-%m-%d" if (moment.hour, moment.minute) == (0, 0) else "%Y-%m-%dT%H:%M")


def _moment_of(run: Json) -> datetime:
    return datetime.fromisoformat(run["logical_date"])
