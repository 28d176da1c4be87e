"""The engine of Apache Spark: one Spark task for each place.

Only places and counts pass through the JVM. Seen in PySpark 4.3.
"""

import uuid
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark import Accumulator, AccumulatorParam
from pyspark.errors import PySparkException

from pipeline.engines.calls import WorkersLost
from pipeline.engines.spark_context import spark_context
from pipeline.engines.task import Outcome, Task, error_of_cluster
from pipeline.system.parallel import start_in_thread

MAX_TASKS = 100_000
"""If there are more places than this, a Spark task calls several of them, so that the driver needs less memory."""
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
    context, group = spark_context(), uuid.uuid4().hex
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
