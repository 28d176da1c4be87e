"""The figures of a training that goes on: frames whose sources the page fills, and fills again as it goes on.

A source is found by its name, which is that of its columns in pipeline/watch/view.py.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import pandas
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    HoverTool,
    PanTool,
    Range1d,
    ResetTool,
    TimedeltaTicker,
    TimedeltaTickFormatter,
)

from pipeline.monitor.aggregation import HIGHEST
from pipeline.report.drawing import BLUE, GRAY, GREEN, VERMILION, Figure, add_legend, document_json, new_plot
from pipeline.report.figures import epoch_bars, learning_plots
from pipeline.report.utilization import MAX_LINES, PANELS, WHOLE, Curve, look_of_line
from pipeline.watch.view import Drawable

_ANYTHING = (0.0, 1.0)
"""In every column until the page fills it: Bokeh warns of axes without data."""
TIME = "time"
"""Name of the axis of each panel over time; the page keeps them alike."""


@lru_cache(maxsize=32)
def frames(drawable: Drawable) -> Sequence[dict[str, Any]]:
    """The figures of what is drawable, for JSON: each with its name, title and documents, which have plots.

    What the sources hold comes from `columns` of a view. So all trainings alike have the same frames, which take Bokeh
    half a second to make.
    """
    return [{"name": each.name, "title": each.title, "documents": [*_documents(each)]} for each in figures(drawable)]


def _documents(drawn: Figure) -> Iterator[dict[str, Any]]:
    """Each plot is one, or those are that share an axis, with the ids of their places on the page.

    So that the page can draw one after the other: of all at once nothing is to be seen for seconds.
    """
    places = [(f"{drawn.name}-{number}", plot) for number, plot in enumerate(drawn.items)]
    for _, together in groupby(places, key=lambda each: each[1].x_range.id):
        names, plots = zip(*together, strict=True)
        yield {"places": names, "json": document_json(plots)}


def figures(drawable: Drawable) -> list[Figure]:
    """All figures; their sentences tell of numbers, and come with those."""
    drawn = [_waiting(drawable), _learning(drawable), _spent(drawable), _machine(drawable), _servers(drawable)]
    return [figure for figure in drawn if figure.items]


def _panel(title: str, top: float | None, height: int = 190) -> Any:
    """A plot over the time since the first sample; the page moves and zooms all of these together.

    The page says how far their axes go: found by Bokeh, it takes all curves of all panels each time that one is drawn.
    """
    plot = new_plot(title, "", height, along="width")
    plot.x_range = Range1d(name=TIME)
    # A drag looks closer at what was measured. A fourth button would hide the third: the panel is too low.
    closer = BoxZoomTool(dimensions="width")
    plot.toolbar.tools = [closer, PanTool(dimensions="width"), ResetTool()]
    plot.toolbar.active_drag = closer
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
    """The page says how high it goes: as high as that of the other training, where two lie beside each other."""
    return Range1d(tags=["from zero"])


def _draw(plot: Any, source: ColumnDataSource, curves: Sequence[Curve]) -> None:
    """Each curve behind its highest values, with words above and under the pointer."""
    lines = []
    for curve in curves:
        if curve.column + HIGHEST in source.data:
            plot.line(TIME, curve.column + HIGHEST, source=source, color=curve.color, line_alpha=0.28)
        lines.append(
            plot.line(
                TIME, curve.column, source=source, color=curve.color, line_width=2.2, line_dash=curve.dash,
                name=curve.words,
            )
        )  # fmt: skip
    _tell(plot, lines)


def _tell(plot: Any, lines: Sequence[Any]) -> None:
    add_legend(plot, [(line.name, [line]) for line in lines])
    plot.add_tools(HoverTool(renderers=list(lines), tooltips=[("$name", "$y{0.0}")], mode="mouse", visible=False))


def _source(name: str, columns: Sequence[str]) -> ColumnDataSource:
    return ColumnDataSource(dict.fromkeys((TIME, *columns), _ANYTHING), name=name)


def _with_highest(columns: Sequence[str]) -> list[str]:
    return [name for column in columns for name in (column, column + HIGHEST)]


def _waiting(drawable: Drawable) -> Figure:
    if not drawable.steps:
        return Figure("waiting", "", "")
    panels: tuple[tuple[str, Curve, list[str], float | None], ...] = (
        ("Waiting for data (% of the step time)", Curve("waiting", "wait", VERMILION), [], WHOLE),
        (
            "Time of a step (ms)",
            Curve("mean; faint, the longest", "step/time_ms", BLUE),
            [f"step/time_ms{HIGHEST}"],
            None,
        ),
        ("Examples a second", Curve("examples", "rate", GREEN), [], None),
    )
    plots = []
    for title, curve, further, top in panels:
        plots.append(_panel(title, top))
        _draw(plots[-1], _source("batches", [curve.column, *further]), [curve])
    return Figure("waiting", "Does the accelerator wait?", "", tuple(plots), stacked=True)


def _learning(drawable: Drawable) -> Figure:
    anything = pandas.DataFrame(dict.fromkeys(("step", *drawable.learning), _ANYTHING))
    looks = {"": ("training", BLUE, "solid", "circle"), "val_": ("validation", VERMILION, "6 3", "diamond")}
    lines = {
        metric: [(look[0], anything, before + metric, *look[1:]) for before, look in looks.items()]
        for metric in ("loss", "accuracy")
    }
    plots = learning_plots(lines["loss"], lines["accuracy"]) if drawable.learning else ()
    return Figure("learning", "Loss and accuracy", "", plots)


def _spent(drawable: Drawable) -> Figure:
    if not drawable.spent:
        return Figure("spent", "", "")
    bars = epoch_bars(pandas.DataFrame(dict.fromkeys(drawable.spent, 1.0), index=[1]))
    bars.y_range = _from_zero()
    add_legend(bars, [(renderer.name, [renderer]) for renderer in bars.renderers])
    return Figure("spent", "Where the time went", "", (bars,), stacked=True)


def _machine(drawable: Drawable) -> Figure:
    known = {panel.title: panel for panel in PANELS}
    drawn = [
        (known[title], [curve for curve in known[title].curves if curve.column in columns])
        for title, columns in drawable.panels
    ]
    plots = []
    for panel, curves in drawn:
        plots.append(_panel(panel.title, panel.top))
        _draw(plots[-1], _source("samples", _with_highest([curve.column for curve in curves])), curves)
    return Figure("machine", "What the machine did", "", tuple(plots), stacked=True)


def _servers(drawable: Drawable) -> Figure:
    if not drawable.servers:
        return Figure("servers", "", "")
    plot = _panel("GPU, or processor where there is none (%)", WHOLE, height=260)
    lines = []
    for number in drawable.servers[:MAX_LINES]:
        color, dash = look_of_line(number)
        name = f"server {number}"
        source = _source(f"busy {number}", ["busy"])  # no other model may have its name
        lines.append(plot.line(TIME, "busy", source=source, color=color, line_width=2, line_dash=dash, name=name))
    _tell(plot, lines)
    return Figure("servers", "All training servers", "", (plot,), stacked=True)
