"""The engine of Apache Beam: a pipeline that maps the task over the places.

The setting TENFOLD_BEAM_OPTIONS in the environment holds the options of the pipeline, such as a runner and its project.
Without it, the pipeline runs in threads of this process. Seen in Beam 2.77.
"""

import os
import shlex
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.metrics.metric import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.engines.task import Task, error_of_cluster
from pipeline.system.cores import usable_cores
from pipeline.system.progress import Advance

OPTIONS = "TENFOLD_BEAM_OPTIONS"
COUNT = Metrics.counter("tenfold", "count")


def run(task: Task, places: Sequence[str], advance: Advance) -> None:
    """Call the task for each place, by a pipeline: see `Engine`. The counts come at its end."""
    pipeline = beam.Pipeline(options=_options())
    # Without the reshuffle, one worker would call the task for all places.
    pipeline | beam.Create(places) | beam.Reshuffle() | beam.Map(_call, task)
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except Exception as error:  # Each runner has classes of its own.
        raise error_of_cluster(error) from error
    counters = result.metrics().query(MetricsFilter().with_name(COUNT.metric_name.name))["counters"]
    advance(sum(counter.result for counter in counters))


def _call(place: str, task: Task) -> None:
    outcome = task.attempt(place)
    outcome.require_success()
    COUNT.inc(outcome.count)


def _options() -> PipelineOptions:
    given = os.environ.get(OPTIONS)
    if given is not None:
        return PipelineOptions(shlex.split(given))
    # Threads, because a pipeline of several processes waits forever if one of them is killed.
    return PipelineOptions(
        flags=[],  # Otherwise, Beam parses the arguments of this process.
        runner="FnApiRunner",
        direct_running_mode="multi_threading",
        direct_num_workers=usable_cores(),
    )
