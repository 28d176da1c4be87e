"""The figures of a running training: frames whose sources the page fills, and refills while the training runs.

The name of a source is the name of its columns in pipeline/watch/view.py.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import pandas
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    PanTool,
    Range1d,
    ResetTool,
    TimedeltaTicker,
    TimedeltaTickFormatter,
)

from pipeline.evaluation.best_epoch import epoch_metric
from pipeline.monitor.aggregation import HIGHEST
from pipeline.report.drawing import BLUE, GRAY, GREEN, VERMILION, Figure, add_legend, document_json, new_plot
from pipeline.report.figures import epoch_bars, learning_figure, learning_lines
from pipeline.report.utilization import MAX_LINES, PANELS, WHOLE, Curve, add_legend_and_tooltip, look_of_line
from pipeline.watch.view import Drawable

_ANYTHING = (0.0, 1.0)
"""The content of every column until the page fills it. Bokeh warns about axes without data."""
TIME = "time"
"""Name of the time axis of each panel. The page moves and zooms all axes with this name together."""


@lru_cache(maxsize=32)
def frames(drawable: Drawable) -> Sequence[dict[str, Any]]:
    """Return the figures for JSON: each with its name, its title, and its documents of plots.

    The sources are empty: `columns` of a view has their content. So trainings with the same figures share these
    frames, which take Bokeh half a second.
    """
    return [{"name": each.name, "title": each.title, "documents": [*_documents(each)]} for each in figures(drawable)]


def _documents(figure: Figure) -> Iterator[dict[str, Any]]:
    """Yield a document for each plot, or for plots that share an axis, with the ids of their places on the page.

    The page draws one document after another. If it drew all at once, nothing would be visible for seconds.
    """
    places = [(f"{figure.name}-{number}", plot) for number, plot in enumerate(figure.items)]
    for _, together in groupby(places, key=lambda each: each[1].x_range.id):
        names, plots = zip(*together, strict=True)
        yield {"places": names, "json": document_json(plots)}


def figures(drawable: Drawable) -> list[Figure]:
    """Return all figures. Their sentences depend on the numbers, so the status of the training has them."""
    candidates = (
        (drawable.steps, _waiting),
        (drawable.learning, _learning),
        (drawable.spent, _spent),
        (drawable.panels, _machine),
        (drawable.servers, _servers),
    )
    return [figure(drawable) for has_content, figure in candidates if has_content]


def _panel(title: str, top: float | None, height: int = 190) -> Any:
    """Return a plot over the time since the first sample.

    The page sets the range of its axes. Bokeh would go through all curves of all panels each time that it draws one.
    """
    plot = new_plot(title, "", height, along="width")
    plot.x_range = Range1d(name=TIME)
    # Dragging zooms in. The panel is too low for a fourth button.
    zoom = BoxZoomTool(dimensions="width")
    plot.toolbar.tools = [zoom, PanTool(dimensions="width"), ResetTool()]
    plot.toolbar.active_drag = zoom
    plot.xaxis.formatter, plot.xaxis.ticker = TimedeltaTickFormatter(), TimedeltaTicker(desired_num_ticks=4)
    if top == WHOLE:
        plot.y_range = Range1d(0, 1.03 * top)
        plot.yaxis.ticker = [0, 25, 50, 75, 100]
    else:
        plot.y_range = _from_zero()
    ends = ColumnDataSource({"time": []}, name="ends")
    plot.vspan(x="time", source=ends, line_color=GRAY, line_alpha=0.6, line_dash="2 4")
    return plot


def _from_zero() -> Range1d:
    """Return a range from 0. The page sets its end."""
    return Range1d(tags=["from zero"])


def _curves(title: str, top: float | None, source: ColumnDataSource, curves: Sequence[Curve]) -> Any:
    """Return a plot of each curve and its faint highest values, with a legend and a tooltip."""
    plot, lines = _panel(title, top), []
    for curve in curves:
        if curve.column + HIGHEST in source.data:
            plot.line(TIME, curve.column + HIGHEST, source=source, color=curve.color, line_alpha=0.28)
        lines.append(
            plot.line(
                TIME, curve.column, source=source, color=curve.color, line_width=2.2, line_dash=curve.dash,
                name=curve.label,
            )
        )  # fmt: skip
    add_legend_and_tooltip(plot, lines, has_button=False)
    return plot


def _source(name: str, columns: Sequence[str]) -> ColumnDataSource:
    return ColumnDataSource(dict.fromkeys((TIME, *columns), _ANYTHING), name=name)


def _waiting(_drawable: Drawable) -> Figure:
    wait = Curve("waiting", "wait", VERMILION)
    time = Curve("mean (bold) and longest (faint)", "step/time_ms", BLUE)
    rate = Curve("examples", "rate", GREEN)
    plots = (
        _curves("Waiting for data (% of the step time)", WHOLE, _source("batches", ["wait"]), [wait]),
        _curves("Time of a step (ms)", None, _source("batches", [time.column, time.column + HIGHEST]), [time]),
        _curves("Examples a second", None, _source("batches", ["rate"]), [rate]),
    )
    return Figure("waiting", "Does the accelerator wait?", "", plots, is_stacked=True)


def _learning(drawable: Drawable) -> Figure:
    empty = pandas.DataFrame(dict.fromkeys(("step", *drawable.learning), _ANYTHING))
    return learning_figure("", epoch_metric(drawable.learning), partial(learning_lines, empty))


def _spent(drawable: Drawable) -> Figure:
    bars = epoch_bars(pandas.DataFrame(dict.fromkeys(drawable.spent, 1.0), index=[1]))
    bars.y_range = _from_zero()
    add_legend(bars, [(renderer.name, [renderer]) for renderer in bars.renderers])
    return Figure("spent", "Where the time went", "", (bars,), is_stacked=True)


def _machine(drawable: Drawable) -> Figure:
    panels = {panel.title: panel for panel in PANELS}
    plots = []
    for title, columns in drawable.panels:
        panel = panels[title]
        curves = [curve for curve in panel.curves if curve.column in columns]
        with_highest = [name for curve in curves for name in (curve.column, curve.column + HIGHEST)]
        plots.append(_curves(panel.title, panel.top, _source("samples", with_highest), curves))
    return Figure("machine", "What the machine did", "", tuple(plots), is_stacked=True)


def _servers(drawable: Drawable) -> Figure:
    plot = _panel("GPU, or processor if there is no GPU (%)", WHOLE, height=260)
    lines = []
    for number in drawable.servers[:MAX_LINES]:
        color, dash = look_of_line(number)
        name = f"server {number}"
        source = _source(f"busy {number}", ["busy"])  # No other model may have this name.
        lines.append(plot.line(TIME, "busy", source=source, color=color, line_width=2, line_dash=dash, name=name))
    add_legend_and_tooltip(plot, lines, has_button=False)
    return Figure("servers", "All training servers", "", (plot,), is_stacked=True)
