"""Wait until Airflow can run a DAG. Give up if a process dies, or if the start takes far too long."""

import time
from datetime import UTC, datetime

from dags.gpu_pool import GPU_POOL
from scripts.airflow.client import ACTIVE, EVERY_DAG, Client, Json
from scripts.airflow.errors import Failed
from scripts.airflow.progress import say, time_of
from scripts.airflow.remote import Airflow
from scripts.airflow.signals import Signals

ANY_TIME = datetime.min.replace(tzinfo=UTC)
"""Earlier than any parse of a DAG."""
LIMIT_S = 900.0
"""A start fails after this many seconds. It takes less than a minute on a quiet machine."""
_POLL_S = 0.2


def check_time(begin: float, goal: str) -> None:
    """Raise Failed if a start that began at `begin` takes too long. `goal` says what is missing, for the error."""
    if time.monotonic() - begin > LIMIT_S:
        raise Failed(f"gave up on Airflow after {LIMIT_S:.0f} s: {goal}")


def wait_until_ready(airflow: Airflow, client: Client, since: datetime, signals: Signals) -> None:
    """Wait for the API server and for a parse of the DAG after `since`; the database may hold one of older code.

    Raises Failed if a process dies, the DAG cannot be imported, or the start takes longer than LIMIT_S.
    """
    begin = time.monotonic()
    while not (client.ready() and _is_parsed(client, since)):
        airflow.check()
        check_time(
            begin,
            f"the Airflow at {airflow.url} does not answer, or has not read the DAG {client.dag_id}: see "
            f"{airflow.where_logs_are}",
        )
        signals.pause(_POLL_S)
    require_pool(client, airflow.layout.trainings)


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


def require_pool(client: Client, slots: int) -> None:
    """Create the pool of trainings if it is missing. Without a slot, a training waits forever without a message."""
    client.create_pool(GPU_POOL, slots)
    if client.pool_slots(GPU_POOL) == 0:
        raise Failed(f"the pool {GPU_POOL!r} has no slots, so no training can start: add slots under Admin, Pools")


def require_slots(client: Client, conf: Json) -> None:
    """Refuse more training servers than the pool has slots: servers with a slot would wait in vain for the others."""
    servers, slots = conf.get("num_training_servers", 1), client.pool_slots(GPU_POOL)
    if 0 <= slots < servers:
        raise Failed(
            f"num_training_servers={servers} needs {servers} slots at the same time, but the pool {GPU_POOL!r} has "
            f"{slots}: add slots under Admin, Pools (or with TENFOLD_TRAININGS_AT_ONCE, before the first start of "
            "Airflow), or train on fewer servers. To write more shards without more servers, set num_shards"
        )


def end_forgotten_runs(client: Client) -> None:
    """Mark active runs of all DAGs as failed. A killed command left them, and they would run beside the new run."""
    forgotten = client.of(EVERY_DAG).runs({"state": ACTIVE})
    # First the backfills, which would otherwise start further runs.
    for dag_id in {run["dag_id"] for run in forgotten}:
        for backfill in client.of(dag_id).open_backfills():
            client.close_backfill(backfill["id"])
    for run in forgotten:
        say(f"The run {run['dag_run_id']} is left over from a killed command: marked as failed")
        client.of(run["dag_id"]).fail(run["dag_run_id"])
