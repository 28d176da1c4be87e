"""The server: one thread a connection, kept alive, with faults and a delay before each answer."""

import socket
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from standins.fake_gcs.api import Answer, Api, Call, refusal
from standins.fake_gcs.faults import AFTER, BEFORE, OF_A_BODY, OF_A_DOWNLOAD, READING, Fault, Faults, Kind
from standins.fake_gcs.objects import ALWAYS, Access, ApiError, Content

REASONS = {304: "notModified", 400: "invalid", 401: "required", 403: "forbidden", 404: "notFound", 410: "gone"} | {
    429: "rateLimitExceeded",
    500: "internalError",
    503: "backendError",
}
SMALL = 64 * 1024
"""A body smaller than this is joined with its head."""
HANG_UP_HARD = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing resets the connection instead of ending it."""


class FakeGcs:
    """A fake Cloud Storage on a free port of loopback (or on `port`); `with` it, and it is gone afterwards.

    latency_s: each answer begins that many seconds late (a real bucket: 0.03); may be set while it runs.
    host: name or address to listen on, by which clients must be able to reach it: it is part of the answers.
    """

    def __init__(self, port: int = 0, latency_s: float = 0.0, host: str = "127.0.0.1") -> None:
        self._http = _Http((host, port), self)
        self.url = f"http://{host}:{self._http.server_port}"
        self.latency_s = latency_s
        self.requests: Counter[str] = Counter()
        self.api = Api(self.url)
        self.faults = Faults()
        self._counting = threading.Lock()
        self._loop = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> "FakeGcs":
        self._loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.faults.clear()
        self._http.shutdown()
        self._loop.join()
        self._http.hang_up()
        if self._http.errors and error is None:
            raise ExceptionGroup("the fake server itself failed", self._http.errors)

    def create_bucket(self, name: str, access: Access = "public", requester_pays: bool = False) -> None:
        """With access "private", requests without a token get status 401. With "forbidden", all requests get 403."""
        self.api.create_bucket(name, access, requester_pays)

    def put(self, bucket: str, name: str, content: bytes, encrypted: bool = False, encoding: str = "") -> int:
        """Makes or replaces an object, as somebody else would; its generation. encrypted: with a key of their own."""
        properties: dict[str, object] = {"customerEncryption": {"encryptionAlgorithm": "AES256"}} if encrypted else {}
        if encoding:
            properties["contentEncoding"] = encoding
        return self.api.buckets[bucket].create(name, Content(content), properties).generation

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> None:
        """Every file under `folder`, named by its relative path behind `prefix`; read on the first request."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            self.api.buckets[bucket].adopt(prefix + path.relative_to(folder).as_posix(), Content(path))

    def delete(self, bucket: str, name: str) -> None:
        self.api.buckets[bucket].delete(name, None, ALWAYS)

    def names(self, bucket: str) -> list[str]:
        return list(self.api.buckets[bucket].names)

    def content(self, bucket: str, name: str) -> bytes:
        content = self.api.buckets[bucket].find(name).content
        return content.read(0, content.size)

    def generation(self, bucket: str, name: str) -> int:
        return self.api.buckets[bucket].find(name).generation

    def fail(
        self,
        kind: Kind,
        on: str = ".*",
        matches: str = "",
        times: int | None = 1,
        code: int = 503,
        seconds: float | None = None,
        message: str = "",
        after_bytes: int | None = None,
    ) -> Fault:
        """Lets calls go wrong (see `Fault`); the fault counts in `fired` how often it did."""
        fault = Fault(kind, on, matches, times, code, message, seconds, after_bytes)
        self.faults.add(fault)
        return fault

    def count(self, operation: str) -> None:
        with self._counting:
            self.requests[operation] += 1


class _Http(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def __init__(self, address: tuple[str, int], gcs: FakeGcs) -> None:
        super().__init__(address, _Handler)
        self.gcs = gcs
        self.errors: list[Exception] = []
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        with self._lock:
            self._open[request] = thread
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        # Without a shutdown before it, so that closing can reset.
        with self._lock:
            self._open.pop(request, None)
            request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up; anything else is a fault of this server, and fails the test at its end."""
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, ConnectionError):
            self.errors.append(error)

    def hang_up(self) -> None:
        with self._lock:
            threads = list(self._open.values())
            for connection in self._open:
                with suppress(OSError):  # the client was quicker
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One connection. A request is read whole, carried out, and only then answered."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Thousands of lines help nobody; `FakeGcs.requests` counts."""

    def _serve(self) -> None:
        gcs = self.server.gcs
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = int(headers.get("content-length", 0))
        body = self._read(length, headers)
        if len(body) < length:  # the client died while it sent
            self.close_connection = True
            return
        try:
            call = gcs.api.understand(self.command, self.path, headers, body)
        except ApiError as error:
            self._send(refusal(error, as_text=False))
            return
        gcs.count(call.operation)
        fault = gcs.faults.take(BEFORE, call.operation, call.name)
        if fault and fault.after_bytes and call.operation == "resumable-chunk":
            gcs.api.keep_part(call, fault.after_bytes)
        if fault and fault.kind == "reset":
            self._reset()
            return
        answer = faulty(fault, call) if fault else answer_of(gcs.api, call)
        time.sleep(gcs.latency_s)
        size = answer.end - answer.start
        self._spoil(answer, gcs.faults.take(spoilers(answer, call), call.operation, call.name, size))

    def _read(self, length: int, headers: dict[str, str]) -> bytes:
        """The body, of which some comes late where a fault says so."""
        gcs, fault = self.server.gcs, None
        with suppress(ApiError):  # refused when all of it was read
            call = gcs.api.understand(self.command, self.path, headers, b"")
            fault = gcs.faults.take(READING, call.operation, call.name)
        if fault is None:
            return self.rfile.read(length)
        begin = self.rfile.read(min(fault.after_bytes or 0, length))
        fault.released.wait(fault.seconds)
        return begin + self.rfile.read(length - len(begin))

    def _spoil(self, answer: Answer, fault: Fault | None) -> None:
        """Sends the answer, as the fault lets it."""
        kind = fault.kind if fault else None
        if fault and kind == "lost":
            if fault.after_bytes:
                self._send(answer, end=cut(answer, fault))
            self._reset()
        elif kind == "short":
            self._send(replace(answer, end=cut(answer, fault)))
        elif kind == "broken":
            self._send(answer, end=cut(answer, fault))
            self.close_connection = True
        elif kind == "damaged":
            damaged = corrupted(answer, at=1)
            self._send(replace(damaged, end=damaged.end // 2))
        elif kind == "corrupt":
            self._send(corrupted(answer))
        elif fault and kind == "drip":
            self._drip(answer, fault)
        elif fault and fault.after_bytes:
            end = cut(answer, fault)
            self._send(answer, end)
            fault.released.wait(fault.seconds)
            answer.body.send(self.connection, end, answer.end)
        else:
            if fault:
                fault.released.wait(fault.seconds)
            self._send(answer)

    def _send(self, answer: Answer, end: int | None = None) -> None:
        """Head and body. The body is cut at `end`, but the head has the length of the whole body."""
        reached = answer.end if end is None else end
        head = head_of(answer)
        if reached - answer.start < SMALL:  # in one packet
            self.connection.sendall(head + answer.body.read(answer.start, reached))
        else:
            self.connection.sendall(head)
            answer.body.send(self.connection, answer.start, reached)

    def _drip(self, answer: Answer, fault: Fault) -> None:
        whole = head_of(answer) + answer.body.read(answer.start, answer.end)
        for position in range(len(whole)):
            self.connection.sendall(whole[position : position + 1])
            if fault.released.wait(fault.seconds):
                self.close_connection = True
                return

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HANG_UP_HARD)
        self.close_connection = True


def answer_of(api: Api, call: Call) -> Answer:
    try:
        return api.carry_out(call)
    except ApiError as error:
        return refusal(error, as_text=call.operation == "download")


def faulty(fault: Fault, call: Call) -> Answer:
    error = ApiError(
        fault.code, REASONS.get(fault.code, "backendError"), fault.message or f"Fault on request: {fault.code}"
    )
    return refusal(error, as_text=call.operation == "download")


def spoilers(answer: Answer, call: Call) -> tuple[Kind, ...]:
    """The faults that can befall this answer: only a success is lost, only a body is damaged."""
    if answer.status in (200, 206) and answer.end > answer.start:
        return OF_A_DOWNLOAD if call.operation == "download" else OF_A_BODY
    return AFTER if answer.status in (200, 204, 206, 308) else ("stall",)


def cut(answer: Answer, fault: Fault | None) -> int:
    """Where the body ends for now: in the middle, unless the fault says where."""
    after = fault.after_bytes if fault else None
    return (answer.start + answer.end) // 2 if after is None else min(answer.start + after, answer.end)


def corrupted(answer: Answer, at: int | None = None) -> Answer:
    body = bytearray(answer.body.read(answer.start, answer.end))
    body[len(body) // 2 if at is None else at] ^= 1
    return replace(answer, body=Content(bytes(body)), start=0, end=len(body))


def head_of(answer: Answer) -> bytes:
    length = [] if answer.status in (204, 304) else [("Content-Length", str(answer.end - answer.start))]
    lines = [f"{name}: {value}" for name, value in [*answer.headers, *length]]
    status = f"HTTP/1.1 {answer.status} {responses.get(answer.status, 'Unknown')}"
    return "\r\n".join([status, *lines, "", ""]).encode("latin-1")
