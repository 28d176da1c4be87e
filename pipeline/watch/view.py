"""All that is drawn of a training, as columns of numbers by the name of their source in the figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from pipeline.config.settings import MAX_TRAINED_EPOCHS
from pipeline.evaluation.best_epoch import EPOCH_METRICS
from pipeline.monitor.aggregation import HIGHEST
from pipeline.monitor.diagnosis import PARTS, seconds_by_epoch
from pipeline.monitor.gpu_columns import busy_pct, gpus, with_gpus_together
from pipeline.monitor.overview import OVERVIEW
from pipeline.monitor.record import first_time, record_folders, segments
from pipeline.report.figures import MAX_EPOCHS
from pipeline.report.input_stages import InputStages, input_stages
from pipeline.report.series import Array
from pipeline.report.utilization import MAX_BOUNDARIES, MAX_LINES, PANELS, Curve, Panel, telling
from pipeline.watch.tables import Intervals, Span, epochs, gaps, intervals, step_intervals, steps_before

Columns = dict[str, list[float | None]]


class Drawable(NamedTuple):
    """What there is to draw of a training. Trainings with the same value have the same figures."""

    steps: bool
    """Whether a step was taken."""
    panels: tuple[tuple[str, tuple[str, ...]], ...]
    """The panels of the machine: title, and the columns of its curves."""
    learning: tuple[str, ...]
    """The columns of the epochs."""
    spent: tuple[str, ...]
    """The parts of the time of an epoch."""
    servers: tuple[int, ...]
    """The indices of the training servers; empty if there is only one."""
    sampled: tuple[int, ...]
    """The indices of the training servers that have samples. The first one of another server comes later."""
    stages: bool
    """Whether the stages of the input were measured."""
    gpus: tuple[tuple[int, str], ...]
    """Server and number of each GPU; of the idlest ones if there are many, and empty if there is only one."""
    num_gpus: int
    """Number of the GPUs of all training servers."""


LEARNING = ("loss", "val_loss", *(key for each in EPOCH_METRICS for key in (each.key, each.validation_key)))


@dataclass(frozen=True)
class View:
    """The tables of a training."""

    start: float
    """The time of the first sample (Unix s), from which all curves are drawn."""
    steps_per_epoch: int
    """0 if it is not known."""
    samples: Intervals
    """The samples of server 0."""
    batches: Intervals
    """The batches of server 0."""
    steps: pandas.DataFrame
    """The means of the intervals of batches, as narrow as they are stored."""
    steps_before: int
    """The number of steps before the first one. A training that continues another one counts on from there."""
    epochs: pandas.DataFrame
    servers: Mapping[int, Intervals]
    """The samples of each training server, by its index."""
    stages: InputStages | None
    """What the stages of the input cost, if that was measured."""

    @property
    def settled(self) -> float:
        """The time until which all curves stay as they are (Unix s)."""
        return min(self.batches.settled, *(samples.settled for samples in self.servers.values()))

    @cached_property
    def panels(self) -> list[tuple[Panel, list[Curve]]]:
        """The panels of the machine that have something to show, with their curves."""
        return [(panel, curves) for panel in PANELS if (curves := telling(panel, self.samples.means))]

    @cached_property
    def spent(self) -> pandas.DataFrame:
        """The `seconds_by_epoch` of the training.

        The mean of an interval counts for each of its steps, some of which may belong to the next epoch.
        """
        if not self.steps_per_epoch:
            return pandas.DataFrame()
        pieces = _by_epoch(self.steps["step"].to_numpy(), self.steps_per_epoch, self.steps_before)
        names = [f"{part}_ms" for part in PARTS.values() if f"{part}_ms" in self.steps]
        means = self.steps[names].iloc[pieces["interval"].to_numpy()]
        times = {str(name): mean.to_numpy() * pieces["steps"].to_numpy() for name, mean in means.items()}
        return seconds_by_epoch({**times, "epoch": pieces["epoch"]}, self.epochs)


def start_of(training: Path) -> float:
    """Return the time of the first sample of all servers (Unix s); 0 if there is none yet."""
    times = [
        begin
        for folder in record_folders(training).values()
        for path in (segments(folder.parent / OVERVIEW, "samples") or segments(folder, "samples"))[:1]
        if (begin := first_time(path)) is not None
    ]
    return min(times, default=0.0)


def load_view(training: Path, steps_per_epoch: int, span: Span | None = None) -> View:
    """Read what is drawn of a training, within `span` in full resolution."""
    servers = {
        index: _together(intervals(folder.parent, "samples", span))
        for index, folder in record_folders(training).items()
    }
    before = steps_before(training, steps_per_epoch)
    return View(
        start=start_of(training),
        steps_per_epoch=steps_per_epoch,
        samples=servers[0],
        batches=intervals(training, "batches", span, before),
        steps=step_intervals(training),
        steps_before=before,
        epochs=epochs(training),
        servers=servers,
        stages=input_stages(training),
    )


def _together(samples: Intervals) -> Intervals:
    means, highest, settled = samples
    return Intervals(with_gpus_together(means), with_gpus_together(highest), settled)


def source_of_server(index: int) -> str:
    """Return the name of the source that says how busy a training server and its GPUs were."""
    return f"server {index}"


def columns(view: View, drawn: Drawable) -> dict[str, Columns]:
    """Return the rows over time of what is drawn, by the names of their sources. Times are in ms since the start."""
    per_units = {curve.column: panel.per_unit for panel, curves in view.panels for curve in curves}
    servers = {index: view.servers[index] for index in {*drawn.servers, *(server for server, _ in drawn.gpus)}}
    busy = {source_of_server(index): _busy(view, samples, index, drawn) for index, samples in servers.items()}
    return {"samples": _curves(view, view.samples, per_units), "batches": _batches(view), **busy}


def columns_of_epochs(view: View) -> dict[str, Columns]:
    """Return the other rows, by the names of their sources. A retry may change any of them."""
    numbers = view.epochs["step"].to_numpy(dtype=float)
    times = _listed(np.round(1000 * (view.epochs["time"].to_numpy() - view.start)), digits=12)
    of_epochs = {"time": times, "step": _listed(numbers * (view.steps_per_epoch or np.nan), digits=12)}
    is_marked = len(numbers) <= MAX_BOUNDARIES
    learned = {name: _listed(view.epochs[name].to_numpy(dtype=float)) for name in LEARNING if name in view.epochs}
    ends: Columns = of_epochs if is_marked else {"time": [], "step": []}
    sources: dict[str, Columns] = {"epochs": {**of_epochs, **learned}, "ends": ends}
    if view.steps_per_epoch:
        seconds = view.spent.tail(MAX_EPOCHS)  # One row for each of the newest epochs.
        parts = {str(name): _listed(values.to_numpy(dtype=float)) for name, values in seconds.items()}
        sources["spent"] = {"epoch": _listed(seconds.index.to_numpy(dtype=float)), **parts}
    return sources


def _curves(view: View, rows: Intervals, per_units: Mapping[str, float], has_highest: bool = True) -> Columns:
    """Return time, step, mean and highest value of each metric. A row without values is a gap in the measurements."""
    times = rows.means["time"].to_numpy()
    breaks = [row + 1 for row in gaps(times)]
    steps = rows.means["step"].to_numpy(dtype=float)
    curves = {
        "time": _listed(np.insert(np.round(1000 * (times - view.start)), breaks, np.nan), digits=12),
        "step": _listed(np.insert(steps, breaks, np.nan), digits=12),
    }
    tables = (("", rows.means), (HIGHEST, rows.highest)) if has_highest else (("", rows.means),)
    for name, per_unit in per_units.items():
        for ending, table in tables:
            curves[name + ending] = _listed(np.insert(table[name].to_numpy(dtype=float) / per_unit, breaks, np.nan))
    return curves


def _batches(view: View) -> Columns:
    if "step/time_ms" not in view.batches.means:
        return {name: [] for name in ("time", "step", "wait", "rate", "step/time_ms", f"step/time_ms{HIGHEST}")}
    whole = view.batches.means["step/time_ms"]
    # The share of the mean times, and not the mean of the shares: a long step counts by its time.
    means = view.batches.means.assign(
        wait=100 * view.batches.means["input/wait_ms"] / whole, rate=1000 * view.batches.means["input/examples"] / whole
    )
    highest = view.batches.highest.assign(wait=means["wait"], rate=means["rate"])
    # The first step traces and compiles for seconds. On an axis as high as that, no other step would be visible.
    highest.loc[highest.index[:1], "step/time_ms"] = whole.iloc[:1]
    return _curves(view, Intervals(means, highest), {"wait": 1.0, "rate": 1.0, "step/time_ms": 1.0})


def _busy(view: View, samples: Intervals, index: int, drawn: Drawable) -> Columns:
    if not _is_sampled(samples):
        return {"time": [], "step": []}
    names = [f"gpu/{gpu}/util_pct" for server, gpu in drawn.gpus if server == index]
    means = samples.means.assign(busy=busy_pct(samples.means))
    recorded = [name for name in ("busy", *names) if name in means]
    return _curves(view, Intervals(means, samples.highest), dict.fromkeys(recorded, 1.0), has_highest=False)


def _is_sampled(samples: Intervals) -> bool:
    return "sys/cpu_pct" in samples.means


def _by_epoch(last_steps: Array, steps_per_epoch: int, before: int) -> pandas.DataFrame:
    """Cut intervals at the ends of the epochs. Return the steps, interval and epoch of each piece.

    The first interval begins after `before` steps, at the end of an epoch.
    """
    last_steps = np.maximum.accumulate(last_steps)  # A retry goes back, until the overview has been updated.
    # Others may write the files of a training. No number in them may take all of the memory.
    last_steps = np.minimum(last_steps, steps_per_epoch * MAX_TRAINED_EPOCHS)
    ends = np.arange(before + steps_per_epoch, last_steps[-1] if len(last_steps) else 0, steps_per_epoch)
    lasts = np.union1d(last_steps[last_steps > before], ends).astype(int)
    return pandas.DataFrame(
        {
            "steps": np.diff(lasts, prepend=before),
            "interval": np.searchsorted(last_steps, lasts),
            "epoch": (lasts - 1) // steps_per_epoch + 1,
        }
    )


def _listed(values: Array, digits: int = 5) -> list[float | None]:
    """Return numbers for JSON, with more digits than a screen can show; None for an unknown number."""
    known = np.isfinite(values) & (values != 0)
    places = digits - 1 - np.floor(np.log10(np.abs(values, where=known, out=np.ones_like(values))))
    rounded = np.round(values * 10**places) / 10**places
    return [value if value == value else None for value in rounded.tolist()]


def drawable(view: View) -> Drawable:
    """Return what there is to draw of a training now."""
    by_idleness = _gpus_by_idleness(view)
    return Drawable(
        steps=len(view.batches.means) > 0,
        panels=tuple((panel.title, tuple(curve.column for curve in curves)) for panel, curves in view.panels),
        learning=tuple(name for name in LEARNING if name in view.epochs),
        spent=tuple(str(name) for name, seconds in view.spent.items() if seconds.sum() > 0),
        servers=tuple(view.servers) if len(view.servers) > 1 else (),
        sampled=tuple(index for index, samples in view.servers.items() if _is_sampled(samples)),
        stages=view.stages is not None,
        gpus=tuple(sorted(by_idleness[:MAX_LINES])) if len(by_idleness) > 1 else (),
        num_gpus=len(by_idleness),
    )


def _gpus_by_idleness(view: View) -> list[tuple[int, str]]:
    """Return server and number of each GPU, the idlest one first."""
    busy = {
        (index, str(gpu)): float(mean)
        for index, samples in view.servers.items()
        for gpu, mean in gpus(samples.means, "util_pct").mean().dropna().items()
    }
    return sorted(busy, key=lambda gpu: busy[gpu])
