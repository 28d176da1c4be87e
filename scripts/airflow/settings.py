"""The folders of Airflow and all of its settings, as environment variables. There is no airflow.cfg to keep in step."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from scripts.airflow.errors import Refused
from scripts.airflow.keys import USER, Keys
from scripts.ports import HOST, port_of

ROOT = Path(__file__).resolve().parents[2]
TASKS_AT_ONCE = 4
"""Tasks that run at the same time, over all runs, if one training runs at once. Each further training adds one."""
DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
"""Airflow's own setting of its database."""


@dataclass(frozen=True)
class Layout:
    """The folders of one embedded Airflow, all absolute, and how much runs at once."""

    home: Path
    workspace: Path
    dags: Path
    trainings: int = 1
    """Trainings that can run at once."""
    port: int = 0
    """Port of the UI of an Airflow that stays. 0: 8080, or any free port if that is taken."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """Variables of Tenfold that the person of the command has set."""

    @property
    def logs(self) -> Path:
        """Logs of the processes and, below, of every task."""
        return self.home / "logs"

    @property
    def database(self) -> Path:
        """The SQLite database of Airflow."""
        return self.home / "airflow.db"

    @property
    def samples(self) -> Path:
        """Where the sample images lie."""
        return self.workspace / "samples"

    @property
    def passwords(self) -> Path:
        """The log-in, in the form that Airflow's simple auth manager reads."""
        return self.home / "passwords.json"


def layout_from(environ: Mapping[str, str], dags: str = "") -> Layout:
    """Return the layout of this checkout, or where TENFOLD_HOME and TENFOLD_WORKSPACE say.

    Raises Refused if TENFOLD_TRAININGS_AT_ONCE is not a positive number, or TENFOLD_PORT is not a port.
    """
    trainings, port = environ.get("TENFOLD_TRAININGS_AT_ONCE") or "1", environ.get("TENFOLD_PORT")
    if not trainings.isdecimal() or int(trainings) < 1:
        raise Refused(f"TENFOLD_TRAININGS_AT_ONCE must be a number of trainings, at least 1, got {trainings!r}")
    try:
        return Layout(
            home=Path(environ.get("TENFOLD_HOME") or ROOT / ".airflow").absolute(),
            workspace=Path(environ.get("TENFOLD_WORKSPACE") or ROOT / "workspace").absolute(),
            dags=Path(dags or ROOT / "dags").absolute(),
            trainings=int(trainings),
            port=port_of(port) if port else 0,
            asked={name: value for name, value in environ.items() if name.startswith("TENFOLD_")},
        )
    except ValueError as error:
        raise Refused(str(error)) from error


def url_of(port: int) -> str:
    """Return the address of the API server."""
    return f"http://{HOST}:{port}"


def environment(
    layout: Layout,
    keys: Keys,
    port: int,
    inherited: Mapping[str, str],
    others: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the environment of Airflow's processes and of the tasks. `others` replace settings."""
    hosts = {
        # Tasks call the API server on this machine. A proxy of the network would take these calls, and fail.
        name: ",".join(filter(None, [HOST, "localhost", inherited.get(name, "")]))
        for name in ("NO_PROXY", "no_proxy")
    }
    environ = {
        # The settings of another Airflow on this machine would point ours at its database.
        **{name: value for name, value in inherited.items() if not name.startswith(("AIRFLOW__", "AIRFLOW_HOME"))},
        **_airflow(layout, keys, port),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH", "")])),
        "TENFOLD_WORKSPACE": str(layout.workspace),
        "TENFOLD_SAMPLES": str(layout.samples),
        "TENFOLD_TRAININGS_AT_ONCE": str(layout.trainings),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **hosts,
        **others,
    }
    if environ[DATABASE].startswith("sqlite"):
        environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS"] = "scripts.airflow.database.CONNECT_ARGS"
    return environ


def _airflow(layout: Layout, keys: Keys, port: int) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(layout.home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(layout.dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # DAGs start unpaused: a schedule that somebody set must start, and a training must follow its datasets. Without
        # a schedule, nothing starts by itself.
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(TASKS_AT_ONCE + layout.trainings - 1),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url_of(port)}/execution/",
        # The default asks the name server, and waits for an answer even if there is no name server.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
        # One run for several events, as in Airflow 3.3. By default, 3.4 starts a run for each event.
        "AIRFLOW__SCHEDULER__BATCH_ASSET_EVENTS": "True",
        DATABASE: f"sqlite:///{layout.database}",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(layout.logs),
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url_of(port),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # A supervisor notices the end of its task at its next heartbeat. With the default, each task holds its slot for
        # up to 5 s longer, and the message of a failure comes that late.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        # On a busy machine, the API server may not answer for minutes. By default, a task fails if its first request
        # has no answer after six tries of 5 s each.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        # A supervisor ends its task after this many failed heartbeats. Airflow 3.4 tries each of them once.
        "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "60",
        "AIRFLOW__CORE__FERNET_KEY": keys.fernet,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(layout.passwords),
        "AIRFLOW__API__SECRET_KEY": keys.session,
        "AIRFLOW__API_AUTH__JWT_SECRET": keys.jwt,
    }
