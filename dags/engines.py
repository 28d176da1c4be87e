"""Starts Spark or Beam from the task that writes shards."""

import os
import subprocess
from pathlib import Path
from typing import Any

from pipeline.allowed import ALL
from pipeline.errors import EngineError, SettingsError

ROOT = Path(__file__).resolve().parents[1]
APPLICATION = ROOT / "scripts" / "submit.py"
CONNECTION = "TENFOLD_SPARK_CONNECTION"
PACKAGE = "TENFOLD_SPARK_PACKAGE"
PYTHON = "TENFOLD_ENGINES_PYTHON"


def write_with_engine(plan_file: str, engine: str) -> None:
    """Write the missing shards of a plan with Spark or Beam, and wait for the end.

    Raises:
        SettingsError: If the engine is not installed on this worker.
        EngineError: If it failed. The log of the task shows the reason.
    """
    run = _run_spark if engine == "spark" else _run_beam
    run(["write", plan_file, f"--set=engine={engine}"])


def _run_spark(arguments: list[str]) -> None:
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    except ImportError as error:
        raise SettingsError(
            "engine=spark needs the package apache-airflow-providers-apache-spark, which is not installed on this "
            "worker: install it, as docs/how-to/engines.md shows, or set engine=airflow"
        ) from error
    hook = SparkSubmitHook(
        conn_id=os.environ.get(CONNECTION) or "spark_default",
        py_files=os.environ.get(PACKAGE),
        name="tenfold",
        application_args=arguments,
        env_vars=_closed_allowlists(),
    )
    try:
        hook.submit(str(APPLICATION))
    except BaseException:  # Also if Airflow ends this task.
        hook.on_kill()
        raise


def _run_beam(arguments: list[str]) -> None:
    python = os.environ.get(PYTHON)
    if not python:
        raise SettingsError(
            f"engine=beam needs an environment with Beam on this worker: set {PYTHON} to its Python, as "
            "docs/how-to/engines.md shows, or set engine=airflow"
        )
    process = subprocess.Popen(
        [python, "-m", "pipeline", *arguments], cwd=ROOT, env={**os.environ, **_closed_allowlists()}
    )
    try:
        code = process.wait()
    except BaseException:  # Also if Airflow ends this task.
        process.kill()
        raise
    if code:
        raise EngineError(
            f"the Beam pipeline ended with exit code {code}: read its last lines above, correct the cause, and clear "
            "this task"
        )


def _closed_allowlists() -> dict[str, Any]:
    """Return the allowlists of this worker. The command line would open those that are not set."""
    return {name: os.environ.get(name, "") for name in ALL}
