from collections.abc import Callable

import httpx
import pytest

from scripts.airflow.client import Login


class Server:
    """Takes tokens t1, t2, ... as they are handed out, until `valid` moves on."""

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


def test_logs_in_once_and_again_when_the_token_has_run_out() -> None:
    server = Server()
    with client_of(server) as client:
        assert [client.get("/dags").status_code for _ in range(2)] == [200, 200]
        assert server.logins == 1
        server.valid = "t2"
        assert client.get("/dags").status_code == 200
    assert server.logins == 2


def test_a_call_that_is_never_allowed_ends() -> None:
    server = Server()
    server.valid = "none"
    with client_of(server) as client:
        assert client.get("/dags").status_code == 401


def test_a_wrong_password_is_an_error() -> None:
    with client_of(lambda request: httpx.Response(401)) as client, pytest.raises(httpx.HTTPStatusError):
        client.get("/dags")
