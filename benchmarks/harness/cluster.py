"""An operator of an Airflow as a team has it: PostgreSQL, Redis and Celery workers."""

import os
import subprocess
from collections import Counter
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import NullPool, create_engine
from typing_extensions import override

from benchmarks.harness.operators import COMPONENTS, Operator
from scripts.airflow.__main__ import AT_ONCE_ELSEWHERE
from scripts.airflow.embedded import SCHEDULER
from scripts.airflow.remote import PASSWORD, URL
from scripts.airflow.settings import ROOT, Layout
from standins.cluster.cluster import WORKERS, Cluster, celery, started
from standins.cluster.servers import database, key_prefix, silent


class ClusterOperator(Operator):
    """The operator of an Airflow with the settings of Compose. It restarts what was killed, as Docker does.

    The commands reach it by TENFOLD_AIRFLOW_URL, as from the machine of a person of the team.
    """

    set_up = (
        "An Airflow of a team: PostgreSQL, Redis, two Celery workers with two tasks each, and a third one for "
        f"trainings. A backfill runs {AT_ONCE_ELSEWHERE} dates at a time."
    )
    at_once = AT_ONCE_ELSEWHERE
    components = (*COMPONENTS, *WORKERS)
    victim, place = "worker", "hostname"

    def __init__(self, folder: Path, settings: str, log: Path) -> None:
        super().__init__(folder, settings, log)
        self._servers, self._airflow = ExitStack(), ExitStack()
        self._cluster: Cluster | None = None

    @override
    def __enter__(self) -> Operator:
        if reasons := silent():
            raise SystemExit(f"This set-up needs PostgreSQL and Redis: {reasons}")
        address, prefix = self._servers.enter_context(database()), self._servers.enter_context(key_prefix())
        self._engine = create_engine(address, poolclass=NullPool, connect_args={"options": "-c timezone=UTC"})
        self._celery = celery(address, prefix)
        return self

    @override
    def __exit__(self, *_: object) -> None:
        with self._servers:
            self.down()

    @override
    def up(self) -> None:
        # The variables of this process go to Airflow anyway, but some of them, such as PYTHONPATH, with additions.
        variables = {name: value for name, value in self.environ.items() if os.environ.get(name) != value}
        layout = Layout(self.home, self.workspace, ROOT / "dags")
        self._cluster = self._airflow.enter_context(started(layout, {**variables, **self._celery}))
        with self._cluster.client("image_dataset"):
            self.environ[URL], self.environ[PASSWORD] = self.login()

    @override
    def down(self) -> None:
        self._airflow.close()
        self._cluster = None
        self.environ = {name: value for name, value in self.environ.items() if name not in (URL, PASSWORD)}

    @override
    def kill_scheduler(self, command: "subprocess.Popen[bytes]") -> dict[str, float]:
        return self._kill(SCHEDULER)

    @override
    def kill_work(self, place: Any) -> bool:
        self._kill(place)
        return True

    @override
    def ask(self, query: str, *values: str) -> list[Any]:
        with self._engine.connect() as connection:
            rows = connection.exec_driver_sql(query.replace("?", "%s"), values).fetchall()
        return [tuple(each.isoformat() if isinstance(each, datetime) else each for each in row) for row in rows]

    @override
    def rows(self) -> Counter[str]:
        names = [name for (name,) in self.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        return Counter({name: self.ask(f'SELECT count(*) FROM "{name}"')[0][0] for name in names})

    @override
    def database_mb(self) -> float:
        return float(self.ask("SELECT pg_database_size(current_database())")[0][0]) / 1e6

    @override
    def processes(self) -> dict[str, psutil.Process]:
        return self._cluster.roots() if self._cluster else {}

    @override
    def login(self) -> tuple[str, str]:
        airflow = self._running.airflow
        return airflow.url, airflow.password

    @property
    def _running(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def _kill(self, name: str) -> dict[str, float]:
        self._running.kill(name)
        self._running.restart(name)
        return {}
