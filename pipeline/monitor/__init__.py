r"""Monitoring of a training process: sample, time, write. Imports neither TensorFlow nor Airflow.

sources --Sampler, 5 Hz--> values \
                                       Reporter --one writer thread--> RecordSink (everything), CometSink (intervals)
training loop: batch, epoch ------/
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from pipeline.monitor.comet import CometOptions, CometSink
from pipeline.monitor.record import RecordSink, last_row, last_time, read, read_servers, recorded_s
from pipeline.monitor.reporter import Reporter, closing_sink
from pipeline.monitor.row import KINDS, Row, Sink, steady_clock
from pipeline.monitor.sampler import Sampler, Source
from pipeline.monitor.step_clock import StepClock, StepStart, StepTimes

PATIENT_S, HURRIED_S = 60.0, 8.0
"""Time limits for Comet in seconds: at the end of a training, and after an exception."""
FLUSH_S = 15.0
"""How long a checkpoint waits for the record, in seconds. It is less than a stopped training has until it is killed."""
_log = logging.getLogger(__name__)

__all__ = [
    "KINDS",
    "CometOptions",
    "Monitor",
    "Row",
    "Sink",
    "StepClock",
    "StepStart",
    "StepTimes",
    "closing_sink",
    "last_row",
    "open_monitor",
    "read",
    "read_servers",
]


class Monitor:
    """Takes the reports of the training loop. Comes from open_monitor(). No call blocks or raises because of a sink."""

    def __init__(
        self, reporter: Reporter, sources: Mapping[str, Source], hz: float, tracker: CometSink | None = None
    ) -> None:
        self._reporter, self._tracker = reporter, tracker
        self._step = 0
        self._first = True
        self.sampler = Sampler(sources, self._sample, hz, lost=lambda: reporter.dropped)

    @property
    def comet_location(self) -> str | None:
        """After the block, the path of the archive or the URL; None if there is no Comet experiment."""
        return self._tracker.location if self._tracker else None

    def batch(
        self,
        *,
        step: int,
        epoch: int,
        times: StepTimes,
        examples: int,
        ready_pct: float | None = None,
        python_calls: int = 0,
        is_simulated: bool = False,
        ago_s: float = 0.0,
    ) -> None:
        """Report one training step. The first step of this process is marked, because it traces and compiles.

        Args:
            step: Its number over all epochs, from 1.
            epoch: Its epoch, from 1.
            times: Where its time went.
            examples: Number of its examples.
            ready_pct: Number of batches that were ready when the step needed one, in percent of the batches that the
                input may keep ready; None if unknown.
            python_calls: Number of operations of the step that call Python code.
            is_simulated: Whether the step only waited, instead of using an accelerator.
            ago_s: Seconds since the step ended.
        """
        parts = {
            "input/wait_ms": 1000 * times.wait_s,
            "step/compute_ms": 1000 * times.compute_s,
            "step/host_ms": 1000 * times.host_s,
            "step/checkpoint_ms": 1000 * times.checkpoint_s,
        }
        whole = {"step/time_ms": sum(parts.values()), "input/examples": examples, "epoch": epoch}
        optional = {} if ready_pct is None else {"input/ready_pct": ready_pct}
        if is_simulated:
            optional["step/simulated"] = 1.0
        values = {**parts, **whole, **optional, "step/python_calls": python_calls, "first": float(self._first)}
        self._step, self._first = step, False
        self._reporter.report("batches", step, values, ago_s)

    def epoch(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Report the end of an epoch (from 1), at training step `step`."""
        self._reporter.report("epochs", epoch, {**values, "global_step": step})

    def flush(self) -> None:
        """Wait until all reported rows are in the record on the disk, for at most FLUSH_S, because a sink may hang."""
        if not self._reporter.flush(FLUSH_S):
            _log.warning(
                "monitor: the last rows are not on the disk after %g s: a power loss now would leave steps of the "
                "checkpoint out of the record",
                FLUSH_S,
            )

    def _sample(self, values: Mapping[str, float]) -> None:
        self._reporter.report("samples", self._step, values)


@contextmanager
def open_monitor(
    run_folder: Path,
    hz: float = 5.0,
    comet: CometOptions | None = None,
    sinks: Sequence[Sink] = (),
    sources: Mapping[str, Source] = MappingProxyType({}),
) -> Iterator[Monitor]:
    """Sample and record until the block ends, also by an exception.

    Args:
        run_folder: The record is written into `record/` below it, and archives of Comet into `comet/`.
        hz: Samples a second.
        comet: The experiment to report to; None for no experiment.
        sinks: Get the same rows as the record. Their owner closes them.
        sources: Sampled in addition to the machine and its GPUs. A source replaces that of the same name.

    Raises:
        ValueError: If `hz` is not from 0.2 to 20.
        OSError: If the folder of the record cannot be made.
    """
    from pipeline.monitor import gpu, machine

    with ExitStack() as closing:  # Closes from last to first: sampler, queue, record, Comet.
        tracker = CometSink(run_folder / "comet", comet, recorded_s(run_folder / "record")) if comet else None
        if tracker:
            # `push` and not `callback`, because after an exception it waits less long: a kill may follow.
            closing.push(lambda kind, *_: tracker.close(HURRIED_S if kind else PATIENT_S))
        record = closing.enter_context(closing_sink(RecordSink(run_folder / "record")))
        clock = steady_clock(not_before=last_time(run_folder / "record"))
        reporter = Reporter([record, *([tracker] if tracker else []), *sinks], clock=clock, sync=record.sync)
        closing.callback(reporter.close)
        monitor = Monitor(reporter, {**machine.sources(), **gpu.sources(), **sources}, hz, tracker)
        closing.callback(monitor.sampler.close)
        monitor.sampler.start()
        yield monitor
