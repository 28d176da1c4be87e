"""Stand-ins for an Airflow, for tests that only need its answers."""

import json
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from scripts.airflow.patience import Patience


class Answering(BaseHTTPRequestHandler):
    """Answers with JSON, and logs nothing."""

    def answer(self, code: int, content: Any) -> None:
        """Send one answer."""
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        """Answer until the client disconnects, which it does after waiting long enough."""
        with suppress(ConnectionError):
            super().handle()

    def wait_for_hang_up(self) -> None:
        """Wait until the client gives up. It sends nothing after its request."""
        self.connection.recv(1)

    def log_message(self, *_: object) -> None: ...


class PausedTime:
    """Time that passes only in pauses. They take no real time."""

    def __init__(self) -> None:
        self.now = 0.0

    def patience(self, **values: float) -> Patience:
        """Return a patience that counts this time."""
        return Patience(pause=self._pause, clock=lambda: self.now, **values)

    def _pause(self, seconds: float) -> None:
        self.now += seconds


class Alive:
    """A stand-in for an embedded Airflow whose processes are all alive."""

    def check(self) -> None: ...
