"""Calls over real HTTP to an API server that answers late, drops connections, answers 503 or restarts."""

import io
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from scripts.airflow.client import Client
from scripts.airflow.commands import run_once
from scripts.airflow.errors import Failed, Interrupted
from scripts.airflow.follow import SingleRun, follow
from scripts.airflow.patience import Patience
from scripts.airflow.progress import Lines
from scripts.airflow.remote import Airflow
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals
from tests.ports import own_port
from tests.scripts.answering import Answering, PausedTime
from tests.waiting import until

ANSWER_S = 1.0
"""Seconds that a client waits for one answer, if an answer is late."""
PATIENT_ANSWER_S = 300.0
"""Seconds that it waits otherwise, because an answer of a busy machine must not count as late."""
LATE, DROPPED, LOST = "late", "dropped", "lost"


class Handler(Answering):
    """Airflow's answers about one DAG. Each comes after the next fault."""

    server: "Server"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/auth/token":
            self.answer(200, {"access_token": "t"})
        elif self.path.endswith("/pools"):
            self.reply(409, {})
        else:
            self.reply(*self.server.made(body["dag_run_id"]))

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        is_there = "/dagRuns/" not in self.path or any(self.path.endswith(quote(run)) for run in self.server.runs)
        self.reply(200 if is_there else 404, {})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/taskInstances"):
            self.reply(200, {"task_instances": [], "total_entries": 0})
        elif "/xcomEntries/" in path:
            self.reply(404, {})
        elif "/dagRuns/" in path:
            self.reply(*self.server.looked())
        else:
            dag = {"last_parsed_time": "2026-01-01T00:00:00Z", "has_import_errors": False, "slots": 1}
            self.reply(200, dag)

    def reply(self, code: int, content: Any) -> None:
        fault = self.server.faults.pop(0) if self.server.faults else None
        if fault == LATE:
            self.wait_for_hang_up()
        if fault == DROPPED:
            self.close_connection = True
        elif isinstance(fault, int):
            self.answer(fault, {})
        else:
            self.answer(code, content)


class Server(ThreadingHTTPServer):
    """A server with one run, which ends after `looks_to_the_end` requests for its state."""

    allow_reuse_address = True

    def __init__(self, port: int = 0, looks_to_the_end: int = 3, runs: Iterable[str] = ()) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.faults: list[str | int] = []
        """The faults of the next answers."""
        self.later_faults: list[str | int] = []
        """The faults from the third look at the state of the run on."""
        self.runs = [*runs]
        self.looks_to_the_end = looks_to_the_end
        self._looks = 0
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    def made(self, run_id: str) -> tuple[int, Any]:
        if self.faults[:1] == [LOST]:  # the request never arrives
            self.faults[0] = DROPPED
            return 200, {}
        if run_id in self.runs:
            return 409, {"detail": "exists"}
        self.runs.append(run_id)
        return 200, {"dag_run_id": run_id}

    def looked(self) -> tuple[int, Any]:
        self.looks_to_the_end -= 1
        self._looks += 1
        if self._looks == 3:
            self.faults += self.later_faults
        return (200, {"state": "running" if self.looks_to_the_end > 0 else "success"}) if self.runs else (404, {})

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


def client_of(server: Server, pause: Callable[[float], None] | None = None) -> Client:
    """Return a client whose pauses take no time, unless there is another `pause`."""
    answer_s = ANSWER_S if LATE in server.faults else PATIENT_ANSWER_S
    patience = PausedTime().patience(limit_s=30, answer_s=answer_s)
    patience = replace(patience, pause=pause) if pause else patience
    client = Client(f"http://127.0.0.1:{server.server_port}", "password", "dag", patience)
    client.creation_s = answer_s
    return client


@pytest.mark.parametrize("fault", [LATE, DROPPED, 429, 500, 502, 503, 504])
def test_a_read_is_repeated(server: Server, fault: str | int, capsys: pytest.CaptureFixture[str]):
    server.runs, server.faults = ["r"], [fault, fault]
    with closing(client_of(server)) as client:
        assert client.run("r")["state"] in ("running", "success")
    assert server.faults == []
    assert capsys.readouterr().out.count("trying again for up to 30 s") == 1


def test_a_single_slow_answer_is_accepted(server: Server):
    """After Ctrl-C, the time limit of an answer may be longer than that of all calls."""
    server.runs, server.faults = ["r"], [LATE]
    with closing(client_of(server)) as client:
        client.hurried(ANSWER_S / 2).fail("r")


@pytest.mark.parametrize("fault", [400, 403, 404, 422])
def test_a_refusal_is_not_repeated(server: Server, fault: int):
    server.runs, server.faults = ["r"], [fault, fault]
    with closing(client_of(server)) as client, pytest.raises(Exception, match=str(fault)):
        client.run("r")["state"]
    assert server.faults == [fault]


@pytest.mark.parametrize("faults", [[LATE], [DROPPED], [503], [LOST], [LOST, LATE, 503]])
def test_a_trigger_whose_answer_is_lost_creates_one_run(server: Server, faults: list[str | int]):
    server.faults = list(faults)
    with closing(client_of(server)) as client:
        assert [client.trigger({})] == server.runs
    assert server.faults == []


@pytest.mark.parametrize("change", ["unpause", "fail"])
def test_an_idempotent_change_is_repeated(server: Server, change: str):
    server.runs, server.faults = ["r"], [503, DROPPED]
    with closing(client_of(server)) as client:
        client.unpause() if change == "unpause" else client.fail("r")
    assert server.faults == []


def remote(server: Server, tmp_path: Path) -> Airflow:
    layout = Layout(tmp_path, tmp_path / "workspace", tmp_path)
    return Airflow(layout, f"http://127.0.0.1:{server.server_port}", "password", pages="http://ui")


def test_a_run_is_followed_through_a_restart_of_the_api_server(tmp_path: Path, monkeypatch: Any):
    """`make docker-check` while the API server restarts: its port refuses connections for a while."""
    server = Server(own_port())
    airflow, port = remote(server, tmp_path), server.server_port
    followed = threading.Thread(target=lambda: lines.append(run_once(airflow, client, {}, Signals())))
    lines: list[list[str]] = []
    pauses: list[Server | None] = []

    def pause(_: float) -> None:
        """Wait for the server, which is there again after the third refused call."""
        pauses.append(Server(port, runs=server.runs) if len(pauses) == 2 else None)

    monkeypatch.setattr("scripts.airflow.follow.POLL_S", 0.02)
    server.looks_to_the_end = 10**6
    with closing(client_of(server, pause)) as client:
        followed.start()
        until(lambda: server.runs)
        server.close()
        followed.join()
    for again in filter(None, pauses):
        again.close()
    assert lines == [[]]
    assert len(pauses) == 3


@pytest.mark.parametrize("stays", [True, False])
def test_the_run_is_named_when_the_patience_ends(server: Server, tmp_path: Path, monkeypatch: Any, stays: bool):
    """If the Airflow belongs to the command, it ends with the command, and so does the run."""
    monkeypatch.setattr("scripts.airflow.follow.POLL_S", 0.02)
    server.looks_to_the_end = 10**6
    airflow = replace(remote(server, tmp_path), stays=stays)
    server.later_faults = [503] * 10**5
    with closing(client_of(server)) as client, pytest.raises(Failed) as caught:
        run_once(airflow, client, {}, Signals())
    [run_id] = server.runs
    assert "Airflow at http://127.0.0.1" in str(caught.value)
    if stays:
        assert f"the run {run_id} of dag continues without this command" in str(caught.value)
        assert f"http://ui/dags/dag/runs/{run_id.replace('+', '%2B')}" in str(caught.value)
    else:
        assert f"the run {run_id} of dag ends together with this command" in str(caught.value)


def test_a_transient_refusal_does_not_end_the_watch(server: Server, tmp_path: Path, monkeypatch: Any):
    """An ingress without its backend answers 404."""
    monkeypatch.setattr("scripts.airflow.follow.POLL_S", 0.02)
    server.looks_to_the_end = 20
    server.later_faults = [404, 403, 404]
    with closing(client_of(server)) as client:
        assert run_once(remote(server, tmp_path), client, {}, Signals()) == []
    assert server.faults == []


def test_the_error_for_a_permanent_refusal_names_the_run(server: Server, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("scripts.airflow.follow.POLL_S", 0.02)
    monkeypatch.setattr("scripts.airflow.follow.TOLERANCE_S", 0.2)
    server.looks_to_the_end = 10**6
    server.later_faults = [404] * 10**5
    with closing(client_of(server)) as client, pytest.raises(Failed, match="404 Not Found") as caught:
        run_once(remote(server, tmp_path), client, {}, Signals())
    assert f"the run {server.runs[0]} of dag continues without this command" in str(caught.value)


def test_a_refused_trigger_raises_an_error(server: Server, tmp_path: Path):
    with closing(client_of(server)) as client:
        server.faults = [422]
        with pytest.raises(Failed, match="Airflow refused to start the run manual__"):
            follow(remote(server, tmp_path), SingleRun(client, {}, "manual__r", {}), Lines(io.StringIO()), Signals())


class Pressed(Signals):
    """Ctrl-C was pressed."""

    def check(self) -> None:
        raise Interrupted(2)


@pytest.mark.parametrize(("fault", "message"), [(503, "The run r is marked as failed"), (LOST, "Airflow has no run r")])
def test_an_interruption_during_a_trigger_leaves_no_run(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str | int, message: str
):
    server.faults = [fault]
    patience = Patience(pause=Pressed().pause)
    client = Client(f"http://127.0.0.1:{server.server_port}", "p", "dag", patience)
    with closing(client), pytest.raises(Interrupted):
        follow(remote(server, tmp_path), SingleRun(client, {}, "r", {}), Lines(io.StringIO()), Signals())
    assert message in capsys.readouterr().out


def test_an_interruption_ends_the_wait_for_an_answer(server: Server):
    server.runs, server.faults = ["r"], [503] * 10**4
    patience = Patience(pause=Pressed().pause)
    client = Client(f"http://127.0.0.1:{server.server_port}", "p", "dag", patience)
    with closing(client), pytest.raises(Interrupted):
        client.run("r")["state"]
