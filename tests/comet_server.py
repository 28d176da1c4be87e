"""A fake Comet server that supports what an experiment needs."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

METRICS = "/clientlib/batch/logger/experiment/metric"


@contextmanager
def comet_server(accepts: bool, goes_away: bool = False) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Start a server on loopback. Yield the value for COMET_URL_OVERRIDE, and the received bodies by path.

    Args:
        accepts: Whether the server accepts the API key.
        goes_away: Whether the server closes every connection without an answer after it received the first metrics.
    """
    received: dict[str, bytes] = {}
    handler = type("Handler", (_Handler,), {"received": received, "accepts": accepts, "goes_away": goes_away})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/clientlib/", received
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    received: dict[str, bytes]
    accepts: bool
    goes_away: bool
    answers: ClassVar = {
        "/clientlib/status-report/update": {
            "is_alive_beat_duration_millis": 10_000,
            "gpu_monitor_interval_millis": 60_000,
            "parameter_update_interval_millis": 10_000,
        },
        "/clientlib/isAlive/ver": {"version": "3.4.0"},
        "/clientlib/logger/add/run": {
            "focusUrl": "http://127.0.0.1/workspace/project/",
            "fullProjectName": "workspace/project",
            "projectId": "1",
            "projectName": "project",
            "runId": "1",
            "upload_api_asset_url_prefix": "http://127.0.0.1/",
            "upload_api_image_url_prefix": "http://127.0.0.1/",
            "upload_web_asset_url_prefix": "http://127.0.0.1/",
            "upload_web_image_url_prefix": "http://127.0.0.1/",
            "workspaceName": "workspace",
        },
    }

    def do_POST(self) -> None:
        path = self.path.split("?")[0]
        if self.goes_away and METRICS in self.received:
            self.close_connection = True
            return
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            sent = gzip.decompress(sent)
        self.received[path] = self.received.get(path, b"") + sent
        refusal = {"code": 403, "sdk_error_code": 90212, "msg": "no such key"}
        self.send_response(200 if self.accepts else 403)
        self.end_headers()
        self.wfile.write(json.dumps(self.answers.get(path, {}) if self.accepts else refusal).encode())

    do_GET = do_PUT = do_POST

    def log_message(self, *arguments: object) -> None:
        pass
