from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from scripts.airflow.client import Client, Login
from scripts.airflow.errors import Failed
from scripts.airflow.ready import ANY_TIME, require_pool, require_slots, wait_until_ready
from scripts.airflow.remote import Airflow
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals


class Server:
    """A server that issues the tokens t1, t2, ... and accepts only the token `valid`."""

    def __init__(self) -> None:
        self.logins = 0
        self.valid = "t1"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            self.logins += 1
            return httpx.Response(201, json={"access_token": f"t{self.logins}"})
        known = request.headers.get("Authorization") == f"Bearer {self.valid}"
        return httpx.Response(200 if known else 401)


def client_of(server: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(
        base_url="http://test", auth=Login("http://test", "secret"), transport=httpx.MockTransport(server)
    )


def test_the_client_logs_in_once_and_again_when_its_token_expires() -> None:
    server = Server()
    with client_of(server) as client:
        assert [client.get("/dags").status_code for _ in range(2)] == [200, 200]
        assert server.logins == 1
        server.valid = "t2"
        assert client.get("/dags").status_code == 200
    assert server.logins == 2


def test_a_call_that_stays_unauthorized_ends() -> None:
    server = Server()
    server.valid = "none"
    with client_of(server) as client:
        assert client.get("/dags").status_code == 401


def test_a_wrong_password_is_an_error() -> None:
    with client_of(lambda request: httpx.Response(401)) as client, pytest.raises(httpx.HTTPStatusError):
        client.get("/dags")


@pytest.fixture
def failing() -> set[str]:
    """Paths that the server of `url` refuses."""
    return set()


@pytest.fixture
def url(failing: set[str]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(503 if self.path in failing else 200, b"{}")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(201, b'{"access_token": "t"}')

        def answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("path", ["/api/v2/version", "/api/v2/pools", "/execution/health"])
def test_a_server_is_ready_when_it_answers_users_and_tasks(path: str, url: str, failing: set[str]) -> None:
    client = Client(url, "secret", "dag")
    assert client.ready()
    failing.add(path)
    assert not client.ready()
    client.close()


@pytest.mark.parametrize(("slots", "problem"), [(2, None), (0, "the pool 'gpu' has no slots")])
def test_a_pool_without_slots_is_refused(slots: int, problem: str | None) -> None:
    """The pool exists already, with the number of slots that a user set in the UI."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.url.path.endswith("/pools"):
            return httpx.Response(409)
        return httpx.Response(201, json={"access_token": "t", "slots": slots})

    with pytest.raises(Failed, match=problem) if problem else nullcontext():
        require_pool(_client_of(answer), 1)


def test_a_dag_that_a_person_has_paused_stays_paused_when_airflow_is_ready(tmp_path: Path):
    """After a maintenance, `make up` must not start tasks. The server answers nothing that changes a DAG."""
    dag = {"dag_id": "dag", "last_parsed_time": "2026-01-01T00:00:00Z", "has_import_errors": False, "is_paused": True}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "PATCH":
            return httpx.Response(400)
        page = {"dags": [dag] if request.url.params.get("paused") == "true" else [], "total_entries": 1}
        return httpx.Response(200, json={**dag, **page, "slots": 1, "access_token": "t"})

    client = _client_of(answer)
    client.ready = lambda: True  # type: ignore[method-assign]
    airflow = Airflow(Layout(tmp_path, tmp_path, tmp_path), "http://test", "secret", pages="http://test")
    wait_until_ready(airflow, client, ANY_TIME, Signals())
    assert client.paused_dags() == ["dag"]


@pytest.mark.parametrize(
    ("servers", "slots", "problem"),
    [
        (1, 1, None),
        (2, 2, None),
        (3, -1, None),
        (2, 1, "num_training_servers=2 needs 2 slots .* the pool 'gpu' has 1:"),
    ],
)
def test_a_training_with_more_servers_than_slots_is_refused(servers: int, slots: int, problem: str | None):
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(201, json={"access_token": "t", "slots": slots})

    with pytest.raises(Failed, match=problem) if problem else nullcontext():
        require_slots(_client_of(answer), {"num_training_servers": servers})


def _client_of(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    client = Client("http://test", "secret", "dag")
    client._http = httpx.Client(base_url="http://test/api/v2", transport=httpx.MockTransport(answer))
    return client
