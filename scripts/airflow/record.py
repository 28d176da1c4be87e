"""The record of the Airflow that runs here, and the lock that allows only one."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipeline.system.flock import try_lock
from scripts.airflow.errors import Refused
from scripts.airflow.keys import write_private
from scripts.airflow.processes import Identity


@dataclass(frozen=True)
class Record:
    """Facts about a started Airflow that another command needs."""

    port: int
    background: bool
    """Whether `up` started it. It then outlives that command, and runs may use it."""
    processes: dict[str, Identity]
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings that its processes got, as `noted_settings` returns them. Another form, or nothing, in the record of
    an older version, whose Airflow must be stopped nevertheless."""
    code: str = ""
    """The folder of the code that its processes run. Empty in the record of an older version."""


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
    """Lock this home for the block. The kernel releases the lock if this process dies, so it is never left behind.

    Raises Refused if another command holds the lock.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not mode w, which would empty the file: it names the process that holds the lock.
    with open(home / "lock", "a+") as file:
        if not try_lock(file.fileno()):
            file.seek(0)
            raise Refused(
                f"another command (process {file.read().strip() or 'unknown'}) is starting, stopping or using the "
                f"embedded Airflow in {home}: wait until it ends, or end it with Ctrl-C"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
