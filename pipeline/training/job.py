"""One training from its first epoch, or its last checkpoint, to the best model: with its monitor, up to its result."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from pipeline.monitor import Monitor, Sink, closing_sink, open_monitor
from pipeline.monitor.all_servers import SampleSender, aggregate
from pipeline.monitor.live import LiveVerdict
from pipeline.monitor.open_metrics import METRICS, OpenMetricsSink
from pipeline.monitor.overview import OVERVIEW, OverviewSink
from pipeline.monitor.verdict import Verdict
from pipeline.rendezvous import Cluster
from pipeline.runs.files import VERDICT
from pipeline.runs.run import Run, save_result
from pipeline.training.advise import measure_prepared_at_start
from pipeline.training.advisor import Advisor
from pipeline.training.assembly import Training
from pipeline.training.fit import fit
from pipeline.training.log.experiment import comet_options
from pipeline.training.log.tensorboard import open_tensorboard
from pipeline.training.stages import measure_at_start
from pipeline.training.step.strategy import lost_servers_named
from pipeline.training.stop import Stage


def run_job(
    run: Run,
    should_stop: Callable[[], bool],
    cluster: Cluster | None = None,
    heartbeat: Callable[[], None] = lambda: None,
    enter: Callable[[Stage], None] = lambda stage: None,
) -> None:
    """Train what `run` describes, together with the other servers. Server 0 writes the result.

    `should_stop` is called between steps. `heartbeat` is called with each step, also of the validation and of the
    evaluation. `enter` is called when it changes what a stop would lose.

    Raises:
        Preempted: If a stop was requested. A checkpoint is written before.
        TrainingError: If the loss is not a finite number.
        ServerLost: If another server is gone.
        OutOfMemory: If the next attempt takes fewer examples at once.
    """
    # Before the monitor: Comet's thread draws from Python's random numbers, from which Keras takes the first weights.
    training = Training(run, should_stop, cluster, heartbeat, enter)
    advisor = Advisor(run, training.dataset)
    if run.settings.advice != "off":
        # Before the monitor, too, whose threads would count as costs of the input.
        measured = run, training.dataset_folder, training.dataset
        measure_at_start(*measured, go_on=lambda: not training.should_stop_at_step())
        if run.settings.advice == "apply":
            measure_prepared_at_start(*measured, go_on=lambda: not training.should_stop_at_step())

    with ExitStack() as stack:
        sinks: list[Sink] = [
            stack.enter_context(closing_sink(OverviewSink(run.folder / OVERVIEW))),
            stack.enter_context(closing_sink(OpenMetricsSink(run.folder / METRICS, labels_of(run)))),
        ]
        if run.settings.tensorboard and run.server.is_chief:
            tensorboard = open_tensorboard(run.folder, training.start.epochs_done)
            sinks.append(stack.enter_context(closing_sink(tensorboard)))
        monitor = stack.enter_context(_monitored(training, cluster, sinks, advisor.format_verdict))
        with lost_servers_named(cluster):
            fit(training, monitor, advisor.best_changes)
    if run.server.is_chief:
        advisor.save_promises()
        save_result(run, monitor.comet_location or "", advisor.format_whole)


def labels_of(run: Run) -> dict[str, str]:
    """Return what a metric of a training says of its run."""
    settings = run.settings
    names = {"dag": run.dag, "run": run.run_id, "dataset": settings.dataset_name, "model": settings.model}
    # All trainings of the command line have the same run id.
    return {**names, "training": run.training.name, "server": str(run.index)}


def _monitored(
    training: Training, cluster: Cluster | None, sinks: Sequence[Sink], format_verdict: Callable[[Verdict], str]
) -> AbstractContextManager[Monitor]:
    """Open the monitor: each server records its own machine, and server 0 reports to the trackers for all."""
    run = training.run
    comet = comet_options(run) if run.server.is_chief else None
    live = LiveVerdict(format_verdict, run.folder / VERDICT, lambda: training.activity.text)
    if cluster is None:
        return open_monitor(run.folder, comet=comet, sinks=[live, *sinks])
    of_all = {"servers": lambda: aggregate(cluster.samples)} if run.server.is_chief else {}
    sinks = [live, *sinks, SampleSender(cluster.report_sample)]
    return open_monitor(run.folder, comet=comet, sinks=sinks, sources=of_all)
