"""What the machines did over time: panels of one axis, raw behind smoothed, with the ends of the epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pandas
from bokeh.models import CrosshairTool, HoverTool, NumeralTickFormatter, Range1d, Span

from pipeline.monitor import gpu_columns
from pipeline.monitor.diagnosis import percent, three_digits
from pipeline.monitor.gpu_columns import busy_pct, gpus, with_gpus_together
from pipeline.monitor.thinned import Samples
from pipeline.report import series
from pipeline.report.drawing import (
    BLUE,
    GRAY,
    GREEN,
    NUMBER,
    ORANGE,
    PURPLE,
    VERMILION,
    Figure,
    add_legend,
    mark,
    new_plot,
    time_unit,
)

MAX_POINTS = 1500
"""Maximum number of points of a curve. No screen shows more."""
MAX_BOUNDARIES = 60
"""Ends of more epochs than this are not marked, because the marks would hide the curves."""
MAX_LINES = 20
"""Limit for the lines of training servers or GPUs: there are this many pairs of color and dash."""
WHOLE = 100.0
"""End of an axis of percent, with the same ticks in all panels."""
LATE_MS, SLOW_MS = 20.0, 10.0
"""The report mentions a sampler that is later or slower: a tenth and a twentieth of the time between two samples."""
WHY_LATE = (
    "The sampler is delayed if there is more work than the machine has cores. In a training, the sampler is a thread "
    "of the training, so Python code in the input (such as a generator or a py_function) delays it too."
)
_DASHES = ("solid", "6 3", "2 2", "8 3 2 3")
_COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE)


@dataclass(frozen=True)
class Curve:
    """A column of the samples."""

    label: str
    column: str
    color: str
    dash: str = "solid"


@dataclass(frozen=True)
class Panel:
    """Curves of one unit. A panel is left out if none of its columns was recorded."""

    title: str
    curves: tuple[Curve, ...]
    min_peak: float = 0.0
    """The panel is left out if no curve reaches this value, because it would show nothing."""
    top: float | None = None
    """End of the axis; None if it ends where the curves do."""
    per_unit: float = 1.0
    """The recorded values are divided by this number."""


PANELS = (
    Panel(
        "Processor (%)",
        (
            Curve("busiest core", "sys/cpu_max_core_pct", PURPLE, "2 2"),
            Curve("all cores", "sys/cpu_pct", BLUE),
            Curve("of the container's limit", "cgroup/cpu_pct", VERMILION, "6 3"),
        ),
        top=WHOLE,
    ),
    Panel(
        "Cores used",
        (
            Curve("the process", "proc/cpu_pct", BLUE),
            Curve("processes that the training started", "proc/children_cpu_pct", ORANGE, "6 3"),
        ),
        per_unit=100.0,
    ),
    Panel(
        "GPU (%)",
        (Curve("busy", "gpu/util_pct", VERMILION), Curve("memory", "gpu/mem_pct", ORANGE, "6 3")),
        top=WHOLE,
    ),
    Panel(
        "GPU power (W)",
        (Curve("drawn", "gpu/power_w", VERMILION), Curve("limit", "gpu/power_limit_w", GRAY, "6 3")),
    ),
    Panel(
        "Held back (% of the time)",
        (
            Curve("processor, by the container's limit", "cgroup/cpu_throttled_pct", BLUE),
            Curve("GPU, by its power limit", "gpu/throttled_power", VERMILION, "6 3"),
            Curve("GPU, by its heat", "gpu/throttled_thermal", PURPLE, "2 2"),
        ),
        min_peak=1.0,
    ),
    Panel(
        "Tasks that wait (% of the time)",
        (
            Curve("for a core", "pressure/cpu_some_pct", BLUE),
            Curve("for a disk", "pressure/io_some_pct", ORANGE, "6 3"),
            Curve("for memory", "pressure/memory_some_pct", GREEN, "2 2"),
            Curve("cores idle for a disk", "sys/cpu_iowait_pct", PURPLE, "8 3 2 3"),
        ),
        min_peak=1.0,
    ),
    Panel(
        "Memory (%)",
        (Curve("host", "sys/mem_pct", GREEN), Curve("of the container's limit", "cgroup/mem_pct", VERMILION, "6 3")),
        top=WHOLE,
    ),
    Panel(
        "Disk (MB/s)",
        (Curve("read", "sys/disk_read_Bps", BLUE), Curve("written", "sys/disk_write_Bps", ORANGE, "6 3")),
        min_peak=1e6,
        per_unit=1e6,
    ),
    Panel(
        "Network (MB/s)",
        (Curve("received", "sys/net_recv_Bps", BLUE), Curve("sent", "sys/net_sent_Bps", ORANGE, "6 3")),
        min_peak=1e6,
        per_unit=1e6,
    ),
)
LOAD = Panel(
    "Busy (%)",
    (
        Curve("GPU", "gpu/util_pct", VERMILION),
        Curve("all cores", "sys/cpu_pct", BLUE, "6 3"),
        Curve("busiest core", "sys/cpu_max_core_pct", PURPLE, "2 2"),
    ),
    top=WHOLE,
)
"""How busy a machine was, in one panel."""
DRAWN = frozenset(curve.column for panel in PANELS for curve in panel.curves)
"""Columns of the panels."""


@dataclass(frozen=True)
class Line:
    """Values over time (Unix s, or from any start), and all of their peaks: the lowest and the highest values."""

    seconds: series.Array
    values: series.Array
    peak_seconds: series.Array
    peaks: series.Array

    def moved_by(self, seconds: float) -> "Line":
        """Return the same values at other times."""
        return replace(self, seconds=self.seconds + seconds, peak_seconds=self.peak_seconds + seconds)


class TimeAxis:
    """The time axis that panels share, from `start` (Unix s)."""

    def __init__(self, start: float, seconds: float, epochs: pandas.DataFrame) -> None:
        self.start = start
        self.unit, self.per_unit = time_unit(seconds)
        self.span = seconds
        self._range = Range1d(0, seconds / self.per_unit)
        ends = self.units(epochs["time"].to_numpy(dtype=float)).tolist()
        self.shown_ends = ends if len(ends) <= MAX_BOUNDARIES else []
        self._pointer = CrosshairTool(dimensions="height", overlay=Span(dimension="height", line_color=GRAY))

    def units(self, seconds: series.Array) -> series.Array:
        """Return places on the axis from Unix seconds."""
        return (seconds - self.start) / self.per_unit

    def panel(self, title: str, top: float | None, height: int) -> Any:
        """Return an empty panel with the ends of the epochs. A pointer over it shows in all panels."""
        plot = new_plot(title, "", height, along="width")
        plot.x_range = self._range
        plot.add_tools(self._pointer)
        if top == WHOLE:
            plot.y_range = Range1d(0, 1.03 * top)
            plot.yaxis.ticker = [0, 25, 50, 75, 100]
        else:
            plot.y_range.start = 0
            plot.yaxis.formatter = NumeralTickFormatter(format=NUMBER)
        for end in self.shown_ends:
            mark(plot, end, "2 4")
        return plot

    def draw(self, plot: Any, curve: Curve, line: Line) -> Any:
        """Draw values, smoothed in front of raw. Return the line of the smoothed ones."""
        line = line.moved_by(-self.start)
        raw, smooth = _thinned(line.peak_seconds, line.peaks), _thinned(line.seconds, line.values, self.span)
        # Below the smoothed lines of all curves: the raw values of ten hours fill the plot.
        plot.line(raw[0] / self.per_unit, raw[1], color=curve.color, line_alpha=0.28, line_width=1, level="underlay")
        return plot.line(
            smooth[0] / self.per_unit, smooth[1], color=curve.color, line_width=2.2, line_dash=curve.dash,
            name=curve.label,
        )  # fmt: skip

    def finish(self, panels: Sequence[Any]) -> tuple[Any, ...]:
        """Show the time axis of the last panel only, because all panels share it."""
        for panel in panels[:-1]:
            panel.xaxis.major_label_text_font_size = "0px"
        panels[-1].xaxis.axis_label = f"time since the start ({self.unit})"
        return tuple(panels)


@cache  # It is asked for each column of thousands of segments.
def is_drawn(column: str) -> bool:
    """Return whether `utilization` reads a column of the samples."""
    return column in DRAWN or column.startswith("monitor/") or gpu_columns.is_combined(column)


def can_draw(samples: Samples) -> bool:
    """Return whether there are samples to draw."""
    return samples.count > 1 and "sys/cpu_pct" in samples.rows


def utilization(samples: Samples, epochs: pandas.DataFrame, time: TimeAxis | None = None) -> Figure:
    """Draw all samples of this machine that have something to show, on an axis of their own if none is given."""
    name, title = "utilization", "Utilization over time"
    if not can_draw(samples):
        return Figure(name, title, "No samples were recorded, so there is nothing to show.")
    start, end = samples.extremes["time"].iloc[[0, -1]]
    time = time or TimeAxis(start, end - start, epochs)
    together = replace(samples, rows=with_gpus_together(samples.rows))
    panels = [_panel(panel, curves, together, time) for panel in PANELS if (curves := telling(panel, samples.extremes))]
    notes = tuple(filter(None, (throttle_sentence(together.rows), sampler_sentence(samples.rows))))
    sentence = _sentence(together, shows_ends=bool(time.shown_ends))
    return Figure(name, title, sentence, time.finish(panels), is_stacked=True, notes=notes)


def load_panel(samples: Samples, time: TimeAxis) -> Any:
    """Draw how busy GPUs and cores were."""
    curves = telling(LOAD, samples.extremes)
    return _panel(LOAD, curves, replace(samples, rows=with_gpus_together(samples.rows)), time)


def telling(panel: Panel, samples: pandas.DataFrame) -> list[Curve]:
    """Return the recorded curves of a panel; none if no curve reaches the smallest value of the panel."""
    recorded = [curve for curve in panel.curves if curve.column in samples and samples[curve.column].notna().any()]
    return recorded if any(samples[curve.column].max() >= panel.min_peak for curve in recorded) else []


def _panel(panel: Panel, curves: Sequence[Curve], samples: Samples, time: TimeAxis) -> Any:
    several = len(gpus(samples.rows, "util_pct").columns)
    of = f", {several} together" if panel.title.startswith("GPU") and several > 1 else ""
    plot = time.panel(panel.title + of, panel.top, height=200 if len(curves) > 1 else 170)
    lines = [time.draw(plot, curve, _line(samples, curve.column, panel.per_unit)) for curve in curves]
    add_legend_and_tooltip(plot, lines)
    return plot


def _line(samples: Samples, column: str, per_unit: float = 1.0) -> Line:
    times, values = (
        [table[name].to_numpy(dtype=float) for table in (samples.rows, samples.extremes)] for name in ("time", column)
    )
    return Line(times[0], values[0] / per_unit, times[1], values[1] / per_unit)


def add_legend_and_tooltip(plot: Any, lines: Sequence[Any]) -> None:
    """Add a legend of the lines, and a tooltip with the value of a line."""
    add_legend(plot, [(line.name, [line]) for line in lines])
    tooltips = [("$name", "$y{0.0}")]
    plot.add_tools(HoverTool(renderers=list(lines), tooltips=tooltips, mode="mouse"))


def _thinned(seconds: series.Array, values: series.Array, span: float = 0.0) -> tuple[series.Array, series.Array]:
    """Return a few values. If they are of a run of `span` seconds, they are smoothed over a 200th of it."""
    # Most times between two rows: a retry leaves a gap, and the two extremes of a block are far from each other. It is
    # 0 only if samples have equal times.
    period = float(np.percentile(np.diff(seconds), 75)) or 0.2
    sigma = max(0.5, span / 200) / period if span else 0.0
    parts = list(series.pieces(seconds, values, gap=max(5.0, 10 * period)))
    shares = [max(4, MAX_POINTS * len(x) // max(1, len(seconds))) for x, _ in parts]
    return series.joined(
        [series.thinned(x, series.smoothed(y, sigma), share) for (x, y), share in zip(parts, shares, strict=True)]
    )


def _sentence(samples: Samples, shows_ends: bool) -> str:
    together, highest = samples.rows, samples.extremes
    facts = [f"The processor was {together['sys/cpu_pct'].mean():.0f}% busy on average"]
    busy = gpus(together, "util_pct").mean().dropna()
    if len(busy):
        low, high = f"{busy.min():.0f}%", f"{busy.max():.0f}%"
        spread = f" (from {low} to {high} by GPU)" if low != high else ""
        facts.append(f"the GPU {gpu_columns.mean(busy.tolist()):.0f}%{spread}")
    if "gpu/power_limit_w" in together and "gpu/power_w" in together:
        drawn, limit = together["gpu/power_w"].mean(), together["gpu/power_limit_w"].max()
        facts.append(f"drawing {drawn:,.0f} of at most {limit:,.0f} W")
    if "sys/mem_pct" in highest:
        facts.append(f"host memory was at most {highest['sys/mem_pct'].max():.0f}% full")
    lines = "; dotted lines are the ends of epochs" if shows_ends else ""
    gpu = "" if len(busy) else gpu_columns.without_use(together)
    return f"{', '.join(facts)} ({samples.count:,} samples){gpu}{lines}."


def throttle_sentence(together: pandas.DataFrame) -> str:
    """Say what held processor and GPUs back, and how often; return an empty text if nothing did."""
    panel = next(panel for panel in PANELS if panel.title.startswith("Held back"))
    shares = {curve.label: together[curve.column].mean() / 100 for curve in telling(panel, together)}
    causes = "; ".join(f"{label}, {percent(share)} of the time" for label, share in shares.items() if share)
    return f"Held back: {causes}." if causes else ""


def sampler_sentence(samples: pandas.DataFrame) -> str:
    """Say if the sampler was late, slow or left samples out; return an empty text if it was on time."""
    delays, durations = (
        samples[name].dropna() if name in samples else () for name in ("monitor/tick_late_ms", "monitor/sample_ms")
    )
    late = float(np.percentile(delays, 95)) if len(delays) else 0.0
    took = float(np.median(durations)) if len(durations) else 0.0
    lost = int(grown(samples["monitor/dropped"].to_numpy())) if "monitor/dropped" in samples else 0
    complaints = [f"one sample in twenty was more than {three_digits(late)} ms late"] if late > LATE_MS else []
    complaints += [f"taking a sample took {three_digits(took)} ms"] if took > SLOW_MS else []
    complaints += [f"{lost:,} {'sample was' if lost == 1 else 'samples were'} left out"] if lost else []
    if not complaints:
        return ""
    return f"The sampler was held up: {', '.join(complaints)}. {WHY_LATE}"


def grown(counter: series.Array) -> float:
    """Return the total of a counter, which each process starts from 0."""
    counter = counter[np.isfinite(counter)]
    steps = np.diff(counter, prepend=0.0)
    # A step down is the start of a new process, whose count then is all new.
    return float(np.where(steps < 0, counter, steps).sum())


def servers(samples_of: Mapping[int, Samples], epochs: pandas.DataFrame) -> Figure:
    """Draw how busy the GPUs of each training server were, or its processor if it has no GPU."""
    name, title = "servers", "All training servers"
    busy = {f"server {number}": busy_line(samples) for number, samples in samples_of.items() if can_draw(samples)}
    if len(busy) < 2:
        return Figure(name, title, "The record of other servers was not found.")
    means = {label: float(np.nanmean(line.values)) for label, line in busy.items()}
    ascending = sorted(means, key=lambda label: means[label])
    shown = {label: line for label, line in busy.items() if label in ascending[:MAX_LINES]}
    panel = busy_panel("GPU, or else processor (%)", shown, epochs)
    left_out = f". The plot shows the {MAX_LINES} least busy of {len(busy)} servers" if len(busy) > MAX_LINES else ""
    low, high = ascending[0], ascending[-1]
    sentence = (
        f"On average, {low} was the least busy with {means[low]:.0f}%, and {high} the busiest with {means[high]:.0f}%. "
        f"In each step, all servers wait for the slowest one{left_out}."
    )
    return Figure(name, title, sentence, (panel,), is_stacked=True)


def busy_line(samples: Samples) -> Line:
    """Return how busy the GPUs were on average, or the processor if there is no GPU, in percent."""
    together = replace(samples, rows=samples.rows[["time"]].assign(busy=busy_pct(samples.rows)))
    column = "gpu/util_pct" if "gpu/util_pct" in samples.extremes else "sys/cpu_pct"
    return _line(replace(together, extremes=samples.extremes.rename(columns={column: "busy"})), "busy")


def busy_panel(title: str, lines: Mapping[str, Line], epochs: pandas.DataFrame) -> Any:
    """Draw one panel with a line for each name, in percent."""
    start = min(line.peak_seconds[0] for line in lines.values())
    time = TimeAxis(start, max(line.peak_seconds[-1] for line in lines.values()) - start, epochs)
    plot = time.panel(title, WHOLE, height=260)
    drawn = [
        time.draw(plot, Curve(label, "", *look_of_line(number)), line)
        for number, (label, line) in enumerate(lines.items())
    ]
    add_legend_and_tooltip(plot, drawn)
    return time.finish([plot])[0]


def look_of_line(number: int) -> tuple[str, str]:
    """Return color and dash of a line. There are MAX_LINES different ones."""
    return _COLORS[number % len(_COLORS)], _DASHES[number // len(_COLORS) % len(_DASHES)]
