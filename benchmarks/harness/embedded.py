"""An operator of the embedded Airflow, by `make up`, `down` and `backfill`."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
from typing_extensions import override

from benchmarks.harness.backfill import rows_in
from benchmarks.harness.machine import say
from benchmarks.harness.operators import Operator, size_mb
from scripts.airflow.embedded import SCHEDULER, free_port
from scripts.airflow.keys import load_keys
from scripts.airflow.processes import find
from scripts.airflow.record import read_record
from scripts.airflow.settings import url_of


class EmbeddedOperator(Operator):
    """The operator of an embedded Airflow."""

    set_up = "The embedded Airflow: SQLite and LocalExecutor. A backfill runs two dates at a time."
    at_once = 2
    victim, place = "task", "pid"

    def __init__(self, folder: Path, settings: str, log: Path) -> None:
        super().__init__(folder, settings, log)
        self.environ["TENFOLD_PORT"] = str(free_port(0))

    @override
    def up(self) -> None:
        self._command("up")

    @override
    def down(self) -> None:
        self._command("down")

    @override
    def kill_scheduler(self, command: "subprocess.Popen[bytes]") -> dict[str, float]:
        self.processes()[SCHEDULER].kill()
        begin = time.monotonic()
        command.wait()  # It notices this by itself, and says which process has ended.
        noticed = time.monotonic()
        if "has ended unexpectedly" not in "\n".join(self.last_output()):
            raise SystemExit("\n".join(["The backfill did not name the killed scheduler:", *self.last_output()[-20:]]))
        self.down()
        self.up()
        ended = time.monotonic()
        say(f"Airflow is back after {ended - begin:.0f} s")
        return {"noticed by the command after, s": noticed - begin, "down and up, s": ended - noticed}

    @override
    def kill_work(self, place: Any) -> bool:
        try:
            os.kill(place, signal.SIGKILL)
        except ProcessLookupError:  # It has ended meanwhile.
            return False
        return True

    @override
    def ask(self, query: str, *values: str) -> list[Any]:
        with closing(sqlite3.connect(f"{self._database.as_uri()}?mode=ro", uri=True, timeout=60)) as connection:
            return connection.execute(query, values).fetchall()

    @override
    def rows(self) -> Counter[str]:
        return rows_in(self._database)

    @override
    def database_mb(self) -> float:
        return size_mb(*self.home.glob(f"{self._database.name}*"))

    @override
    def processes(self) -> dict[str, psutil.Process]:
        try:
            record = read_record(self.home)
        except json.JSONDecodeError:  # It is being written.
            return {}
        identities = record.processes.items() if record else ()
        return {name: process for name, identity in identities if (process := find(identity))}

    @override
    def login(self) -> tuple[str, str]:
        record = read_record(self.home)
        assert record is not None
        return url_of(record.port), load_keys(self.home / "keys.json").password

    @property
    def _database(self) -> Path:
        return self.home / "airflow.db"

    def _command(self, name: str) -> None:
        if self.start(name).wait():
            raise SystemExit(f"{name} failed: see {self._log}")
