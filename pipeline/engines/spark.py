"""The engine of Apache Spark: one Spark task for each place.

Only places and counts pass through the JVM. The cluster is that of the active session, of `spark-submit`, or of the
variable TENFOLD_SPARK_MASTER in the environment. Without any of them, it is this machine. Seen in PySpark 4.3.
"""

import logging
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark import AccumulatorParam, SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.engines import SPARK_ON_LOOPBACK
from pipeline.engines.task import MAX_RETRIES, Outcome, Task, error_of_cluster
from pipeline.system.parallel import start_in_thread
from pipeline.system.progress import Advance

MAX_TASKS = 100_000
"""If there are more places than this, a Spark task calls several of them, so that the driver needs less memory."""
POLL_S = 0.5
MASTER = "TENFOLD_SPARK_MASTER"
THIS_MACHINE = "local[*,4]"
"""All cores, and at most four attempts of each Spark task, as on a cluster."""
OF_LIBRARY = (Py4JError, PySparkException, ConnectionError)
"""Errors of Spark, of the bridge to its JVM, and of a JVM that has ended."""
LOST = ("ExecutorLostFailure", "exited unexpectedly", "ExecutorDeadException")
"""Words of errors after which the job is repeated. A job that a person cancelled is not repeated."""
_log = logging.getLogger(__name__)


class _Outcomes(AccumulatorParam):  # type: ignore[misc]
    """Adds up the counts of all calls, and keeps one error that no retry can repair."""

    def zero(self, _value: Outcome) -> Outcome:
        return Outcome()

    def addInPlace(self, one: Outcome, other: Outcome) -> Outcome:
        return Outcome(one.count + other.count, one.failure or other.failure)


def run(task: Task, places: Sequence[str], advance: Advance) -> None:
    """Call the task for each place, on the cluster: see `Engine`.

    Spark repeats the tasks of a lost executor. If Spark gives up, the whole job is repeated. Calls that have finished
    are quick then.
    """
    shown = 0

    def show(count: int) -> None:
        nonlocal shown
        advance(max(0, count - shown))  # A repeated job counts from zero.
        shown = max(shown, count)

    for retries_left in range(MAX_RETRIES, -1, -1):
        try:
            return _run_job(_context(), task, places, show)
        except OF_LIBRARY as error:
            if retries_left and any(words in str(error) for words in LOST):
                _log.warning("Spark lost too many executors: starting the job again. Finished shards are kept")
                continue
            raise error_of_cluster(error) from error
    return None


def _run_job(context: SparkContext, task: Task, places: Sequence[str], show: Callable[[int], None]) -> None:
    group, outcomes = uuid.uuid4().hex, context.accumulator(Outcome(), _Outcomes())

    def call_all() -> None:
        context.setJobGroup(group, "Tenfold", interruptOnCancel=True)
        each_place = context.parallelize(places, max(1, min(len(places), MAX_TASKS)))
        each_place.foreach(lambda place: outcomes.add(task.attempt(place)))

    job = start_in_thread(call_all, "spark")
    try:
        while not job.done() and not outcomes.value.failure:
            wait([job], POLL_S)
            show(outcomes.value.count)
        outcomes.value.require_success()
        job.result()
        show(outcomes.value.count)
    finally:
        if not job.done():
            with suppress(*OF_LIBRARY):  # The error that ends this function says more.
                context.cancelJobGroup(group)


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
