"""Functions that the contract tests let an engine call. Each gets the place of a file, and returns a count."""

import os
import signal
from pathlib import Path

from pipeline.config.allowed import SOURCES
from pipeline.errors import SourceError, StorageError
from tests.waiting import simulated_work

COUNT = 2


def write(place: str) -> int:
    """Write the file."""
    Path(place).write_text("done")
    return COUNT


def refuse_the_first(place: str) -> int:
    """Raise an error that no retry repairs, for one place."""
    if _number(place) == 0:
        raise SourceError(f"{Path(place).name} changed after it was listed: run again")
    return write(place)


def fail_once(place: str) -> int:
    """Raise an error in the first call for each fourth place."""
    if _number(place) % 4 == 0 and _is_first_call(place):
        raise StorageError("the bucket did not answer")
    return write(place)


def fail_always(place: str) -> int:
    """Raise an error in each call for one place."""
    if _number(place) == 1:
        with Path(f"{place}.calls").open("a") as file:
            file.write("x")
        raise StorageError("the bucket did not answer:\ntry again later")
    return write(place)


def be_killed_once(place: str) -> int:
    """Kill this process in the first call for two places."""
    if _number(place) in (1, 3) and _is_first_call(place):
        os.kill(os.getpid(), signal.SIGKILL)
    return write(place)


def be_alone(place: str) -> int:
    """Raise an error if another call runs in this process."""
    marker = Path(place).with_name(f"process {os.getpid()} is busy")
    try:
        marker.touch(exist_ok=False)
    except FileExistsError as error:
        raise SourceError(f"{marker.name}: an engine must make one call at a time") from error
    simulated_work(0.1)
    marker.unlink()
    return write(place)


def tell_sources(place: str) -> int:
    """Write which sources the administrator allows in this process."""
    Path(place).write_text(os.environ.get(SOURCES, "nothing"))
    return COUNT


def _number(place: str) -> int:
    return int(Path(place).stem)


def _is_first_call(place: str) -> bool:
    marker = Path(f"{place}.called")
    is_first = not marker.exists()
    marker.touch()
    return is_first
