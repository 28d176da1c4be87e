"""A fake token server that answers like OAuth and metadata servers."""

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = {"access_token": "t", "expires_in": 3600, "token_type": "Bearer", "email": "e", "scopes": ["s"]}


class TokenServer:
    """Returns tokens. The first `failing` answers are errors, and so is each answer N for which `fails(N)` is true."""

    def __init__(self) -> None:
        self.failing = 0
        self.fails: Callable[[int], bool] = lambda _: False
        self.expires_in = 3600
        self.status, self.error = 503, "unavailable"
        self.requests = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.requests += 1
                is_failing = server.requests <= server.failing or server.fails(server.requests)
                token = {**TOKEN, "expires_in": server.expires_in}
                status, content = (server.status, {"error": server.error}) if is_failing else (200, token)
                if not is_failing and "universe" in self.path:
                    status = 404  # The default universe: the public cloud of Google.
                body = json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", "Metadata-Flavor": "Google"}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.http.server_port}"
