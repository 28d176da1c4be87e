"""Requests of the tests to the API server."""

from collections.abc import Callable

import httpx

from scripts.airflow.client import FINISHED, Client, Json
from tests.waiting import until

POLL_S = 0.5


def comes(condition: Callable[[], object], seconds: float = 480, pause: float = POLL_S) -> None:
    """Wait for a condition. A failed request, as on a busy machine, is retried."""
    until(condition, seconds, pause, errors=httpx.TransportError)


def wait_for_success(client: Client, run_id: str) -> None:
    """Wait for the end of a run that must succeed."""
    comes(lambda: client.run(run_id)["state"] in FINISHED)
    states = {(each["task_id"], each["map_index"]): each["state"] for each in client.task_instances(run_id)}
    assert client.run(run_id)["state"] == "success", states


def tasks(client: Client, run_id: str, task_id: str) -> list[Json]:
    """Return all instances of a task in a run."""
    return [each for each in client.task_instances(run_id) if each["task_id"] == task_id]


def task(client: Client, run_id: str, task_id: str, map_index: int = -1) -> Json:
    """Return one instance of a task in a run."""
    [found] = [each for each in tasks(client, run_id, task_id) if each["map_index"] == map_index]
    return found
