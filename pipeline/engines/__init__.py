"""Engines: each calls one function for many places, on the cores of this machine or on a cluster.

The function is idempotent and writes its results into files, so an engine passes only places and counts around. A new
engine is one module with a function `outcomes` of the form of `Outcomes` in calls.py, one line in `ENGINES`, and a
value of the setting `engine`: see docs/how-to/extend.md.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module

from pipeline.engines.calls import call_each
from pipeline.engines.task import Task
from pipeline.errors import SettingsError
from pipeline.system.progress import Advance

ENGINES = {
    "local": "pipeline.engines.local",  # In a DAG, Airflow maps the tasks itself.
    "spark": "pipeline.engines.spark",
    "beam": "pipeline.engines.beam",
}
"""The module of each engine. It is imported only if the engine is chosen."""

SPARK_ON_LOOPBACK = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
"""Configuration of Spark on one machine: nothing needs to reach it from elsewhere, and its pages have no login."""


Engine = Callable[[Task, Sequence[str], Advance], None]
"""Calls a task for each place, in any order, and `Advance` with the counts that the task returns.

It returns when all calls have succeeded, or raises the error of a call: at once if no retry can repair it, otherwise
after some retries. The places are distinct, and their bytes may not be UTF-8. A process makes one call at a time:
Pillow's limit of pixels and the environment belong to the whole process.
"""


@contextmanager
def opened_engine(name: str) -> Iterator[Engine]:
    """Open the engine of the setting `engine` for several tasks. That of this machine starts its processes only once.

    Raises SettingsError if its package is not installed.
    """
    if name != "local":
        yield engine_named(name)
        return
    from pipeline.engines.local import Workers

    with Workers() as workers:
        yield partial(call_each, workers.outcomes)


def engine_named(name: str) -> Engine:
    """Return the engine of the setting `engine`. Raises SettingsError if its package is not installed."""
    try:
        return partial(call_each, import_module(ENGINES[name]).outcomes)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("pipeline"):
            raise
        raise SettingsError(
            f"engine={name} needs the package {error.name}, which is not installed here: run `make env-engines` and "
            "start this command with .engines/bin/python, or set engine=local"
        ) from error
