"""The figures of a training, each with a sentence that says in numbers what it shows."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas
from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d

from pipeline.evaluation.answers import Metric
from pipeline.evaluation.best_epoch import best_epoch, epoch_metric
from pipeline.monitor.diagnosis import Table, is_steady, percent, three_digits
from pipeline.report.drawing import (
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILION,
    Figure,
    add_legend,
    histogram,
    new_plot,
)

MAX_EPOCHS = 500
"""Maximum number of bars. No screen shows more."""
SIMULATED = "The steps were simulated and computed nothing, so there is nothing to show."
"""What a page says in place of learning curves."""
_SPENT = {
    "waiting for data": (VERMILION, "/"),
    "computing": (BLUE, " "),
    "host": (ORANGE, "x"),
    "checkpoints": (GREEN, "."),
    "validation": (PURPLE, "\\"),
    "callbacks": (GRAY, "-"),
}
"""Color and hatch of each part of the time."""


class Line(NamedTuple):
    """A column of the epochs as a line."""

    label: str
    epochs: pandas.DataFrame
    column: str
    color: str
    dash: str
    marker: str


def learning(epochs: pandas.DataFrame) -> Figure:
    """Draw loss and accuracy (or mean absolute error) of training and validation by epoch."""
    metric = epoch_metric(epochs)
    if not len(epochs):
        return learning_figure("No epoch was completed, so there is nothing to show yet.", metric)
    if "loss" not in epochs:
        return learning_figure(SIMULATED, metric)
    return learning_figure(learning_sentence(epochs), metric, partial(learning_lines, epochs))


def learning_lines(epochs: pandas.DataFrame, column: str) -> list[Line]:
    """Return the lines of the loss or metric of one training: of its training and of its validation."""
    return [
        Line("training", epochs, column, BLUE, "solid", "circle"),
        Line("validation", epochs, f"val_{column}", VERMILION, "6 3", "diamond"),
    ]


def learning_figure(sentence: str, metric: Metric, lines_of: Callable[[str], Sequence[Line]] | None = None) -> Figure:
    """Draw the lines of the loss and of the metric by epoch. Both plots are moved and zoomed together.

    `lines_of` returns the lines of a column. Without it, there are no plots.
    """
    plots: tuple[Any, ...] = ()
    if lines_of:
        plots = _by_epoch("Loss", lines_of("loss")), _by_epoch(metric.title.capitalize(), lines_of(metric.key))
        if metric.scale == "share":
            plots[1].yaxis.formatter = NumeralTickFormatter(format="0%")
        plots[1].x_range = plots[0].x_range
    return Figure("learning", f"Loss and {metric.title}", sentence, plots)


def _by_epoch(quantity: str, lines: Sequence[Line]) -> Any:
    plot = new_plot(quantity, "epoch", height=280)
    plot.xaxis.ticker.min_interval = 1
    plot.y_range.default_span = 0.2  # If all values are 100%, the axis must not go from 0% to 200%.
    shown = []
    for label, epochs, column, color, dash, marker in lines:
        if column in epochs:
            source = ColumnDataSource({"x": epochs["step"].to_numpy(), "y": epochs[column].to_numpy()}, name=column)
            line = plot.line("x", "y", source=source, color=color, line_width=2.2, line_dash=dash)
            dots = plot.scatter("x", "y", source=source, color=color, size=7, marker=marker, name=label)
            shown.append((label, [line, dots]))
    add_legend(plot, shown)
    tooltips = [("of", "$name"), ("epoch", "@x"), (quantity.lower(), "@y{0.0000}")]
    plot.add_tools(HoverTool(renderers=[renderers[1] for _, renderers in shown], tooltips=tooltips))
    return plot


def learning_sentence(epochs: pandas.DataFrame) -> str:
    """Say how far the loss fell, and when the validation was best. There is at least one epoch."""
    loss, best = epochs["loss"].to_numpy(), best_epoch(epochs)
    first, last = map(three_digits, (loss[0], loss[-1]))
    if len(epochs) == 1:
        validation = f" and validation {best.metric.title} {best.text}" if best else ""
        return f"After one epoch, training loss is {last}{validation}."
    validation = f"; validation {best.metric.title} was best in epoch {best.epoch} with {best.text}" if best else ""
    return f"Training loss went from {first} to {last} in {len(epochs):,} epochs{validation}."


def times(batches: Table, epochs: pandas.DataFrame) -> Figure:
    """Draw the distributions of the time of a steady step, of its data wait, and of the time of an epoch."""
    name, title = "times", "How long a batch and an epoch take"
    (of_batches, batch_plots), (of_epochs, epoch_plots) = _batch_times(batches), _epoch_times(epochs)
    plots = (*batch_plots, *epoch_plots)
    note = " A dashed line is the median. The last bar contains the slowest half percent." if plots else ""
    return Figure(name, title, f"{of_batches} {of_epochs}{note}", plots)


def _batch_times(batches: Table) -> tuple[str, list[Any]]:
    steady = is_steady(batches)
    if steady.sum() < 2:
        return "Fewer than two steady steps were recorded, so there is no distribution to show.", []
    total, wait = (np.asarray(batches[name], dtype=float)[steady] for name in ("step/time_ms", "input/wait_ms"))
    median, p95 = np.percentile(total, (50, 95))
    share = percent(wait.sum() / total.sum()) if total.sum() else "0%"
    sentence = (
        f"Of the {len(total):,} steady steps, half took less than {three_digits(median)} ms, 95% took less than "
        f"{three_digits(p95)} ms, and the slowest took {three_digits(total.max())} ms. {share} of their time was "
        f"waiting for data (median {three_digits(np.median(wait))} ms)."
    )
    return sentence, [
        histogram(total, "Time of a step", "ms", "steps", BLUE),
        histogram(wait, "Data wait of a step", "ms", "steps", VERMILION),
    ]


def _epoch_times(epochs: pandas.DataFrame) -> tuple[str, list[Any]]:
    named = (("Time of an epoch", "epoch/time_s", GREEN), ("Validation after it", "epoch/validation_s", PURPLE))
    known = [(title, epochs[name].dropna().to_numpy(), color) for title, name, color in named if name in epochs]
    drawn = [(title, values, color) for title, values, color in known if len(values) > 1]
    if not drawn:
        return "Fewer than two epochs were completed.", []
    _, values, _ = drawn[0]
    low, middle, high = map(three_digits, (values.min(), np.median(values), values.max()))
    sentence = (
        f"An epoch took from {low} to {high} s (median {middle} s)." if low != high else f"Each epoch took {low} s."
    )
    return sentence, [histogram(values, title, "s", "epochs", color) for title, values, color in drawn]


def shares_of_a_second(whole: Mapping[str, Mapping[str, float]]) -> Any:
    """Draw a bar for each name: the milliseconds that each part takes of a second.

    `whole` has the seconds of each part, by name.
    """
    names = list(whole)[::-1]  # Bokeh draws from below.
    shares = {part: [1000 * whole[name].get(part, 0) / sum(whole[name].values()) for name in names] for part in _SPENT}
    present = [part for part in _SPENT if any(shares[part])]
    plot = new_plot("Of a second", "ms", height=120 + 34 * len(names), along="width")
    plot.x_range, plot.y_range = Range1d(0, 1000), Range1d(0, len(names))
    middles = [number + 0.5 for number in range(len(names))]
    bars = plot.hbar_stack(present, y="y", height=0.7, source={"y": middles, **shares}, **looks_of_parts(present))
    plot.yaxis.ticker = middles
    plot.yaxis.major_label_overrides = {middle: name or " " for middle, name in zip(middles, names, strict=True)}
    plot.ygrid.visible = False
    add_legend(plot, [(part, [bar]) for part, bar in zip(present, bars, strict=True)])
    _add_tooltips(plot, present, bars, "{0} ms")
    return plot


def epoch_bars(seconds: pandas.DataFrame) -> Any:
    """Draw a bar for each epoch: the seconds of each part of its time. The index of `seconds` is the epoch."""
    present = [part for part in _SPENT if part in seconds and seconds[part].sum() > 0]
    plot = new_plot("Of each epoch", "epoch", height=260, along="width")
    columns = {"epoch": seconds.index.to_numpy(), **{part: seconds[part].to_numpy() for part in present}}
    source = ColumnDataSource(columns, name="spent")
    bars = plot.vbar_stack(present, x="epoch", width=0.8, source=source, **looks_of_parts(present))
    plot.xaxis.ticker.min_interval = 1
    plot.y_range.start = 0
    plot.yaxis.axis_label = "s"
    _add_tooltips(plot, present, bars, "{0.00} s")
    return plot


def look_of_part(part: str) -> tuple[str, str]:
    """Return color and hatch of a part of the time."""
    return _SPENT[part]


def looks_of_parts(present: Sequence[str]) -> dict[str, Any]:
    """Return colors and hatches of the bars of some parts of the time, which are stacked."""
    colors, hatches = zip(*(_SPENT[part] for part in present), strict=True)
    look = {"color": colors, "hatch_pattern": hatches, "name": list(present)}
    return {**look, "hatch_color": "white", "hatch_alpha": 0.45, "hatch_scale": 8, "line_color": None}


def _add_tooltips(plot: Any, present: Sequence[str], bars: Sequence[Any], unit: str) -> None:
    for part, bar in zip(present, bars, strict=True):
        plot.add_tools(HoverTool(renderers=[bar], tooltips=[(part, f"@{{{part}}}{unit}")]))


def spent_sentence(whole: Mapping[str, float], epochs: int = 0) -> str:
    """Say how a second of the training was spent, from the seconds of each part of the training.

    `epochs` is the number of epochs for a page that draws a bar for each of them.
    """
    together = sum(whole.values())
    shares = [(part, 1000 * whole[part] / together) for part in _SPENT if whole.get(part)]
    parts = ", ".join(f"{share:.0f} ms {part}" if share >= 1 else f"under 1 ms {part}" for part, share in shares)
    left_out = f". The plot shows the last {MAX_EPOCHS} of {epochs:,} epochs" if epochs > MAX_EPOCHS else ""
    return (
        f"An average second of the training consists of {parts} ({three_digits(together)} s in total, all steps "
        f"included){left_out}."
    )
