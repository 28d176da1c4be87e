"""The figures, each with one sentence that says in numbers what it shows.

Drawn by Bokeh on no background in greys that read on white and on black; colours are those of Okabe and Ito, which
the colour-blind tell apart, and lines that share a figure also differ in dash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, HoverTool, Legend, NumeralTickFormatter, Range1d, Span
from bokeh.plotting import figure

from pipeline.monitor.diagnosis import parts, percent
from pipeline.report import series

BLUE, VERMILLION, GREEN, PURPLE, ORANGE = "#2b8cc4", "#d55e00", "#009e73", "#b0719a", "#cf8f00"
GREY = "#7d848c"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
MOST_POINTS = 1500  # a curve; no screen shows more
MOST_BOUNDARIES = 60


@dataclass(frozen=True)
class Figure:
    """``items`` are what Bokeh embeds, side by side; empty where there is nothing to draw and ``sentence`` says why."""

    name: str
    title: str
    sentence: str
    items: tuple[Any, ...] = ()


def learning(epochs: pandas.DataFrame) -> Figure:
    """Loss and accuracy of training and validation by epoch."""
    name, title = "learning", "Loss and accuracy"
    if not len(epochs) or "loss" not in epochs:
        return Figure(name, title, "No epoch was finished, so there is nothing to show yet.")
    plots = [_by_epoch(epochs, "loss", "Loss"), _by_epoch(epochs, "accuracy", "Accuracy")]
    plots[1].yaxis.formatter = NumeralTickFormatter(format="0%")
    return _drawn(name, title, _learning_sentence(epochs), *plots)


def _by_epoch(epochs: pandas.DataFrame, metric: str, label: str) -> Any:
    plot = _plot(label, "epoch", height=280)
    plot.xaxis.ticker.min_interval = 1
    lines = (
        ("training", metric, BLUE, "solid", "circle"),
        ("validation", f"val_{metric}", VERMILLION, "6 3", "diamond"),
    )
    shown = []
    for words, column_name, colour, dash, marker in lines:
        if column_name in epochs:
            source = ColumnDataSource({"x": epochs["step"].to_numpy(), "y": epochs[column_name].to_numpy()})
            line = plot.line("x", "y", source=source, color=colour, line_width=2.2, line_dash=dash)
            dots = plot.scatter("x", "y", source=source, color=colour, size=7, marker=marker)
            shown.append((words, [line, dots]))
    _legend(plot, shown)
    hovered = [renderers[1] for _, renderers in shown]
    plot.add_tools(HoverTool(renderers=hovered, tooltips=[("epoch", "@x"), (label.lower(), "@y{0.0000}")]))
    return plot


def _learning_sentence(epochs: pandas.DataFrame) -> str:
    loss = epochs["loss"].to_numpy()
    words = f"Training loss went from {loss[0]:.3g} to {loss[-1]:.3g} in {_count(len(epochs), 'epoch')}"
    if "val_accuracy" not in epochs or not epochs["val_accuracy"].notna().any():
        return words + "."
    accuracy = epochs["val_accuracy"].to_numpy(dtype=float)
    best = int(np.nanargmax(accuracy))
    epoch = int(epochs["step"].to_numpy()[best])
    return f"{words}; validation accuracy was best in epoch {epoch} with {accuracy[best]:.1%}."


def utilization(samples: pandas.DataFrame, epochs: pandas.DataFrame) -> Figure:
    """Processor, memory and GPU over time, raw behind smoothed, with the ends of the epochs."""
    name, title = "utilization", "Utilization over time"
    if len(samples) < 2 or "sys/cpu_pct" not in samples:
        return Figure(name, title, "No samples were recorded, so there is nothing to show.")
    seconds = (samples["time"] - samples["time"].iloc[0]).to_numpy()
    unit, per_unit = _time_unit(seconds[-1])
    axis = Range1d(0, seconds[-1] / per_unit)
    ends = ((epochs["time"] - samples["time"].iloc[0]) / per_unit).tolist()
    panels = [_panel(words, curves, seconds, per_unit, axis, ends) for words, curves in _panels(samples)]
    for panel in panels[:-1]:
        panel.xaxis.major_label_text_font_size = "0px"  # one axis of time serves them all
    panels[-1].xaxis.axis_label = f"time from the first sample ({unit})"
    stacked = column(panels, sizing_mode="stretch_width")
    return _drawn(name, title, _utilization_sentence(samples, len(ends)), stacked)


def _panels(samples: pandas.DataFrame) -> list[tuple[str, list[tuple[str, pandas.Series[float], str, str]]]]:
    """(title, curves as (words, percent, colour, dash)) of each panel."""
    processor = [("all cores", samples["sys/cpu_pct"], BLUE, "solid")]
    if "sys/cpu_max_core_pct" in samples:
        processor.insert(0, ("busiest core", samples["sys/cpu_max_core_pct"], PURPLE, "2 2"))
    panels = [("Processor (%)", processor)]
    if gpus := _gpus(samples):
        several = f", mean of {len(gpus)}" if len(gpus) > 1 else ""
        curves = [(f"busy{several}", _gpu_busy(samples, gpus), VERMILLION, "solid")]
        if (memory := _gpu_memory(samples, gpus)) is not None:
            curves.append((f"memory{several}", memory, ORANGE, "6 3"))
        panels.append(("GPU (%)", curves))
    if "sys/mem_pct" in samples:
        panels.append(("Memory (%)", [("host memory", samples["sys/mem_pct"], GREEN, "solid")]))
    return panels


def _gpus(samples: pandas.DataFrame) -> list[str]:
    return [str(name)[: -len("/util_pct")] for name in samples.columns if str(name).endswith("/util_pct")]


def _gpu_busy(samples: pandas.DataFrame, gpus: Sequence[str]) -> pandas.Series[float]:
    return samples[[f"{gpu}/util_pct" for gpu in gpus]].mean(axis=1)


def _gpu_memory(samples: pandas.DataFrame, gpus: Sequence[str]) -> pandas.Series[float] | None:
    shown = [gpu for gpu in gpus if f"{gpu}/mem_total_bytes" in samples]
    shares = [100 * samples[f"{gpu}/mem_used_bytes"] / samples[f"{gpu}/mem_total_bytes"] for gpu in shown]
    return pandas.concat(shares, axis=1).mean(axis=1) if shares else None


def _panel(
    title: str,
    curves: Sequence[tuple[str, Any, str, str]],
    seconds: series.Array,
    per_unit: float,
    axis: Range1d,
    ends: Sequence[float],
) -> Any:
    plot = _plot(title, "", height=200 if len(curves) > 1 else 170)
    plot.x_range, plot.y_range = axis, Range1d(0, 103)
    plot.yaxis.ticker = [0, 25, 50, 75, 100]
    for end in ends if len(ends) <= MOST_BOUNDARIES else []:
        plot.add_layout(Span(location=end, dimension="height", line_color=GREY, line_alpha=0.7, line_dash="2 4"))
    shown = []
    for words, values, colour, dash in curves:
        raw, smooth = _raw_and_smooth(seconds, values.to_numpy(dtype=float))
        plot.line(raw[0] / per_unit, raw[1], color=colour, line_alpha=0.28, line_width=1)
        line = plot.line(smooth[0] / per_unit, smooth[1], color=colour, line_width=2.2, line_dash=dash)
        shown.append((words, [line]))
    _legend(plot, shown)
    return plot


def _raw_and_smooth(seconds: series.Array, values: series.Array) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Both thinned; the smoothing is over a two-hundredth of the run, at least half a second."""
    period = float(np.median(np.diff(seconds))) or 0.2
    sigma = max(0.5, seconds[-1] / 200) / period
    found = list(series.pieces(seconds, values, gap=max(5.0, 10 * period)))
    shares = [max(4, MOST_POINTS * len(x) // max(1, len(seconds))) for x, _ in found]
    raw = [series.thinned(x, y, share) for (x, y), share in zip(found, shares, strict=True)]
    smooth = [series.thinned(x, series.smoothed(y, sigma), share) for (x, y), share in zip(found, shares, strict=True)]
    return series.joined(raw), series.joined(smooth)


def _utilization_sentence(samples: pandas.DataFrame, epochs: int) -> str:
    words = [f"The processor was {samples['sys/cpu_pct'].mean():.0f}% busy on average"]
    if gpus := _gpus(samples):
        busy = [samples[f"{gpu}/util_pct"].mean() for gpu in gpus]
        spread = f" (from {min(busy):.0f}% to {max(busy):.0f}% by GPU)" if len(busy) > 1 else ""
        words.append(f"the GPU {np.mean(busy):.0f}%{spread}")
    if "sys/mem_pct" in samples:
        words.append(f"host memory was at most {samples['sys/mem_pct'].max():.0f}% full")
    lines = "; dotted lines are the ends of epochs" if 0 < epochs <= MOST_BOUNDARIES else ""
    gpu = "" if gpus else "; no GPU was seen"
    return f"{', '.join(words)} ({len(samples):,} samples){gpu}{lines}."


def batch_times(batches: pandas.DataFrame) -> Figure:
    """Distributions of the time of a step and of its wait for data, over the steady steps."""
    name, title = "batch-times", "How long a batch takes"
    steady = batches[parts(batches)[0]] if len(batches) else batches
    if len(steady) < 2:
        return Figure(name, title, "Fewer than two steady steps were recorded, so there is no distribution to show.")
    total, wait = steady["step/time_ms"].to_numpy(), steady["input/wait_ms"].to_numpy()
    plots = [_histogram(total, "Time of a step", BLUE), _histogram(wait, "Wait for data in it", VERMILLION)]
    middle, most = np.percentile(total, (50, 95))
    share = percent(wait.sum() / total.sum()) if total.sum() else "0%"
    sentence = (
        f"Half of the {len(total):,} steady steps took less than {middle:.3g} ms, 95% less than {most:.3g} ms and the "
        f"longest {total.max():.3g} ms; {share} of all that time was waiting for data (median "
        f"{np.median(wait):.3g} ms). The dashed line is the median; the slowest half percent is in the last bar."
    )
    return _drawn(name, title, sentence, *plots)


def _histogram(values: series.Array, title: str, colour: str) -> Any:
    plot = _plot(title, "ms", height=260)
    high = float(np.percentile(values, 99.5)) or 1.0
    counts, edges = np.histogram(np.minimum(values, high), bins=min(50, max(8, len(values) // 8)))
    plot.quad(
        left=edges[:-1], right=edges[1:], bottom=0, top=100 * counts / len(values), color=colour, fill_alpha=0.75,
        line_color=None,
    )  # fmt: skip
    median = float(np.median(values))
    plot.add_layout(Span(location=median, dimension="height", line_color=GREY, line_width=2, line_dash="6 3"))
    plot.y_range.start = 0
    plot.yaxis.axis_label = "% of steps"
    plot.add_tools(HoverTool(tooltips=[("from", "@left{0.00} ms"), ("to", "@right{0.00} ms"), ("steps", "@top{0.0}%")]))
    return plot


def reliability(evaluation: Mapping[str, Any]) -> Figure:
    """How often the model was right by how sure it was, and how many examples it was so sure of."""
    columns = _reliability_columns(evaluation)
    plots = [_accuracy_by_confidence(columns, "Accuracy"), _share_by_confidence(columns, "Examples")]
    return _drawn("reliability", "Reliability", _reliability_sentence(evaluation, columns), *plots)


def reliability_of_labels(evaluation: Mapping[str, Any]) -> Figure:
    """How often a label was there by the probability that it was given, and how many had such a probability."""
    columns = _reliability_columns(evaluation)
    plots = [_accuracy_by_confidence(columns, "Labels that were there"), _share_by_confidence(columns, "Answers")]
    return _drawn("reliability", "Reliability", _labels_sentence(evaluation, columns), *plots)


def _reliability_columns(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    bins = [row for row in evaluation["reliability"] if row["count"]]
    columns = {name: np.array([row[name] for row in bins]) for name in ("low", "high", "confidence", "accuracy")}
    columns["count"] = np.array([row["count"] for row in bins])
    columns["share"] = 100 * columns["count"] / columns["count"].sum()
    return columns


def _accuracy_by_confidence(columns: Mapping[str, Any], title: str) -> Any:
    plot = _by_confidence(columns, title, "accuracy", BLUE)
    diagonal = plot.line([0, 1], [0, 1], color=GREY, line_width=2, line_dash="6 3")
    dots = plot.scatter(columns["confidence"], columns["accuracy"], color=VERMILLION, size=7, marker="diamond")
    _legend(plot, [("mean confidence of the bar", [dots]), ("confidence = accuracy", [diagonal])])
    plot.y_range = Range1d(0, 1.02)
    plot.yaxis.formatter = NumeralTickFormatter(format="0%")
    return plot


def _share_by_confidence(columns: Mapping[str, Any], title: str) -> Any:
    plot = _by_confidence(columns, title, "share", PURPLE)
    plot.y_range.start = 0
    plot.yaxis.axis_label = f"% of {title.lower()}"
    return plot


def _by_confidence(columns: Mapping[str, Any], title: str, top: str, colour: str) -> Any:
    plot, source = _plot(title, "confidence", height=280), ColumnDataSource(dict(columns))
    bars = plot.quad(
        left="low", right="high", bottom=0, top=top, source=source, color=colour, fill_alpha=0.6, line_color=None
    )
    plot.x_range = Range1d(0, 1)
    plot.xaxis.formatter = NumeralTickFormatter(format="0%")
    told = ("confidence", "@confidence{0.0%}"), ("accuracy", "@accuracy{0.0%}"), ("examples", "@count{0,0}")
    plot.add_tools(HoverTool(renderers=[bars], tooltips=list(told)))
    return plot


def _reliability_sentence(evaluation: Mapping[str, Any], columns: Mapping[str, Any]) -> str:
    confidence = float(np.average(columns["confidence"], weights=columns["count"]))
    accuracy, error = (evaluation["figures"][name]["value"] for name in ("accuracy", "calibration_error"))
    sure = "surer than it should be" if confidence > accuracy else "less sure than it could be"
    return (
        f"The model gave its answers a probability of {confidence:.1%} on average and was right in {accuracy:.1%}: on "
        f"the whole it is {sure}. A bar below the dashed line says the same of answers of one confidence; the expected "
        f"calibration error, {error:.1%}, is the mean distance from it."
    )


def _labels_sentence(evaluation: Mapping[str, Any], columns: Mapping[str, Any]) -> str:
    said, there = (float(np.average(columns[name], weights=columns["count"])) for name in ("confidence", "accuracy"))
    error = evaluation["figures"]["calibration_error"]["value"]
    often = "more often than they are there" if said > there else "less often than they are there"
    return (
        f"The model gave a label of an image a probability of {said:.1%} on average, and {there:.1%} of them were "
        f"there: on the whole it expects labels {often}. A bar below the dashed line says the same of labels of one "
        f"probability; the expected calibration error, {error:.1%}, is the mean distance from it."
    )


def _drawn(name: str, title: str, sentence: str, *plots: Any) -> Figure:
    return Figure(name, title, sentence, tuple(json_item(plot) for plot in plots))


def _plot(title: str, x_label: str, height: int) -> Any:
    plot = figure(
        title=title, height=height, sizing_mode="stretch_width", tools="pan,box_zoom,reset",
        background_fill_alpha=0, border_fill_alpha=0, outline_line_color=None,
    )  # fmt: skip
    plot.toolbar.logo, plot.toolbar.autohide = None, True
    plot.title.text_color, plot.title.text_font, plot.title.text_font_size = GREY, FONT, "13px"
    plot.min_border_right = 12
    plot.grid.grid_line_color, plot.grid.grid_line_alpha = GREY, 0.2
    plot.axis.axis_line_color = plot.axis.major_tick_line_color = GREY
    plot.axis.minor_tick_line_color = None
    plot.axis.major_label_text_color = plot.axis.axis_label_text_color = GREY
    plot.axis.major_label_text_font = plot.axis.axis_label_text_font = FONT
    plot.axis.major_label_text_font_size = plot.axis.axis_label_text_font_size = "12px"
    plot.axis.axis_label_text_font_style = "normal"
    plot.xaxis.axis_label = x_label or None
    return plot


def _legend(plot: Any, items: list[tuple[str, list[Any]]]) -> None:
    legend = Legend(
        items=items, orientation="horizontal", click_policy="hide", background_fill_alpha=0, border_line_color=None,
        label_text_color=GREY, label_text_font=FONT, label_text_font_size="12px", padding=0, margin=2, spacing=14,
    )  # fmt: skip
    plot.add_layout(legend, "above")


def _time_unit(span: float) -> tuple[str, float]:
    """The unit that gives an axis short numbers, and its seconds."""
    if span < 180:
        return "s", 1.0
    return ("min", 60.0) if span < 3 * 3600 else ("h", 3600.0)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
