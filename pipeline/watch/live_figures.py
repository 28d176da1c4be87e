"""The figures of a running training, as plain descriptions: the page draws their charts, and fills them while it runs.

The name of a source is the name of its columns in pipeline/watch/view.py.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.evaluation.best_epoch import epoch_metric
from pipeline.report.drawing import BLUE, GREEN, VERMILION
from pipeline.report.figures import look_of_part
from pipeline.report.input_stages import TITLE
from pipeline.report.utilization import MAX_LINES, PANELS, WHOLE, look_of_line
from pipeline.watch.view import Drawable, source_of_server

_TRAINING, _VALIDATION = (BLUE, "solid"), (VERMILION, "6 3")


@dataclass(frozen=True)
class Line:
    """A column of a source as a line, or as one part of stacked bars."""

    label: str
    source: str
    column: str
    color: str
    dash: tuple[int, ...] = ()
    """Lengths of the dashes and of the gaps between them, in pixels; empty for a solid line."""
    hatch: str = ""
    """The hatch of a bar, by its name in Bokeh, which draws the same bars in the report."""


@dataclass(frozen=True)
class Chart:
    """Lines over the x axis that the reader chooses, or bars by epoch."""

    title: str
    lines: tuple[Line, ...]
    scale: Literal["linear", "symlog"] = "linear"
    """A symlog axis is linear up to 0.1 and logarithmic above. The reader can make a linear axis logarithmic."""
    bars: bool = False
    from_zero: bool = True
    """Whether the axis begins at zero while the whole training is shown."""
    top: float | None = None
    """Lowest end of the axis while the whole training is shown."""
    is_share: bool = False
    """Whether the values are from 0 to 1, and are written in percent."""
    names_idlest: bool = False
    """Whether the line with the lowest mean is drawn bold and named."""


@dataclass(frozen=True)
class Figure:
    """Charts with a title. The status of the training has the sentence of a figure, because it depends on numbers."""

    name: str
    title: str
    charts: tuple[Chart, ...]


def frames(drawable: Drawable) -> list[dict[str, Any]]:
    """Return the figures for JSON. Their charts have no values: `columns` of a view has them."""
    return [asdict(figure) for figure in figures(drawable)]


def figures(drawable: Drawable) -> list[Figure]:
    """Return all figures that have something to show."""
    candidates = (
        (drawable.steps, _waiting),
        (drawable.stages, _stages),
        (drawable.learning, _learning),
        (drawable.spent, _spent),
        (drawable.panels, _machine),
        (drawable.servers, _servers),
    )
    return [figure(drawable) for has_content, figure in candidates if has_content]


def _waiting(_drawable: Drawable) -> Figure:
    # A wait of 0.1% and one of 2% are the same on an axis that ends at 100%, where a stall is.
    wait = Chart(
        "Waiting for data (% of the step time, logarithmic above 0.1%)",
        (Line("waiting", "batches", "wait", VERMILION),),
        scale="symlog",
    )
    time = Chart("Time of a step (ms)", (Line("time of a step", "batches", "step/time_ms", BLUE),))
    rate = Chart("Examples a second", (Line("examples", "batches", "rate", GREEN),))
    return Figure("waiting", "Does the accelerator wait?", (wait, time, rate))


def _stages(_drawable: Drawable) -> Figure:
    # The status has its bars, which do not change.
    return Figure("stages", TITLE, ())


def _learning(drawable: Drawable) -> Figure:
    metric = epoch_metric(drawable.learning)

    def chart(title: str, column: str, is_share: bool = False) -> Chart:
        lines = (("training", column, _TRAINING), ("validation", f"val_{column}", _VALIDATION))
        drawn = tuple(
            Line(label, "epochs", name, color, _lengths(dash))
            for label, name, (color, dash) in lines
            if name in drawable.learning
        )
        return Chart(title, drawn, from_zero=False, is_share=is_share)

    charts = chart("Loss", "loss"), chart(metric.title.capitalize(), metric.key, is_share=metric.scale == "share")
    return Figure("learning", f"Loss and {metric.title}", charts)


def _spent(drawable: Drawable) -> Figure:
    looks = {part: look_of_part(part) for part in drawable.spent}
    lines = (Line(part, "spent", part, color, hatch=hatch) for part, (color, hatch) in looks.items())
    return Figure("spent", "Where the time went", (Chart("Of each epoch (s)", tuple(lines), bars=True),))


def _machine(drawable: Drawable) -> Figure:
    panels = {panel.title: panel for panel in PANELS}
    charts = []
    for title, columns in drawable.panels:
        panel = panels[title]
        lines = (
            Line(curve.label, "samples", curve.column, curve.color, _lengths(curve.dash))
            for curve in panel.curves
            if curve.column in columns
        )
        charts.append(Chart(title, tuple(lines), top=panel.top))
        if title.startswith("GPU (") and not drawable.servers:
            charts += _each_gpu(drawable)
    return Figure("machine", "What the machine did", tuple(charts))


def _servers(drawable: Drawable) -> Figure:
    names = {f"server {index}": (source_of_server(index), "busy") for index in drawable.servers[:MAX_LINES]}
    left_out = f", of the first {MAX_LINES} servers" if len(drawable.servers) > MAX_LINES else ""
    busy = _busy(f"GPU, or else processor{left_out} (%)", names)
    return Figure("servers", "All training servers", (busy, *_each_gpu(drawable)))


def _each_gpu(drawable: Drawable) -> Iterator[Chart]:
    """Yield a chart with a line for each GPU, if there are several."""
    names = {}
    for server, gpu in drawable.gpus:
        label = f"server {server}, GPU {gpu}" if drawable.servers else f"GPU {gpu}"
        names[label] = source_of_server(server), f"gpu/{gpu}/util_pct"
    if names:
        is_each = len(names) == drawable.num_gpus
        yield _busy(
            "Each GPU (% busy)" if is_each else f"The {len(names)} idlest of {drawable.num_gpus} GPUs (% busy)", names
        )


def _busy(title: str, names: dict[str, tuple[str, str]]) -> Chart:
    """Return a chart with a line for each name, from the column of a source."""
    lines = []
    for number, (label, (source, column)) in enumerate(names.items()):
        color, dash = look_of_line(number)
        lines.append(Line(label, source, column, color, _lengths(dash)))
    return Chart(title, tuple(lines), top=WHOLE, names_idlest=True)


def _lengths(dash: str) -> tuple[int, ...]:
    """Return the lengths in a dash of Bokeh, such as "6 3"."""
    return () if dash == "solid" else tuple(map(int, dash.split()))
