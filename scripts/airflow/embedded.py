"""The embedded Airflow: its four processes, which start, die and stop together.

`airflow standalone` is not used, because it listens on all interfaces and leaves its children behind on SIGTERM.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline.config.allowed import ALL
from pipeline.storage import is_bucket
from scripts.airflow.database import forget_migration, is_migrated, note_migration
from scripts.airflow.differences import differences, noted_settings
from scripts.airflow.errors import Failed, Refused
from scripts.airflow.keys import USER, load_keys, write_private
from scripts.airflow.processes import Identity, end, find, identify, spawn
from scripts.airflow.progress import say
from scripts.airflow.ready import check_time
from scripts.airflow.record import Record, forget_record, read_record, write_record
from scripts.airflow.remote import Airflow
from scripts.airflow.settings import DATABASE, ROOT, Layout, environment, url_of
from scripts.airflow.signals import Signals
from scripts.ports import HOST, is_forbidden, is_taken

PORT = "TENFOLD_PORT"
FAVORITE_PORT = 8080
MIGRATION, SCHEDULER = "db-migrate", "scheduler"
USUAL: Mapping[str, str] = {}
"""Stands for no settings beside those of `environment`."""
_LOG_TAIL_LINES = 15
_START_AGAIN = "`make down` and then `make up` start Airflow again, and its runs continue. "
"""What to do with an Airflow of `up` that lacks a process."""


def components(port: int) -> dict[str, list[str]]:
    """Return Airflow's commands, by log name, without log servers: they would listen on all interfaces."""
    return {
        "api-server": ["api-server", "--host", HOST, "--port", str(port)],
        SCHEDULER: ["scheduler", "--skip-serve-logs"],
        "dag-processor": ["dag-processor"],
        "triggerer": ["triggerer", "--skip-serve-logs"],
    }


class Embedded(Airflow):
    """An Airflow that this command started, or that an earlier `up` recorded."""

    def __init__(self, layout: Layout, record: Record, settings: Mapping[str, str] = USUAL) -> None:
        self.keys = load_keys(layout.home / "keys.json")
        url, logs = url_of(record.port), f"the logs in {layout.logs}"
        super().__init__(layout, url, self.keys.password, url, stays=record.background, where_logs_are=logs)
        self.record = record
        self._settings = settings
        # The processes that this command started. A dead child stays a zombie until its parent has waited for it.
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, signals: Signals, takes_tasks: Callable[[], bool] | None = None) -> None:
        """Prepare the database, then start the four processes. Ends with them if anything stops it half way.

        If `takes_tasks` is given, the scheduler starts last, when this function says that the API server is ready. A
        scheduler that finds unfinished runs starts their tasks at once. Without an API server, a task gives up after
        about 10 s, and has lost an attempt.
        """
        self.migrate(signals)
        commands = components(self.record.port)
        scheduler = commands.pop(SCHEDULER)
        for name, command in commands.items():
            self.add(name, command)
        begin = time.monotonic()
        while takes_tasks and not takes_tasks():
            self.check()
            check_time(begin, f"its API server does not answer: see {self.log('api-server')}")
            signals.pause(0.2)
        self.add(SCHEDULER, scheduler)

    def migrate(self, signals: Signals) -> None:
        """Create or migrate the database, unless this Airflow has already done so."""
        # The note of an earlier migration is about the database of this home.
        is_of_home = DATABASE not in self._settings
        if is_of_home and is_migrated(self.layout.database):
            return
        if is_of_home:
            forget_migration(self.layout.database)
        self.add(MIGRATION, ["db", "migrate"])
        migration = self._children[-1]
        begin = time.monotonic()
        while migration.poll() is None:
            check_time(begin, f"its database is not ready: see {self.log(MIGRATION)}")
            signals.pause(0.1)
        if migration.returncode != 0:
            raise Failed(f"Airflow's database could not be prepared. {self._end_of_log(MIGRATION)}")
        self._note({}, {})
        if is_of_home:
            note_migration(self.layout.database)

    def add(self, name: str, command: list[str], settings: Mapping[str, str] = USUAL) -> None:
        """Start one of Airflow's commands, with settings of its own; it ends with the others."""
        others = {**self._settings, **settings}
        environ = environment(self.layout, self.keys, self.record.port, os.environ, others)
        child = spawn([sys.executable, "-m", "airflow", *command], environ, self.log(name))
        self._children.append(child)
        # Recorded at once: if this command is killed now, the next one finds the process and ends it.
        self._note({**self.record.processes, name: identify(child.pid)}, noted_settings(environ, self.keys.session))

    def dead(self) -> list[str]:
        """Return names of the processes that should run and do not."""
        return [name for name, process in self.record.processes.items() if find(process) is None]

    def check(self) -> None:
        """Raise Failed, with the end of its log, if a process has died."""
        for name in self.dead():
            hint = _START_AGAIN if self.stays else ""
            raise Failed(f"Airflow's {name} has ended unexpectedly. {hint}{self._end_of_log(name)}")

    def stop(self) -> None:
        """End all processes and whatever they started."""
        end(self.record.processes.values())
        for child in self._children:
            child.wait()
        forget_record(self.layout.home)

    def log(self, name: str) -> Path:
        """Log file of a process."""
        return self.layout.logs / f"{name}.log"

    def _end_of_log(self, name: str) -> str:
        log = self.log(name)
        lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:] if log.exists() else ["(no log)"]
        return "\n".join([f"The end of {log}:", *lines])

    def _note(self, processes: dict[str, Identity], settings: Mapping[str, str]) -> None:
        self.record = Record(self.record.port, self.record.background, processes, settings, str(ROOT))
        write_record(self.layout.home, self.record)


def prepare(layout: Layout, background: bool, settings: Mapping[str, str] = USUAL) -> Embedded:
    """Return an Airflow that can be started: folders, log-in and a port of its own. Ends what a killed command left.

    `settings` replace those of `environment`: another executor or database, for one. Raises Refused if
    TENFOLD_WORKSPACE is a bucket.
    """
    if is_bucket(workspace := os.environ.get("TENFOLD_WORKSPACE", "")):
        raise Refused(
            f"TENFOLD_WORKSPACE={workspace} must be a folder: leave it out and set workspace to the bucket in the form "
            "or in the file that TENFOLD_SETTINGS names"
        )
    sweep(layout)
    # The logs of an earlier start would be shown as those of this one.
    for name in components(0):
        (layout.logs / f"{name}.log").unlink(missing_ok=True)
    layout.logs.mkdir(exist_ok=True)
    airflow = Embedded(layout, Record(_port(layout, background), background, {}), settings)
    write_private(layout.passwords, json.dumps({USER: airflow.password}))
    return airflow


def recorded_airflow(layout: Layout) -> Embedded | None:
    """Return the Airflow that was started last in this home, alive or not."""
    record = read_record(layout.home)
    return Embedded(layout, record) if record else None


def usable_airflow(layout: Layout) -> Embedded | None:
    """Return the Airflow that `up` left running, if all of it lives.

    Raises Refused if it runs the code of another folder, if it was started without a setting that its processes must
    have, because it would fail every run, or with other settings than those that the person of this command has set.
    """
    airflow = recorded_airflow(layout)
    is_whole = airflow and airflow.stays and len(airflow.record.processes) == len(components(0))
    if airflow is None or not is_whole or airflow.dead():
        return None
    code = airflow.record.code
    if code and code != str(ROOT):
        raise Refused(
            f"the Airflow at {airflow.url} runs the code in {code}, but this command is in {ROOT}: use the command "
            "there, or stop this Airflow with `make down` and run this command again. Unfinished runs then continue "
            "with the code of this folder"
        )
    got, key = airflow.record.settings, airflow.keys.session
    needed = {*ALL, *noted_settings(environment(layout, airflow.keys, airflow.record.port, {}), key)}
    if not code or not needed <= {*got}:
        raise Refused(
            f"the Airflow at {airflow.url} was started by an older version of Tenfold, without settings that it needs "
            "now: stop it with `make down`, then run this command again"
        )
    effective = environment(layout, airflow.keys, airflow.record.port, layout.asked)
    # An empty port is a free one.
    asked = {name: effective[name] for name in layout.asked if name != PORT or layout.asked[name]}
    # An Airflow that chose its port has no TENFOLD_PORT.
    if found := differences(asked, {**got, PORT: str(airflow.record.port)}, key):
        raise Refused(
            f"the Airflow at {airflow.url} has other settings than this command: {'; '.join(found)}. Airflow reads its "
            "settings when it starts. To use those of this command, run `make down` first. To use those of Airflow, "
            "leave out the variables here"
        )
    return airflow


def sweep(layout: Layout) -> bool:
    """End all processes of the Airflow that is recorded in this home. Return whether one was recorded."""
    if airflow := recorded_airflow(layout):
        airflow.stop()
    return airflow is not None


def _port(layout: Layout, background: bool) -> int:
    """Return a free port: that of TENFOLD_PORT for an Airflow that stays. Raises Refused if it cannot be had."""
    if not background:
        return free_port(0)
    if layout.port and is_taken(layout.port):
        raise Refused(
            f"another program on {HOST} uses TENFOLD_PORT={layout.port}: end that program, or set another TENFOLD_PORT"
        )
    if layout.port and is_forbidden(layout.port):
        raise Refused(f"this user is not allowed to open TENFOLD_PORT={layout.port}: choose a port from 1024 on")
    port = layout.port or free_port(FAVORITE_PORT)
    if port not in (layout.port, FAVORITE_PORT):
        say(f"Another program uses port {FAVORITE_PORT}, so Airflow uses {port}. Set TENFOLD_PORT to choose a port")
    return port


def free_port(favorite: int) -> int:
    """Return the favorite port if no program uses it, else any free port."""
    if favorite and not is_taken(favorite):
        return favorite
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
