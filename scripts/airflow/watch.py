"""Looking at Airflow until it is done, also while it does not always answer."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import httpx

from scripts.airflow.progress import Display, Stage, say
from scripts.airflow.remote import Running
from scripts.airflow.signals import Signals

POLL_S = 1.0
SILENCE_LIMIT_S = 60.0
LOCK_LIMIT_S = 180.0
"""Longer than the two minutes after which Airflow closes a backfill that it could not make."""
LOCKED: Mapping[int, str] = {
    httpx.codes.SERVICE_UNAVAILABLE: "Airflow's database is locked by another writer",
    httpx.codes.INTERNAL_SERVER_ERROR: "Airflow answers with an error, as it does while its database is locked",
}
"""What Airflow answers while SQLite is locked, in words."""
_Answer = TypeVar("_Answer")


class Seen(NamedTuple):
    """Where things stand."""

    stages: list[Stage]
    over: bool


def watch(airflow: Running, look: Callable[[], Seen], display: Display, signals: Signals) -> None:
    """Show what `look` sees until it is over. Raises Failed where a process of Airflow dies."""
    start = answered = time.monotonic()
    over = False
    while not over:
        airflow.check()
        try:
            stages, over = look()
            answered = time.monotonic()
            display.show(stages, answered - start)
        except httpx.HTTPError:
            # SQLite may be locked for a moment. One answer that fails must not end a training of hours.
            if time.monotonic() - answered > SILENCE_LIMIT_S:
                raise
        signals.pause(0 if over else POLL_S)


def once_free(
    call: Callable[[], _Answer],
    pause: Callable[[float], None],
    limit_s: float = LOCK_LIMIT_S,
    reasons: Mapping[int, str] = LOCKED,
) -> _Answer:
    """What `call` returns, called again while Airflow answers with a status of `reasons`: SQLite has one writer.

    Raises httpx.HTTPStatusError for any other status, and after `limit_s` seconds for these.
    """
    deadline = time.monotonic() + limit_s
    told = ""
    while True:
        try:
            return call()
        except httpx.HTTPStatusError as error:
            reason = reasons.get(error.response.status_code, "")
            if not reason or time.monotonic() > deadline:
                raise
        if reason != told:
            say(f"{reason}: trying again for up to {limit_s:.0f} s")
            told = reason
        pause(POLL_S)
