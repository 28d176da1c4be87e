"""Trigger a run, show where it stands, tell what came of it."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import httpx

from scripts.airflow.client import FINISHED, Client, Json, time_of
from scripts.airflow.embedded import Embedded
from scripts.airflow.errors import Failed, Interrupted
from scripts.airflow.failure import error_text, log_path
from scripts.airflow.progress import Display, say, stages_of
from scripts.airflow.request import Conf
from scripts.airflow.signals import Signals

GPU_POOL = "gpu"
POLL_S = 1.0
START_LIMIT_S = 180.0
SILENCE_LIMIT_S = 60.0
PLACES = ("workspace", "local_folder")
"""Settings that say where a training's record is."""
_QUICK_POLL_S = 0.2


def wait_until_ready(airflow: Embedded, client: Client, since: datetime, signals: Signals) -> None:
    """Wait for the API server and for a parse of the DAG after `since`; the database may hold one of older code.

    Raises Failed where a process dies, the DAG cannot be imported or nothing comes of it in three minutes.
    """
    deadline = time.monotonic() + START_LIMIT_S
    while not (client.ready() and _is_parsed(client, since)):
        airflow.check()
        if time.monotonic() > deadline:
            raise Failed(
                f"Airflow was not ready with the DAG {client.dag_id} of {airflow.layout.dags} after "
                f"{START_LIMIT_S:.0f} s: see the logs in {airflow.layout.logs}"
            )
        signals.pause(_QUICK_POLL_S)
    client.create_pool(GPU_POOL, slots=1)
    client.unpause()


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
    """Mark runs as failed that a killed command left: they would go on beside the new one."""
    for run_id in client.active_runs():
        say(f"The run {run_id} was cut off earlier and is marked as failed")
        client.fail(run_id)


def follow(airflow: Embedded, client: Client, conf: Conf, display: Display, signals: Signals) -> str:
    """Trigger a run and show it until it ends. Returns its id. Raises Failed with the error of the task that failed."""
    run_id = client.trigger(conf)
    places = {"workspace": str(airflow.layout.workspace)} | {name: conf[name] for name in PLACES if conf.get(name)}
    try:
        _watch(airflow, client, run_id, places, display, signals)
    except Interrupted:
        _give_up(client, run_id)
        raise
    if client.state(run_id) == "failed":
        raise Failed(_failure(client, run_id))
    return run_id


def _watch(airflow: Embedded, client: Client, run_id: str, places: Conf, display: Display, signals: Signals) -> None:
    start = answered = time.monotonic()
    state = ""
    while state not in FINISHED:
        airflow.check()
        try:
            state = client.state(run_id)
            tasks = client.task_instances(run_id)
            answered = time.monotonic()
            display.show(stages_of(tasks, {"train": training_note(places, run_id)}), answered - start)
        except httpx.HTTPError:
            # SQLite may be locked for a moment. One answer that fails must not end a training of hours.
            if time.monotonic() - answered > SILENCE_LIMIT_S:
                raise
        signals.pause(0 if state in FINISHED else POLL_S)


def training_note(places: Conf, run_id: str) -> str:
    """How far the training is, from its record; empty before it has written any."""
    from pipeline.runs import training_words  # pydantic and psutil: not before they are needed

    return training_words(places, run_id)


def _give_up(client: Client, run_id: str) -> None:
    try:
        client.fail(run_id)
        say(f"The run {run_id} is marked as failed")
    except httpx.HTTPError as error:
        say(f"The run {run_id} could not be marked as failed: {error}")


def _failure(client: Client, run_id: str) -> str:
    failed = [task for task in client.task_instances(run_id) if task["state"] == "failed"]
    if not failed:
        return f"The run {run_id} failed although none of its tasks did: it was stopped, or ran out of time"
    first = min(failed, key=lambda task: task["end_date"] or "9999")
    entries = client.log(run_id, first)
    part = f" (part {first['map_index']})" if first["map_index"] >= 0 else ""
    return (
        f"{first['task_id']}{part} failed: {error_text(entries)}\nFull log: {log_path(entries) or 'none was written'}"
    )


def results(client: Client, run_id: str) -> list[str]:
    """What the run made, a line each: where it lies and how good it is."""
    dataset = _returned(client, run_id, "upload.commit")
    train = _returned(client, run_id, "train")
    report = _returned(client, run_id, "report")
    rows = {
        "Data set": dataset.get("dataset"),
        "Its card": f"{dataset['dataset']}/card.html" if dataset else None,
        "Rejected": _rejected(dataset),
        "Model": train.get("model"),
        "Comet archive": train.get("comet"),
        "Report": report.get("report"),
        "Validation": _accuracy(train.get("metrics") or {}),
        "Verdict": train.get("verdict"),
    }
    return [f"{name + ':':<15}{value}" for name, value in rows.items() if value]


def _rejected(dataset: Json) -> str:
    count = dataset.get("rejected")
    listed = sum(dataset.get("examples", {}).values()) + (count or 0)
    return f"{count} of {listed} images, see {dataset['dataset']}/rejected.jsonl" if count else ""


def _returned(client: Client, run_id: str, task_id: str) -> Json:
    value = client.xcom(run_id, task_id)
    return value if isinstance(value, dict) else {}


def _accuracy(metrics: Mapping[str, Any]) -> str:
    accuracy = metrics.get("val_accuracy")
    return f"{accuracy:.1%} accuracy" if isinstance(accuracy, int | float) else ""
