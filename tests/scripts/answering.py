"""What stands in for an Airflow where only its answers matter."""

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
        """Answer while the client is connected: it leaves when it has waited long enough."""
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, *_: object) -> None: ...


class Alive:
    """In place of an embedded Airflow whose processes all live."""

    def check(self) -> None: ...
