"""Show the progress until it is over. If Airflow stops answering, name what continues without this command."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import httpx

from scripts.airflow.errors import Failed
from scripts.airflow.patience import passing
from scripts.airflow.progress import Display, Stage
from scripts.airflow.remote import Running
from scripts.airflow.signals import Signals

POLL_S = 1.0
TOLERANCE_S = 60.0
"""A refusal counts as temporary for this many seconds, because an ingress without its backend answers 404."""


class RunStatus(NamedTuple):
    """Where things stand."""

    stages: list[Stage]
    is_over: bool


def watch(airflow: Running, look: Callable[[], RunStatus], display: Display, signals: Signals) -> None:
    """Show what `look` sees until it is over.

    Raises:
        Failed: A process of Airflow died.
        httpx.HTTPError: Airflow did not answer for as long as the client asks, or refused for TOLERANCE_S seconds.
    """
    start = time.monotonic()
    refused_since: float | None = None
    is_over = False
    while not is_over:
        airflow.check()
        try:
            stages, is_over = look()
        except httpx.HTTPStatusError as error:
            refused_since = refused_since or time.monotonic()
            # The client has already repeated a call with a temporary error for minutes.
            if passing(error) or time.monotonic() - refused_since > TOLERANCE_S:
                raise
        else:
            refused_since = None
            display.show(stages, time.monotonic() - start)
        signals.pause(0 if is_over else POLL_S)


@contextmanager
def naming(airflow: Running, what: str, page: str) -> Iterator[None]:
    """Name what goes on, in the error, if Airflow does not answer in this block.

    Args:
        airflow: The Airflow that is asked.
        what: What was started, such as "the run r of image_training".
        page: Path of the page of Airflow's UI that shows it.

    Raises:
        Failed: Airflow did not answer or refused, however often it was asked.
    """
    try:
        yield
    except httpx.HTTPError as error:
        reason = passing(error) or str(error).partition("\n")[0] or type(error).__name__
        if airflow.stays:
            goes_on = f"{what} continues without this command: see {airflow.pages}{page}"
        else:
            goes_on = (
                f"{what} ends together with this command: see the logs in {airflow.layout.logs}, and start it again"
            )
        raise Failed(f"gave up on Airflow at {airflow.url}: {reason}. {goes_on}") from error


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Say what was not started if Airflow refuses a call of this block. Raises Failed with the words of Airflow."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        if passing(error):
            raise
        raise Failed(f"Airflow refused to start {what}: {error.response.text}") from error
