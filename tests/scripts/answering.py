"""Stand-ins for an Airflow, for tests that only need its answers."""

import json
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any


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

    def log_message(self, *_: object) -> None: ...


class Alive:
    """A stand-in for an embedded Airflow whose processes are all alive."""

    def check(self) -> None: ...
