"""The figure of a whole training over time: where the time went, the steps, GPU and cores, with one pointer."""

from typing import Any

import numpy as np
import pandas
from bokeh.models import ColumnDataSource, HoverTool, Range1d

from pipeline.monitor.diagnosis import BETWEEN_EPOCHS, PARTS, Table, seconds_by_part
from pipeline.monitor.thinned import Samples
from pipeline.report import series
from pipeline.report.drawing import BLUE, VERMILION, Figure, add_legend
from pipeline.report.figures import looks_of_parts, spent_sentence
from pipeline.report.series import Array
from pipeline.report.utilization import TimeAxis, can_draw, load_panel, utilization

BINS = 200
"""Number of equal parts of the time axis. A bar in each of them shows where its time went."""
MAX_POINTS = 400
"""Maximum number of points of a curve of steps, each of which stands for equally many steps."""


def timeline(batches: Table, epochs: pandas.DataFrame, samples: Samples) -> tuple[Figure, Figure]:
    """Draw a training server over time, in two figures with one axis: the summary, and all samples of the machine.

    The first one shows where the time went, how long the steps took, and how busy GPUs and cores were.
    """
    name, title = "timeline", "Where the time went"
    whole = seconds_by_part(batches, epochs) if "epoch" in batches else {}
    if not sum(whole.values()):
        nothing = Figure(name, title, "No step was recorded, so there is nothing to show.")
        return nothing, utilization(samples, epochs)
    ends = np.maximum.accumulate(np.asarray(batches["time"], dtype=float))
    durations = np.asarray(batches["step/time_ms"], dtype=float) / 1000
    begins = np.maximum(ends - durations, np.concatenate([[-np.inf], ends[:-1]]))
    time = _axis(begins, ends, epochs, samples)
    panels = [_shares_panel(batches, epochs, begins, ends, time), _steps_panel(batches, ends, time)]
    if can_draw(samples):
        panels.append(load_panel(samples, time))
    dotted = " Dotted lines are the ends of epochs." if time.shown_ends else ""
    summary = Figure(name, title, spent_sentence(whole) + dotted, time.finish(panels), is_stacked=True)
    return summary, utilization(samples, epochs, time)


def _axis(begins: Array, ends: Array, epochs: pandas.DataFrame, samples: Samples) -> TimeAxis:
    """Return the axis from the first sample or step to the last sample, step or epoch."""
    sampled = samples.extremes["time"].to_numpy(dtype=float) if can_draw(samples) else np.empty(0)
    over = epochs["time"].to_numpy(dtype=float)
    times = np.concatenate([begins[:1], ends[-1:], sampled[:1], sampled[-1:], over[-1:]])
    return TimeAxis(float(times.min()), float(np.ptp(times)), epochs)


def _shares_panel(batches: Table, epochs: pandas.DataFrame, begins: Array, ends: Array, time: TimeAxis) -> Any:
    """Draw the share of each part in the time, as bars on top of each other. The rest is time before and between."""
    edges = np.linspace(time.start, time.start + time.span, BINS + 1)
    shares = shares_of_bins(batches, epochs, begins, ends, edges)
    plot = time.panel("Parts of the time (%)", None, height=210)
    plot.y_range = Range1d(0, 100)
    middles = (edges[:-1] + edges[1:]) / 2
    source = ColumnDataSource({"x": time.units(middles), **shares})
    width = time.span / BINS / time.per_unit
    bars = plot.vbar_stack(list(shares), x="x", width=width, source=source, **looks_of_parts(list(shares)))
    add_legend(plot, [(part, [bar]) for part, bar in zip(shares, bars, strict=True)])
    tooltips = [(part, f"@{{{part}}}{{0.0}}%") for part in shares]
    # One tooltip with all parts, wherever the pointer is above the time.
    plot.add_tools(HoverTool(renderers=bars[:1], tooltips=tooltips, mode="vline", point_policy="follow_mouse"))
    return plot


def shares_of_bins(
    batches: Table, epochs: pandas.DataFrame, begins: Array, ends: Array, edges: Array
) -> dict[str, Array]:
    """Return the percentage of the time between neighboring edges that each part of the training takes.

    `begins` and `ends` are those of the steps. A part that takes no time is left out. The times within a step are
    spread over the step, because the record has only their sums.
    """
    spans: dict[str, tuple[Array, Array, Array]] = {}
    for part, column in PARTS.items():
        if f"{column}_ms" in batches:
            spans[part] = begins, ends, np.asarray(batches[f"{column}_ms"], dtype=float) / 1000
    over = epochs["time"].to_numpy(dtype=float)
    # The callbacks follow the validation, and then the row is written.
    for part, column in reversed(BETWEEN_EPOCHS.items()):
        seconds = np.nan_to_num(epochs[column].to_numpy(dtype=float)) if column in epochs else np.zeros(len(over))
        spans[part] = over - seconds, over, seconds
        over = over - seconds
    order = [*PARTS, *BETWEEN_EPOCHS]
    shares = {part: 100 * _seconds_in(edges, *spans[part]) / np.diff(edges) for part in order if part in spans}
    return {part: share for part, share in shares.items() if share.any()}


def _seconds_in(edges: Array, begins: Array, ends: Array, seconds: Array) -> Array:
    """Return the sum of `seconds` between neighboring edges, each spread evenly from its begin to its end."""
    if not len(ends):
        return np.zeros(len(edges) - 1)
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(seconds))])
    # The sum grows within each span, and is constant between two of them.
    times = np.stack([begins, ends], axis=1).ravel()
    reached = np.stack([sums[:-1], sums[1:]], axis=1).ravel()
    between: Array = np.diff(np.interp(edges, times, reached))
    return between


def _steps_panel(batches: Table, ends: Array, time: TimeAxis) -> Any:
    """Draw the mean time of the steps, the longest ones behind it, and the mean wait for data."""
    # The first step of a process traces and compiles for seconds. On an axis that is as high, no other is visible.
    kept = np.asarray(batches["first"]) == 0 if "first" in batches else np.ones(len(ends), bool)
    took, waited = (np.asarray(batches[name], dtype=float)[kept] for name in ("step/time_ms", "input/wait_ms"))
    plot = time.panel("Time of a step (ms)", None, height=170)
    if not len(took):
        return plot
    cuts = np.unique(np.linspace(0, len(took), min(MAX_POINTS, len(took)) + 1).astype(int))
    counts, times = np.diff(cuts), ends[kept][cuts[1:] - 1]
    means = {
        "whole step": np.add.reduceat(took, cuts[:-1]) / counts,
        "waiting for data": np.add.reduceat(waited, cuts[:-1]) / counts,
    }
    _curve(plot, time, times, np.maximum.reduceat(took, cuts[:-1]), color=BLUE, line_alpha=0.28)
    items = []
    for (label, values), (color, dash) in zip(means.items(), ((BLUE, "solid"), (VERMILION, "6 3")), strict=True):
        line = _curve(plot, time, times, values, color=color, line_width=2, line_dash=dash, name=label)
        items.append((label, [line]))
    add_legend(plot, items)
    tooltips = [("$name", "@y{0,0.0} ms")]
    lines = [line for _, [line] in items]
    plot.add_tools(HoverTool(renderers=lines, tooltips=tooltips, mode="vline"))
    return plot


def _curve(plot: Any, time: TimeAxis, times: Array, values: Array, **look: Any) -> Any:
    """Draw a curve that is broken where no step was taken, for example between two attempts."""
    period = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    x, y = series.joined(list(series.pieces(times, values, gap=max(5.0, 10 * period))))
    return plot.line("x", "y", source=ColumnDataSource({"x": time.units(x), "y": y}), **look)
