"""Trigger a run, show its progress, and return its results."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import httpx

from pipeline.evaluation.best_epoch import headline
from scripts.airflow.client import EVERY_DAG, FINISHED, Client, Json
from scripts.airflow.errors import Failed, Interrupted
from scripts.airflow.failure import error_text, log_path
from scripts.airflow.progress import Display, say, stages_of
from scripts.airflow.remote import Running
from scripts.airflow.request import Conf
from scripts.airflow.signals import Signals
from scripts.airflow.stalls import Stalls
from scripts.airflow.times import time_of
from scripts.airflow.watch import RunStatus, naming, starting, watch

GPU_POOL = "gpu"
COMMIT = "upload.commit"
"""The task that returns the published dataset."""
ANY_TIME = datetime.min.replace(tzinfo=UTC)
"""Earlier than any parse of a DAG."""
PLACES = ("workspace", "local_folder")
"""Settings that decide where the record of a training is."""
GIVE_UP_LIMIT_S = 60.0
"""How long a person who pressed Ctrl-C waits for a locked database. On a busy machine, one answer may take 30 s."""
_QUICK_POLL_S = 0.2


def wait_until_ready(airflow: Running, client: Client, since: datetime, signals: Signals) -> None:
    """Wait for the API server and for a parse of the DAG after `since`; the database may hold one of older code.

    Raises Failed if a process dies, the DAG cannot be imported, or the start makes no progress (see `Stalls`).
    """
    stalls = Stalls(airflow)
    while not (client.ready() and _is_parsed(client, since)):
        airflow.check()
        stalls.check(
            f"the Airflow at {airflow.url} does not answer, or has not read the DAG {client.dag_id}: see "
            f"{airflow.where_logs_are}"
        )
        signals.pause(_QUICK_POLL_S)
    require_pool(client, airflow.layout.gpus)
    client.unpause()


def require_pool(client: Client, slots: int) -> None:
    """Create the pool of trainings if it is missing. Without a slot, a training waits forever without a message."""
    client.create_pool(GPU_POOL, slots)
    if client.pool_slots(GPU_POOL) == 0:
        raise Failed(f"the pool {GPU_POOL!r} has no slots, so no training can start: add slots under Admin, Pools")


def require_slots(client: Client, conf: Conf) -> None:
    """Refuse more training servers than the pool has slots: servers with a slot would wait in vain for the others."""
    servers, slots = conf.get("num_training_servers", 1), client.pool_slots(GPU_POOL)
    if 0 <= slots < servers:
        raise Failed(
            f"num_training_servers={servers} needs {servers} slots at the same time, but the pool {GPU_POOL!r} has "
            f"{slots}: add slots under Admin, Pools (or with TENFOLD_GPUS, before the first start of Airflow), or "
            "train on fewer servers. To write more shards without more servers, set num_shards"
        )


def _is_parsed(client: Client, since: datetime) -> bool:
    dag = client.dag()
    if dag and _is_later(dag["last_parsed_time"], since) and not dag["has_import_errors"]:
        return True
    errors = [error for error in client.import_errors() if _is_later(error["timestamp"], since)]
    if errors:
        raise Failed("\n".join(f"{error['filename']} cannot be imported:\n{error['stack_trace']}" for error in errors))
    return False


def _is_later(text: str | None, since: datetime) -> bool:
    moment = time_of(text)
    return moment is not None and moment >= since


def end_forgotten_runs(client: Client) -> None:
    """Mark active runs of all DAGs as failed. A killed command left them, and they would run beside the new run."""
    forgotten = client.of(EVERY_DAG).active_runs()
    for dag in {run["dag_id"]: client.of(run["dag_id"]) for run in forgotten}.values():
        # First the backfills, which would otherwise start further runs.
        for backfill in dag.open_backfills():
            dag.close_backfill(backfill["id"])
    for run in forgotten:
        say(f"The run {run['dag_run_id']} is left over from a killed command: marked as failed")
        client.of(run["dag_id"]).fail(run["dag_run_id"])


@contextmanager
def naming_run(airflow: Running, client: Client, run_id: str) -> Iterator[None]:
    """Name the run in the error if Airflow does not answer in this block, because the run may go on."""
    page = f"/dags/{quote(client.dag_id, safe='')}/runs/{quote(run_id, safe=':')}"
    with naming(airflow, f"the run {run_id} of {client.dag_id}", page):
        yield


def follow(airflow: Running, client: Client, conf: Conf, run_id: str, display: Display, signals: Signals) -> None:
    """Trigger a run with this id and show it until it ends. Raises Failed with the error of the task that failed."""
    places = {"workspace": str(airflow.layout.workspace)} | {name: conf[name] for name in PLACES if conf.get(name)}
    try:
        with starting(f"the run {run_id} of {client.dag_id}"):
            client.trigger(conf, run_id)
        _watch(airflow, client, run_id, places, display, signals)
    except Interrupted:
        give_up(client, run_id)
        raise
    if client.state(run_id) == "failed":
        raise Failed(failure_of(client, run_id))


def _watch(airflow: Running, client: Client, run_id: str, places: Conf, display: Display, signals: Signals) -> None:
    def look() -> RunStatus:
        is_over = client.state(run_id) in FINISHED
        return RunStatus(stages_of(client.task_instances(run_id), {"train": training_note(places, run_id)}), is_over)

    watch(airflow, look, display, signals)


def training_note(places: Conf, run_id: str) -> str:
    """Return the progress of the training, from its record; empty before the first epoch."""
    from pipeline.runs.run import describe_progress  # Not at the top: it imports pydantic and psutil.

    return describe_progress(places, run_id)


def give_up(client: Client, run_id: str) -> None:
    """Mark a run as failed, and say so. A run whose trigger was cut off may not be there."""
    try:
        client.hurried(GIVE_UP_LIMIT_S).fail(run_id)
        say(f"The run {run_id} is marked as failed")
    except httpx.HTTPError as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.NOT_FOUND:
            say(
                f"Airflow has no run {run_id} of {client.dag_id}. If Airflow was slow to answer, the run may still "
                "start: look for it in the list of runs"
            )
            return
        say(f"The run {run_id} could not be marked as failed: {error}")


def failure_of(client: Client, run_id: str) -> str:
    """Return why a run failed: its first failed task, with the lines of its log that matter."""
    failed = [task for task in client.task_instances(run_id) if task["state"] == "failed"]
    if not failed:
        return f"The run {run_id} failed, but none of its tasks did: somebody stopped the run, or it ran out of time"
    # Later failures are often consequences of the first one. Times of the API sort as text.
    first = min(failed, key=lambda task: task["end_date"] or "9999")
    entries = client.log(run_id, first)
    parts = sum(task["task_id"] == first["task_id"] for task in client.task_instances(run_id))
    part = f" (part {first['map_index']})" if parts > 1 else ""
    return (
        f"{first['task_id']}{part} failed: {error_text(entries)}\nFull log: {log_path(entries) or 'none was written'}"
    )


def results(client: Client, run_id: str) -> list[str]:
    """Return the results of a run, one line for each: places, score and verdicts."""
    dataset = task_result(client, run_id, COMMIT)
    train = task_result(client, run_id, "train")
    report = task_result(client, run_id, "report")
    rows = {
        "Dataset": dataset.get("dataset"),
        "Card": _link(f"{dataset['dataset']}/card.html") if dataset else None,
        "Rejected": _rejected(dataset),
        "Model": train.get("model"),
        "Comet": _comet(train.get("comet", "")),
        "Report": _link(report["report"]) if report.get("report") else None,
        "Validation": _score(train),
        "Verdict": train.get("verdict"),
        "Promotion": task_result(client, run_id, "promote").get("verdict"),
    }
    return [f"{name + ':':<15}{value}" for name, value in rows.items() if value]


def _link(page: str) -> str:
    """Return the address of a page that a terminal can open: with file:// on this machine, unchanged in a bucket."""
    return Path(page).as_uri() if page.startswith("/") else page


def _rejected(dataset: Json) -> str:
    count = dataset.get("rejected")
    listed = sum(dataset.get("examples", {}).values()) + (count or 0)
    return f"{count} of {listed} examples, see {dataset['dataset']}/rejected.jsonl" if count else ""


def task_result(client: Client, run_id: str, task_id: str) -> Json:
    """Return the result of a task, or of the first one of a mapped task; empty if it returned nothing."""
    values = (client.xcom(run_id, task_id, map_index=index) for index in (-1, 0))
    return next((value for value in values if isinstance(value, dict)), {})


def _comet(experiment: str) -> str:
    """Return the address of the experiment, or the folder of its archives with what to do with them."""
    is_online = not experiment or experiment.startswith(("http://", "https://"))
    return experiment if is_online else f"{experiment} (not sent: docs/how-to/comet.md explains how to upload it)"


def _score(train: Json) -> str:
    """Return the score of a model, and its epoch."""
    metrics = train.get("metrics") or {}
    best, last, score = metrics.get("best_epoch"), train.get("epochs"), headline(metrics)
    return f"{score} (the best epoch, {best} of {last})" if score and best and last else score
