"""Airflow's REST API, as far as it is needed here. A call of Airflow's own command line costs 4 to 10 s of imports."""

import secrets
import time
from collections.abc import Generator
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx

from scripts.airflow.keys import USER
from scripts.airflow.patience import PATIENT, Patience

Json = dict[str, Any]
ACTIVE = ("queued", "running")
FINISHED = ("success", "failed")
EVERY_DAG = "~"
"""Airflow's wildcard in place of the id of a DAG."""
_PAGE = 100
_CREATION_TIMEOUT_S = 120.0
"""Time limit for calls that create a run, or look which runs a backfill would have. On a busy machine, this can take
so long."""
BACKFILL_TIMEOUT_S = 60.0
"""Time limit for the call that creates all runs of a backfill. Airflow closes a backfill that has no runs after two
minutes. The command must look for it before that, or it would not know when the backfill began."""


class Login(httpx.Auth):
    """Logs in with the first call, and again when the token has expired: trainings last longer than a token."""

    requires_response_body = True

    def __init__(self, url: str, password: str) -> None:
        self._request = httpx.Request("POST", f"{url}/auth/token", json={"username": USER, "password": password})
        self._token = ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send the call with a token, at most twice."""
        for _ in range(2):
            if not self._token:
                login = yield self._request
                self._token = login.raise_for_status().json()["access_token"]
            request.headers["Authorization"] = f"Bearer {self._token}"
            response = yield request
            if response.status_code != httpx.codes.UNAUTHORIZED:
                return
            self._token = ""


class Client:
    """Calls of Airflow's REST API for one DAG. Raises httpx.HTTPError if the server refuses, or is silent for too long.

    Calls that the server does not answer are repeated, except `create_backfill`, which would create a second backfill.
    """

    def __init__(self, url: str, password: str, dag_id: str, patience: Patience = PATIENT) -> None:
        self.dag_id = dag_id
        self.patience = patience
        self.creation_s = _CREATION_TIMEOUT_S
        self.backfill_s = BACKFILL_TIMEOUT_S
        self._tasks = f"{url}/execution/health"
        # `trust_env=False` ignores the proxy settings: a proxy of the network cannot reach this machine.
        self._http = httpx.Client(
            base_url=f"{url}/api/v2", auth=Login(url, password), timeout=patience.answer_s, trust_env=False
        )

    def of(self, dag_id: str) -> "Client":
        """Return a client for another DAG that uses the same connection."""
        other = copy(self)
        other.dag_id = dag_id
        return other

    def hurried(self, limit_s: float) -> "Client":
        """Return the same client for a person who waits: it tries again for `limit_s` seconds and ignores signals."""
        other = copy(self)
        other.patience = replace(self.patience, pause=time.sleep, clock=time.monotonic, limit_s=limit_s)
        return other

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def ready(self) -> bool:
        """Return whether the server takes calls, also those of tasks."""
        # Airflow builds the part that serves tasks at its first call. This takes 4 s or more, in which it answers no
        # other call. The first task would wait for 5 s only, so the call is made here, while other processes start.
        try:
            # Without our token: it is no token of a task, and the server would log that with each call.
            return httpx.get(self._tasks, timeout=10, trust_env=False).is_success and all(
                self._http.get(path, timeout=10).is_success for path in ("/version", "/pools")
            )
        except httpx.HTTPError:
            return False

    def dag(self) -> Json | None:
        """Return the DAG, once it is parsed."""
        return self._find(self._dag)

    def import_errors(self) -> list[Json]:
        """Return files of the DAGs folder that could not be imported: `filename`, `stack_trace`, `timestamp`."""
        return self._all("/importErrors", "import_errors")

    def unpause(self) -> None:
        """Let runs of the DAG start."""
        self._send("PATCH", self._dag, json={"is_paused": False})

    def paused_dags(self) -> list[str]:
        """Return the ids of the DAGs that are paused."""
        return sorted(dag["dag_id"] for dag in self._all("/dags", "dags", paused=True))

    def create_pool(self, name: str, slots: int) -> None:
        """Create a pool. One that is there stays as it is: its slots may have been set in the UI."""
        self._send("POST", "/pools", accepted=httpx.codes.CONFLICT, json={"name": name, "slots": slots})

    def pool_slots(self, name: str) -> int:
        """Return how many tasks of a pool may run at once."""
        return int(self._send("GET", f"/pools/{_quoted(name)}").json()["slots"])

    def trigger(self, conf: Json, run_id: str = "") -> str:
        """Start a run, and return its id. The id is chosen here, so that a repeated call starts no second run."""
        run_id = run_id or new_run_id()
        # Airflow requires the key `logical_date`. None is a run without a date.
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        runs = f"{self._dag}/dagRuns"
        made = self._send("POST", runs, accepted=httpx.codes.CONFLICT, json=body, timeout=self.creation_s)
        if made.status_code == httpx.codes.CONFLICT:
            self.run(run_id)  # An earlier call created it, but its answer was lost.
        return run_id

    def fail(self, run_id: str) -> None:
        """Mark a run as failed. Airflow then ends its tasks."""
        self._send("PATCH", self._run(run_id), json={"state": "failed"})

    def run(self, run_id: str) -> Json:
        """Return a run: `state`, `start_date`, `end_date` and more."""
        run: Json = self._send("GET", self._run(run_id)).json()
        return run

    def runs(self, filters: Json) -> list[Json]:
        """Return runs in the order of their dates, with `dag_run_id`, `state`, `logical_date` and more."""
        return self._all(f"{self._dag}/dagRuns", "dag_runs", **filters, order_by=["logical_date", "id"])

    def create_backfill(self, body: Json) -> Json:
        """Start a backfill: `id`, `created_at` and what was asked for."""
        response = self._http.post("/backfills", json=body, timeout=self.backfill_s)
        created: Json = response.raise_for_status().json()
        return created

    def dates_of_backfill(self, body: Json) -> list[str]:
        """Return the dates for which this backfill would create runs."""
        dates = self._send("POST", "/backfills/dry_run", json=body, timeout=self.creation_s).json()["backfills"]
        return [each["logical_date"] for each in dates]

    def open_backfills(self) -> list[Json]:
        """Return the backfills that Airflow has not closed. There is at most one, because Airflow refuses a second."""
        params = {"dag_id": self.dag_id, "order_by": "-id", "limit": _PAGE}
        newest = self._send("GET", "/backfills", params=params).json()["backfills"]
        return [backfill for backfill in newest if backfill["completed_at"] is None]

    def close_backfill(self, backfill_id: int) -> None:
        """Cancel a backfill: it starts no further runs, and its queued runs count as failed."""
        # A conflict means that it is closed already.
        self._send("PUT", f"/backfills/{backfill_id}/cancel", accepted=httpx.codes.CONFLICT)

    def has_events(self) -> bool:
        """Return whether a run of this DAG is about to start, because an asset that it waits for was updated."""
        events = self._find(f"{self._dag}/assets/queuedEvents")
        return bool(events and events["queued_events"])

    def events(self, run_id: str) -> list[Json]:
        """Return the events of assets that started a run. `extra` has what the task that updated the asset said."""
        events = self._find(f"{self._run(run_id)}/upstreamAssetEvents")
        return list(events["asset_events"]) if events else []

    def task_instances(self, run_id: str) -> list[Json]:
        """Return the task instances of a run. A mapped task has several."""
        return self._all(f"{self._run(run_id)}/taskInstances", "task_instances")

    def xcom(self, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """Return the result of a task, or its XCom with another key; None if there is none."""
        entry = self._find(f"{self._task(run_id, task_id)}/xcomEntries/{_quoted(key)}", map_index=map_index)
        return entry and entry["value"]

    def log(self, run_id: str, instance: Json) -> list[Any]:
        """Return the entries of the log of a task's last attempt."""
        path = f"{self._task(run_id, instance['task_id'])}/logs/{instance['try_number']}"
        page = self._find(path, map_index=instance["map_index"], full_content=True)
        return list(page["content"]) if page else []

    @property
    def _dag(self) -> str:
        return f"/dags/{_quoted(self.dag_id)}"

    def _run(self, run_id: str) -> str:
        return f"{self._dag}/dagRuns/{_quoted(run_id)}"

    def _task(self, run_id: str, task_id: str) -> str:
        return f"{self._run(run_id)}/taskInstances/{_quoted(task_id)}"

    def _all(self, path: str, key: str, **params: Any) -> list[Json]:
        entries: list[Json] = []
        while True:
            page = self._send("GET", path, params={**params, "limit": _PAGE, "offset": len(entries)}).json()
            entries += page[key]
            # Entries that are removed meanwhile leave fewer than the total, and then an empty page.
            if not page[key] or len(entries) >= page["total_entries"]:
                return entries

    def _find(self, path: str, **params: Any) -> Json | None:
        headers = {"Accept": "application/json"}
        answer = self._send("GET", path, accepted=httpx.codes.NOT_FOUND, params=params, headers=headers)
        return None if answer.status_code == httpx.codes.NOT_FOUND else answer.json()

    def _send(self, method: str, path: str, accepted: int | None = None, **arguments: Any) -> httpx.Response:
        """Make a call that may be repeated. `accepted` is a status code that is not an error of this call."""

        def send() -> httpx.Response:
            response = self._http.request(method, path, **arguments)
            return response if response.status_code == accepted else response.raise_for_status()

        return self.patience.until_answered(send)


def new_run_id() -> str:
    """Return an id that no other run has."""
    return f"manual__{datetime.now(UTC).isoformat()}_{secrets.token_hex(4)}"


def _quoted(name: str) -> str:
    return quote(name, safe="")
