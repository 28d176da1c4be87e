"""The engine of Apache Beam: a pipeline that maps the task over the places.

The variable TENFOLD_BEAM_OPTIONS in the environment holds the options of the pipeline, such as its runner. Without it,
the pipeline runs in this process, one place after another. Seen in Beam 2.77.
"""

import logging
import os
import shlex
from collections.abc import Generator, Sequence
from contextlib import suppress

import apache_beam as beam
from apache_beam.metrics.metric import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from pipeline.engines.task import Outcome, Task, error_of_cluster, reported
from pipeline.errors import SettingsError, TenfoldError

OPTIONS = "TENFOLD_BEAM_OPTIONS"
COUNT = Metrics.counter("tenfold", "count")
_log = logging.getLogger(__name__)


def outcomes(task: Task, places: Sequence[str]) -> Generator[Outcome]:
    """Call the task for each place, by a pipeline: see `Outcomes`. All outcomes come at its end, as one."""
    try:
        pipeline = beam.Pipeline(options=_options())
        # As bytes, because a path may not be UTF-8. Without the reshuffle, one worker would get all places.
        pipeline | beam.Create([os.fsencode(place) for place in places]) | beam.Reshuffle() | beam.Map(_call, task)
        result = pipeline.run()
        try:
            result.wait_until_finish()
        except BaseException:  # For example, Ctrl-C: a job on Dataflow would go on, and cost money.
            with suppress(Exception):
                result.cancel()
            raise
    except Exception as error:  # Each runner has classes of its own.
        raise error_of_cluster(error) from error
    yield Outcome(tuple(places), _count_of(result))


def _call(place: bytes, task: Task) -> None:
    outcome = task.attempt(os.fsdecode(place))
    try:
        outcome.require_success()
    except TenfoldError as error:
        raise reported(error) from error
    COUNT.inc(outcome.count)


def _count_of(result: PipelineResult) -> int:
    try:
        counters = result.metrics().query(MetricsFilter().with_name(COUNT.metric_name.name))["counters"]
        return sum(counter.result for counter in counters)
    except Exception as error:  # noqa: BLE001 - the shards are written, whatever the runner says about its counters
        _log.warning("the number of examples is unknown, because the runner has no counters: %s", error)
        return 0


def _options() -> PipelineOptions:
    given = os.environ.get(OPTIONS, "").strip()
    if given:
        # Beam's own default would start a server program with open ports.
        if "--runner" not in given:
            raise SettingsError(f"{OPTIONS} must contain --runner=..., got {given!r}: name one, such as DataflowRunner")
        return PipelineOptions(shlex.split(given))
    # In this process, because other modes open ports for everyone, and a pipeline of several processes waits forever if
    # one of them is killed. Without `flags`, Beam would parse the arguments of this process.
    return PipelineOptions(flags=[], runner="FnApiRunner", direct_running_mode="in_memory", direct_num_workers=1)
