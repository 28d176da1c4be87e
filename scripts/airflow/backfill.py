"""A backfill: its runs, the training that follows them, and the results of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
from typing_extensions import override

from pipeline.config.data_date import TIME_ZONE, zone_of_schedule
from pipeline.system.wording import counted, first_of
from scripts.airflow.checks import BACKFILLS
from scripts.airflow.client import ACTIVE, Client, Json
from scripts.airflow.errors import Refused
from scripts.airflow.follow import PLACES, Job, stages_of_run
from scripts.airflow.patience import BUSY
from scripts.airflow.progress import Stage, say, time_of
from scripts.airflow.ready import ANY_TIME, wait_until_ready
from scripts.airflow.remote import Airflow
from scripts.airflow.request import MAX_DATES, Backfill
from scripts.airflow.results import COMMIT, failure_of, results, skip_reason, task_result
from scripts.airflow.signals import Signals

MAKER, TABULAR_MAKER = "image_dataset", "tabular_dataset"
"""The DAGs that make a dataset of each date."""
DAG, TABULAR = "image_training", "tabular_training"
KINDS = {DAG: "images", MAKER: "images", TABULAR: "table", TABULAR_MAKER: "table"}
"""The kind of examples of each DAG. The settings of other DAGs are checked by their first task."""
TRAINER, CHOICE = "retrain", "choose"
"""The DAG that trains once on new datasets, and its task that chooses them."""
_HEAD = ("date", "examples", "version", "outcome")
_BUSY: Mapping[int, str] = {
    **BUSY,
    httpx.codes.CONFLICT: "Airflow is still creating the runs of a backfill, or has not closed an earlier one yet",
}
_SHOWN = 5
"""The summary names at most this many dates."""
_SEARCHED = 20
"""At most this many runs of `retrain`, the newest, are searched for the last one on a dataset name."""
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
    missing: list[str]
    """Dates without a run, because the schedule of the DAG has none there."""
    refused: Sequence[str] = ()
    """Dates whose runs Airflow did not create, because runs of another schedule have their names."""

    @property
    def failed(self) -> list[Json]:
        """Runs that did not succeed."""
        return [run for run in self.runs if run["state"] == "failed"]


class BackfillRuns(Job):
    """The runs of a backfill. Airflow does not say which runs belong to a backfill: it queues them after its start."""

    def __init__(self, client: Client, request: Backfill) -> None:
        super().__init__(client, f"the backfill of {request}", f"/dags/{client.dag_id}/backfills")
        self._request = request
        self._since = _NEVER
        self._has_all_runs = False
        """Whether Airflow has created its runs. There are none if Airflow leaves out all dates."""
        self._moments: set[datetime] = set()
        """The dates of its runs. Empty if the backfill was found under way."""

    def start(self) -> None:
        """Start it, or find it under way. Raises Refused if another backfill is under way."""
        # If an answer is lost, the backfill may have been created anyway. So each attempt looks for it first.
        backfill = self.client.patience.until_answered(self._find_or_create, _BUSY)
        self._since = min(self._since, _created(backfill))
        self._has_all_runs = True

    def runs(self) -> list[Json]:
        """Return the runs that it made or started again."""
        return self.outcome().runs

    def stages(self, runs: Sequence[Json]) -> list[Stage]:
        """Return one line for each date that has begun."""
        return [Stage(date_of(run, self._request), _text(run)) for run in runs if run["state"] != "queued"]

    def close(self) -> None:
        """Close it after its last run: Airflow does so only twice a minute, and refuses another backfill until then."""
        for backfill in self._open():
            self.client.close_backfill(backfill["id"])

    def cancel(self) -> None:
        """Cancel it, and mark its active runs as failed. Airflow may have closed it before its runs have ended."""
        backfills = self._open()
        self._since = min([self._since, *map(_created, backfills)])
        if self._since == _NEVER:
            return
        if not (self._has_all_runs or self.runs()):
            say(
                "The backfill is not cancelled, because Airflow is still creating its runs: if this Airflow keeps "
                "running, cancel it in its UI once its runs are there"
            )
            return
        for backfill in backfills:
            self.client.close_backfill(backfill["id"])
            say("The backfill is cancelled")
        super().cancel()

    def outcome(self) -> Outcome:
        """Return the runs of all its dates, and the dates without a run."""
        request, moments = self._request, self._moments
        # A person may have triggered a run with the date of another one. Airflow then leaves out the date.
        found = self._all_in(request.body())
        scheduled = [run for run in found if (_moment_of(run) in moments if moments else not _is_manual(run))]
        runs = [run for run in scheduled if _is_of_backfill(run, self._since)]
        seen = {_moment_of(run) for run in scheduled}
        names = {request.name_of(moment) for moment in moments | seen}
        missing = [name for name in request.names if name not in names]
        refused = [request.data_date_of(moment) for moment in sorted(moments - seen)]
        return Outcome(self._since, runs, [run for run in scheduled if run not in runs], missing, refused)

    def _find_or_create(self) -> Json:
        for backfill in self.client.open_backfills():
            queued, is_this = self._queued_by(backfill), self._is_this(backfill)
            if any(run["state"] in ACTIVE for run in queued):
                if is_this:
                    say("This backfill is already running: following it")
                    return backfill
                raise Refused(
                    f"another backfill of {self.client.dag_id} is running, from {backfill['from_date']} to "
                    f"{backfill['to_date']}: wait until it ends, or cancel it in Airflow's UI"
                )
            if is_this and queued:
                # It has ended. Airflow does not close it at once, and creates no other until then.
                self.client.close_backfill(backfill["id"])
            elif is_this:
                # Airflow stores a backfill before its runs, which then appear all at once. Closed before that, it would
                # keep them in the queue for ever. If the creation failed, Airflow closes it after two minutes.
                self._since = min(self._since, _created(backfill))
        self._require_runs()
        return self.client.create_backfill(self._request.body())

    def _queued_by(self, backfill: Json) -> list[Json]:
        """Return the runs that a backfill made or started again; none while Airflow creates them."""
        return [run for run in self._all_in(backfill) if _is_of_backfill(run, _created(backfill))]

    def _require_runs(self) -> None:
        """Raise Refused if Airflow would make too many runs, or runs of other dates than those that are asked for."""
        request, body = self._request, self._request.body()
        dag = self.client.dag() or {}
        zone = zone_of_schedule(dag.get("timetable_summary") or "")
        # Only these DAGs say the time zone in the summary of their schedule.
        if request.dag_id in KINDS and not request.by_hours and zone != str(request.first.tzinfo):
            raise Refused(
                f"{TIME_ZONE} is {request.first.tzinfo} here, but {zone} in Airflow: set {TIME_ZONE}={zone} for this "
                "command too, because its dates are days of that time zone"
            )
        dates = self.client.dates_of_backfill({**body, "reprocess_behavior": "completed"})
        # Airflow leaves out the runs that are under way. Runs that have ended may be of an earlier schedule.
        active = [_moment_of(run) for run in self._runs_in(body) if run["state"] in ACTIVE]
        moments = {*map(datetime.fromisoformat, dates), *active}
        if len(moments) > MAX_DATES:
            raise Refused(
                f"the backfill of {request} has {len(moments)} runs: give fewer dates, for at most {MAX_DATES}"
            )
        if not request.has_runs_of_its_hours(moments):
            raise Refused(
                f"the source {request.source} has {{hour}}, so it needs a run for each hour, but {request.dag_id} has "
                f"{counted(len(moments), 'run')} from {body['from_date']} to {body['to_date']}: set "
                f"{BACKFILLS}=@hourly in the environment of Airflow (or the schedule of this DAG, if it has one), "
                "and start Airflow again"
            )
        self._moments = moments

    def _open(self) -> list[Json]:
        return [backfill for backfill in self.client.open_backfills() if self._is_this(backfill)]

    def _is_this(self, backfill: Json) -> bool:
        body = self._request.body()
        times = all(time_of(backfill[name]) == time_of(body[name]) for name in ("from_date", "to_date"))
        return times and all(backfill[name] == body[name] for name in ("dag_run_conf", "reprocess_behavior"))

    def _runs_in(self, backfill: Json) -> list[Json]:
        """Return the runs of the dates of a backfill. A manual run has its trigger as date, and stands for no day."""
        return [run for run in self._all_in(backfill) if not _is_manual(run)]

    def _all_in(self, backfill: Json) -> list[Json]:
        return self.client.runs({"logical_date_gte": backfill["from_date"], "logical_date_lte": backfill["to_date"]})


class RetrainRuns(Job):
    """The runs of `retrain` that look for datasets since a backfill began. Airflow starts them."""

    def __init__(self, trainer: Client, since: datetime) -> None:
        super().__init__(trainer, f"each run of {TRAINER} since the backfill began", f"/dags/{TRAINER}/runs")
        self._since = since

    def awaits_runs(self) -> bool:
        """Return whether a dataset was updated that no run has seen."""
        return self.client.has_events()

    @override
    def runs(self) -> list[Json]:
        return [*self._earlier(), *self.own_runs()]

    @override
    def own_runs(self) -> list[Json]:
        return self.client.runs({"run_after_gte": self._since.isoformat()})

    def _earlier(self) -> list[Json]:
        """Return runs that were due before the backfill, and waited for it: they train on what it makes."""
        since = self._since.isoformat()
        # A run may end between two calls, so active runs are asked for first.
        queries: list[Json] = [{"state": ACTIVE}, {"end_date_gte": since}]
        found = [run for query in queries for run in self.client.runs({"run_after_lt": since, **query})]
        return [run for run in {run["dag_run_id"]: run for run in found}.values() if self._waited(run)]

    def _waited(self, run: Json) -> bool:
        choices = [task for task in self.client.task_instances(run["dag_run_id"]) if task["task_id"] == CHOICE]
        ended = [time_of(task["end_date"]) for task in choices if task["state"] == "success"]
        return all(each is None or each >= self._since for each in ended)

    def stages(self, runs: Sequence[Json]) -> list[Stage]:
        """Return the tasks of the newest run that has begun."""
        started = [run["dag_run_id"] for run in runs if run["state"] != "queued"]
        if not started:
            return []
        settings, training = (self.client.xcom(started[-1], CHOICE, key) for key in ("settings", "training"))
        places = {name: settings[name] for name in PLACES} if settings else {}
        return stages_of_run(self.client, started[-1], places, training if settings else "")


def _created(backfill: Json) -> datetime:
    return datetime.fromisoformat(backfill["created_at"])


def _is_manual(run: Json) -> bool:
    return bool(run["run_type"] == "manual")


def _is_of_backfill(run: Json, since: datetime) -> bool:
    """Return whether a backfill made a run, or started it again, since some time."""
    queued = time_of(run["queued_at"])
    # The schedule of the DAG may have queued a run meanwhile. If a backfill starts a run again, its type changes.
    return run["run_type"] == "backfill" and queued is not None and queued >= since


def _text(run: Json) -> str:
    word = "done" if run["state"] == "success" else run["state"]
    return word if run["duration"] is None else f"{word}, {run['duration']:.0f} s"


def date_of(run: Json, request: Backfill) -> str:
    """Return the data date of a run: the name of its partition."""
    return request.data_date_of(_moment_of(run))


def _moment_of(run: Json) -> datetime:
    return datetime.fromisoformat(run["logical_date"])


def report_of_dates(client: Client, request: Backfill, outcome: Outcome) -> list[str]:
    """Return the table of a backfill with a line for each date, a summary, and the error of each failed run."""
    rows = sorted(
        (date_of(run, request), *row_of(run, task_result(client, run["dag_run_id"], COMMIT), outcome))
        for run in (*outcome.runs, *outcome.skipped)
    )
    failures = [f"{date_of(run, request)}: {failure_of(client, run['dag_run_id'])}" for run in outcome.failed]
    return [*aligned([_HEAD, *rows]), summary(outcome), *failures]


def row_of(run: Json, made: Json, outcome: Outcome) -> tuple[str, ...]:
    """Return examples, version and outcome of a run, of which the task `upload.commit` returned `made`."""
    if run in outcome.skipped:
        ended = time_of(run["end_date"])
        word = "skipped: already made" if ended and ended < outcome.since else "skipped: already running"
    elif run["state"] == "failed":
        word = "failed"
    else:
        word = "already complete" if made.get("already_complete") else "new"
    return str(sum(made["examples"].values())) if made else "", made.get("version", ""), word


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as lines. Each column has one width, and numbers are aligned to the right."""
    date, examples, version, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [f"{row[0]:<{date}}  {row[1]:>{examples}}  {row[2]:<{version}}  {row[3]}" for row in rows]


def summary(outcome: Outcome) -> str:
    """Return how many dates were run, failed and were skipped."""
    run, failed = len(outcome.runs), len(outcome.failed)
    skipped, missing, refused = len(outcome.skipped), len(outcome.missing), len(outcome.refused)
    parts = {
        f"{run} of {run + skipped + missing + refused} dates run": True,
        f"{failed} of them failed (run the same command to repeat the failed dates)": failed,
        f"{skipped} skipped (set REPROCESS=all to run them again)": skipped,
        f"{missing} without a run, because the schedule of the DAG leaves them out": missing,
        f"{first_of(outcome.refused, _SHOWN)} not run, because Airflow has a run of an earlier schedule with the same "
        "name (delete that run in Airflow's UI, then run the same command again)": refused,
    }
    return ", ".join(text for text, is_shown in parts.items() if is_shown)


def trainer_of(airflow: Airflow, client: Client, signals: Signals) -> Client | None:
    """Return the DAG that trains on what this one makes, ready to run; None if there is none.

    It must be unpaused before the first dataset exists, because Airflow drops events for a paused DAG.
    """
    if client.dag_id not in (MAKER, TABULAR_MAKER) or not (airflow.layout.dags / f"{TRAINER}.py").exists():
        return None
    trainer = client.of(TRAINER)
    wait_until_ready(airflow, trainer, ANY_TIME, signals)
    trainer.unpause()
    return trainer


def training_report(trainer: Client, runs: Sequence[Json]) -> list[str]:
    """Return the results of the training, or why there was none. Runs that another run serves have no lines."""
    lines, run_id = [], ""
    for run in runs:
        run_id = run["dag_run_id"]
        failed = run["state"] == "failed"
        lines += [f"{TRAINER}: {failure_of(trainer, run_id)}"] if failed else results(trainer, run_id)
    if lines or not run_id:
        return lines or ["No training: no dataset was updated"]
    choices = [task for task in trainer.task_instances(run_id) if task["task_id"] == CHOICE]
    return [f"No training: {'; '.join(skip_reason(trainer.log(run_id, task)) for task in choices)}"]


def failure_before(trainer: Client, client: Client, outcome: Outcome) -> list[str]:
    """Return that the last run of `retrain` on this dataset name failed, and what to do; empty if it did not fail.

    Airflow starts no training if all dates were skipped, because no dataset is new.
    """
    made = (task_result(client, run["dag_run_id"], COMMIT) for run in (*outcome.skipped, *outcome.runs))
    folder = next((each["dataset"].rpartition("/")[0] for each in made if each), "")
    newest_first = sorted(trainer.runs({}), key=lambda run: str(run["run_after"]), reverse=True)
    for run in newest_first[:_SEARCHED] if folder else ():
        dataset, has_failed = trainer.xcom(run["dag_run_id"], CHOICE), run["state"] == "failed"
        # A choice that failed returned no dataset. Nor did one that was skipped, because another run trains.
        if not (dataset.startswith(f"{folder}/") if dataset else has_failed and _may_be_of(trainer, run, folder)):
            continue
        if not has_failed:
            break
        return [
            f"The last run of {TRAINER} failed, and no other one starts without a new dataset. To train again, clear "
            f"its failed task or trigger {TRAINER} in Airflow's UI, or run the same command with REPROCESS=all",
            failure_of(trainer, run["dag_run_id"]),
        ]
    return []


def _may_be_of(trainer: Client, run: Json, folder: str) -> bool:
    """Return whether a run that chose no dataset was about those of a folder, or may have been."""
    of_form = (run["conf"] or {}).get("dataset_name")
    of_events = ((event["extra"] or {}).get("dataset_name") for event in trainer.events(run["dag_run_id"]))
    names = {of_form} if of_form else {*of_events} - {None}
    return not names or folder.rpartition("/")[2] in names
