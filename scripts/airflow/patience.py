"""Repeat calls while Airflow does not answer: its API server restarts, or its database is locked."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx

from scripts.airflow.progress import say

PAUSE_S = 1.0
LIMIT_S = 300.0
"""Calls are repeated for this many seconds. An API server takes less to start, even on a busy machine. Airflow closes a
backfill that it could not create after two minutes."""
ANSWER_S = 30.0
"""Time limit of one answer. On SQLite, an answer waits for other writers. After Ctrl-C, a person waits this long."""
BUSY: Mapping[int, str] = {
    httpx.codes.SERVICE_UNAVAILABLE: "Airflow's database is locked by another writer",
    httpx.codes.INTERNAL_SERVER_ERROR: "Airflow answers with an error, for example because its database is locked",
    httpx.codes.BAD_GATEWAY: "the proxy in front of Airflow gets no answer from Airflow",
    httpx.codes.GATEWAY_TIMEOUT: "the proxy in front of Airflow gets no answer from Airflow",
    httpx.codes.TOO_MANY_REQUESTS: "the proxy in front of Airflow refuses requests for now",
}
"""Status codes that go away by themselves, and their reasons."""
_SILENT = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError)
"""Errors of a call that got no answer."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Patience:
    """How long calls to Airflow are repeated."""

    pause: Callable[[float], None] = time.sleep
    """Waits for some seconds. It may raise an exception to give up at once."""
    clock: Callable[[], float] = time.monotonic
    """Returns seconds, which `limit_s` counts."""
    limit_s: float = LIMIT_S
    answer_s: float = ANSWER_S
    """Time limit of one answer."""

    def until_answered(self, call: Callable[[], _Answer], reasons: Mapping[int, str] = BUSY) -> _Answer:
        """Return what `call` returns. Repeat it while Airflow does not answer, or answers with a code of `reasons`.

        Raises httpx.HTTPError at once for any other error, and after `limit_s` seconds for these, but not before the
        second call: the time limit of one answer may be longer.
        """
        deadline = self.clock() + self.limit_s
        last_reason = ""
        while True:
            try:
                return call()
            except httpx.HTTPError as error:
                reason = passing(error, reasons)
                if not reason or (last_reason and self.clock() > deadline):
                    raise
            if reason != last_reason:
                say(f"{reason}: trying again for up to {self.limit_s:.0f} s")
                last_reason = reason
            self.pause(PAUSE_S)


PATIENT = Patience()


def passing(error: httpx.HTTPError, reasons: Mapping[int, str] = BUSY) -> str:
    """Return why a later call may succeed; empty if no later call will."""
    if isinstance(error, httpx.HTTPStatusError):
        return reasons.get(error.response.status_code, "")
    return f"Airflow does not answer ({type(error).__name__})" if isinstance(error, _SILENT) else ""
