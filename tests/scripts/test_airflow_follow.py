"""Following a run over a real HTTP connection to a server that sometimes fails."""

import io
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import httpx
import pytest

from scripts.airflow import follow as following
from scripts.airflow.client import Client
from scripts.airflow.follow import SingleRun, follow
from scripts.airflow.progress import Lines
from scripts.airflow.signals import Signals
from tests.scripts.answering import Alive, Answering, PausedTime


class Server(ThreadingHTTPServer):
    """A server whose run ends with the last of `answers`. Some answers before that are errors."""

    answers: list[int]


class Handler(Answering):
    server: Server

    def do_POST(self) -> None:
        self.answer(200, {"access_token": "t"})

    def do_GET(self) -> None:
        if self.path.endswith("/dagRuns/r"):
            code = self.server.answers.pop(0)
            self.answer(code, {"state": "running" if self.server.answers else "success"})
        else:
            self.answer(200, {"task_instances": [], "total_entries": 0})


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def watch(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    client = Client(f"http://127.0.0.1:{server.server_port}", "password", "dag", PausedTime().patience())
    try:
        with Signals() as signals:
            follow(Alive(), SingleRun(client, {}, "r", {"workspace": "/tmp"}), Lines(io.StringIO()), signals)  # type: ignore[arg-type]
    finally:
        client.close()


def test_a_failed_answer_does_not_end_the_watch(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers = [200, 500, 500, 200, 503, 200]
    watch(server, monkeypatch)
    assert server.answers == []


def test_a_server_that_keeps_failing_ends_the_watch(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers = [200, *[500] * 1000]
    with pytest.raises(httpx.HTTPStatusError):
        watch(server, monkeypatch)


@pytest.mark.parametrize(("runs", "seconds"), [(0, 1.0), (1, 1.0), (100, 1.0), (365, 3.65), (1000, 10.0)])
def test_many_runs_are_looked_at_less_often(runs: int, seconds: float) -> None:
    assert following.pause_after(runs) == seconds
