"""Wait until Airflow can run a DAG. Give up if its processes do nothing, or if the start takes far too long."""

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
STALL_S = 180.0
"""A start fails after this many seconds without progress."""
WORK_S = 30.0
"""CPU seconds within STALL_S that count as progress. Processes that only wait take less, even if they are asked whether
they are ready. Processes that start take more, even if other programs hold the cores."""
LIMIT_S = 1800.0
"""A start fails after this many seconds in any case."""
_LOOK_S = 1.0
"""The processes are looked at no more often, because each look reads all of them."""
_POLL_S = 0.2


class Stalls:
    """Watches one start."""

    def __init__(self, airflow: Airflow) -> None:
        self._airflow = airflow
        self._begin = self._progress = self._looked = time.monotonic()
        self._work = airflow.work_s() or 0.0

    def check(self, goal: str) -> None:
        """Raise Failed if the start makes no progress or takes too long. `goal` says what is missing, for the error."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked, seen = now, self._airflow.work_s()
        work = seen or 0.0
        if work - self._work >= WORK_S:
            self._progress = now
        if work < self._work or self._progress == now:  # Less: a process has ended, and its seconds no longer count.
            self._work = work
        if now - self._progress > STALL_S:
            what = "Airflow was not ready for" if seen is None else "Airflow's processes did almost nothing for"
            raise Failed(f"{what} {STALL_S:.0f} s: {goal}")
        if now - self._begin > LIMIT_S:
            raise Failed(f"gave up on Airflow after {LIMIT_S:.0f} s: {goal}")


def wait_until_ready(airflow: Airflow, client: Client, since: datetime, signals: Signals) -> None:
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
        signals.pause(_POLL_S)
    require_pool(client, airflow.layout.trainings)
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
