"""The engine of Apache Spark: one Spark task for each place.

The cluster is that of the active session, of `spark-submit`, or of TENFOLD_SPARK_MASTER. Without any of them, it is
this machine. Only places and counts pass through the JVM. Seen in PySpark 4.3.
"""

import os
import sys
import uuid
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark import Accumulator, AccumulatorParam, SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.engines import SPARK_ON_LOOPBACK
from pipeline.engines.calls import WorkersLost
from pipeline.engines.task import Outcome, Task, error_of_cluster
from pipeline.system.parallel import start_in_thread

MAX_TASKS = 100_000
"""If there are more places than this, a Spark task calls several of them, so that the driver needs less memory."""
MASTER = "TENFOLD_SPARK_MASTER"
THIS_MACHINE = "local[*,4]"
"""All cores, and at most four attempts of each Spark task, as on a cluster."""
POLL_S = 0.5
OF_LIBRARY = (Py4JError, PySparkException, ConnectionError)
"""Errors of Spark, of the bridge to its JVM, and of a JVM that has ended."""
LOST = ("ExecutorLostFailure", "exited unexpectedly", "ExecutorDeadException")
"""Words of errors after which the job is repeated. A job that a person cancelled is not repeated."""


class _List(AccumulatorParam):  # type: ignore[misc]
    """A list to which all calls add."""

    def zero(self, _value: list[Outcome]) -> list[Outcome]:
        return []

    def addInPlace(self, one: list[Outcome], other: list[Outcome]) -> list[Outcome]:
        one.extend(other)
        return one


def outcomes(task: Task, places: Sequence[str]) -> Generator[Outcome]:
    """Call the task for each place, on the cluster: see `Outcomes`. Spark repeats the tasks of a lost executor."""
    context, group = _context(), uuid.uuid4().hex
    made = context.accumulator([], _List())

    def call_all() -> None:
        context.setJobGroup(group, "Tenfold", interruptOnCancel=True)
        each_place = context.parallelize(places, min(len(places), MAX_TASKS))
        each_place.foreach(lambda place: made.add([task.attempt(place)]))

    job = start_in_thread(call_all, "spark")
    try:
        yield from _as_made(job, made)
        job.result()
    except OF_LIBRARY as error:
        if any(words in str(error) for words in LOST):
            raise WorkersLost("executors of Spark") from error
        raise error_of_cluster(error) from error
    finally:
        if not job.done():
            with suppress(*OF_LIBRARY):  # The error that ends this function says more.
                context.cancelJobGroup(group)


def _as_made(job: Future[None], made: Accumulator[list[Outcome]]) -> Iterator[Outcome]:
    """Yield each outcome of a job, until it has ended."""
    number, is_over = 0, False
    while not is_over:
        wait([job], POLL_S)
        is_over = job.done()
        new = made.value[number:]
        number += len(new)
        yield from new


def _context() -> SparkContext:
    if SparkSession.getActiveSession() or "PYSPARK_GATEWAY_PORT" in os.environ:  # The latter is set by `spark-submit`.
        return SparkContext.getOrCreate()
    # Spark's own default is `python3` of the PATH, which may lack the packages of this environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = os.environ.get(MASTER, THIS_MACHINE)
    configuration = SparkConf().setMaster(master).setAppName("tenfold")
    configuration.set("spark.ui.showConsoleProgress", "false")  # Tenfold shows its own.
    if not master.startswith("local"):
        return SparkContext.getOrCreate(configuration)
    context = SparkContext.getOrCreate(configuration.setAll(SPARK_ON_LOOPBACK.items()))
    # Spark writes a page of stack traces for a task that failed, and the error names the cause.
    context.setLogLevel("FATAL")
    return context
