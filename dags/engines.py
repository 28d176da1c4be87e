"""Starts Spark or Beam from the task that writes shards."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.allowed import ALL, allowlists, require_output
from pipeline.engines import SPARK_ON_LOOPBACK
from pipeline.errors import ERROR_FILE, EngineError, SettingsError, error_from_json
from pipeline.storage import place_of

ROOT = Path(__file__).resolve().parents[1]
APPLICATION = ROOT / "scripts" / "submit.py"
CONNECTION = "TENFOLD_SPARK_CONNECTION"
PACKAGE = "TENFOLD_SPARK_PACKAGE"
PYTHON = "TENFOLD_ENGINES_PYTHON"
GRACE_S = 30.0
"""After a timeout, Beam has this many seconds to cancel its job."""


def write_with_engine(plan_file: str, settings: dict[str, Any]) -> None:
    """Write the missing shards of a plan with Spark or Beam, and wait for the end.

    Raises:
        TenfoldError: The error of the engine's process.
    """
    require_output(place_of(plan_file))  # It becomes an argument of a command.
    engine = settings["engine"]
    arguments = ["write", plan_file, f"--set=engine={engine}"]
    # The command line opens the allowlists that are not set, so all of them are set. Its defaults are those of this
    # task, which may run in another folder.
    closed = {**dict.fromkeys(ALL, ""), **allowlists()}
    with tempfile.TemporaryDirectory(prefix="tenfold-") as folder:
        error_file = Path(folder) / "error.json"
        try:
            RUNNERS[engine](arguments, {**os.environ, **closed, ERROR_FILE: str(error_file)})
        except Exception:
            # The error of the process says more than its exit code, and decides whether a retry may help.
            if error_file.exists():
                raise error_from_json(**json.loads(error_file.read_text("utf-8"))) from None
            raise


def _run_spark(arguments: list[str], environment: Mapping[str, str]) -> None:
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    except ImportError as error:
        raise SettingsError(
            "engine=spark needs the package apache-airflow-providers-apache-spark, which is not installed on this "
            "worker: install it, as docs/how-to/engines.md shows, or set engine=local"
        ) from error
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    name = os.environ.get(CONNECTION) or "spark_default"
    try:
        cluster = BaseHook.get_connection(name).host or ""
    except AirflowNotFoundException as error:  # The hook would use YARN instead.
        raise SettingsError(
            f"engine=spark needs the connection {name!r} of Airflow, which does not exist: create it under Admin, "
            f"Connections, or name another one in {CONNECTION} on the workers"
        ) from error
    hook = SparkSubmitHook(
        # With the driver elsewhere, this task could neither give it the allowlists nor stop it.
        deploy_mode="client",
        conf=SPARK_ON_LOOPBACK if cluster.startswith("local") else None,
        conn_id=name,
        py_files=os.environ.get(PACKAGE),
        name="tenfold",
        application_args=arguments,
    )
    try:
        # Not `env_vars` of the hook, which do not reach a driver on this machine if the cluster is Kubernetes. The
        # standard input of a task is its channel to Airflow.
        hook.submit(str(APPLICATION), env=environment, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise SettingsError(
            "engine=spark needs the program spark-submit in the PATH of this worker: install Spark, or set engine=local"
        ) from error
    except BaseException:  # For example, the time limit of the task.
        hook.on_kill()
        raise


def _run_beam(arguments: list[str], environment: Mapping[str, str]) -> None:
    python = os.environ.get(PYTHON, "")
    if not Path(python).is_file():
        raise SettingsError(
            f"engine=beam needs an environment with Beam on this worker: set {PYTHON} to its Python, as "
            f"docs/how-to/engines.md shows, or set engine=local; got {python!r}"
        )
    process = subprocess.Popen(
        [python, "-m", "pipeline", *arguments],
        cwd=ROOT,
        env=environment,
        # The standard input of a task is its channel to Airflow, which also logs all lines of stderr as errors.
        stdin=subprocess.DEVNULL,
        stdout=1,
        stderr=1,
    )
    try:
        code = process.wait()
    except BaseException:  # For example, the time limit of the task.
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    if code:
        raise EngineError(f"the process of the Beam pipeline ended with exit code {code}: clear this task")


RUNNERS = {"spark": _run_spark, "beam": _run_beam}
