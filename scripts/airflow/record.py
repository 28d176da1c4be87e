"""Which Airflow runs here, and the lock that keeps it the only one."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scripts.airflow.errors import Refused
from scripts.airflow.keys import write_private
from scripts.airflow.processes import Identity


@dataclass(frozen=True)
class Record:
    """What another command must know of a started Airflow."""

    port: int
    background: bool
    """Started by `up`: it outlives the command that started it, and runs may use it."""
    processes: dict[str, Identity]
    settings: list[str] = field(default_factory=list)
    """Names of the settings that its processes got. Those of an older release lack some, and it noted none."""


def write_record(home: Path, record: Record) -> None:
    """Note the Airflow of this home."""
    write_private(home / "running.json", json.dumps(asdict(record)))


def read_record(home: Path) -> Record | None:
    """Return the Airflow that was noted last, alive or not."""
    try:
        fields = json.loads((home / "running.json").read_text())
    except FileNotFoundError:
        return None
    fields["processes"] = {name: Identity(**process) for name, process in fields["processes"].items()}
    return Record(**fields)


def forget_record(home: Path) -> None:
    """Remove the record of the Airflow that ran here."""
    (home / "running.json").unlink(missing_ok=True)


@contextmanager
def exclusive_home(home: Path) -> Iterator[None]:
    """Hold this home alone. The system lets go of the lock when we die, so it is never left behind.

    Raises Refused while another command holds it.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(home / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise Refused(
                f"another command (process {file.read().strip() or 'unknown'}) is starting, stopping or using the "
                f"embedded Airflow in {home}: wait until it ends, or end it with Ctrl-C"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
