"""How all figures are drawn, and how a page embeds them.

Bokeh draws them without a background, with lines in a gray that is visible on white and on black. The colors are those
of Okabe and Ito, which color-blind readers can tell apart. Curves and bars of a figure also differ in dash or hatch.
The mouse wheel scrolls past a figure: it zooms only if that is switched on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.document import Document
from bokeh.models import HoverTool, Legend, Span
from bokeh.plotting import figure

from pipeline.report.series import Array

BLUE, VERMILION, GREEN, PURPLE, ORANGE = "#2b8cc4", "#d55e00", "#009e73", "#b0719a", "#cf8f00"
GRAY = "#7d848c"
"""Color of lines. Their contrast is at least 3 on white and on the dark pages."""
WORDS = "#5b646d"
"""Color of text on a light page. No gray has a contrast of 4.5 both on white and on a dark page, so pages with scripts
set the color of the text in their plots (words.js)."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Figure:
    """`items` are the plots of Bokeh, side by side; empty where there is nothing to draw and `sentence` says why.

    `stacked` ones stand below each other, as wide as the page: they share their axis. `notes` are further
    sentences, for below the plots.
    """

    name: str
    title: str
    sentence: str
    items: tuple[Any, ...] = ()
    stacked: bool = False
    notes: tuple[str, ...] = ()


def embedded(figures: Iterable[Figure]) -> dict[str, Any]:
    """The arguments of Bokeh.embed.embed_items: one document, so that plots can share an axis. {} without a plot.

    The id of a place on the page is the name of the figure and the number of the plot in it, from 0.
    """
    places = {f"{drawn.name}-{number}": item for drawn in figures for number, item in enumerate(drawn.items)}
    if not places:
        return {}
    roots = {item.id: place for place, item in places.items()}
    render = {"docid": "figures", "roots": roots, "root_ids": [*roots]}
    return {"documents": {"figures": document_json([*places.values()])}, "render": [render]}


def document_json(items: Sequence[Any]) -> Any:
    """A Bokeh document of plots, as Document.from_json of BokehJS reads it; its roots are these, in their order."""
    document = Document()
    with document.models.freeze():  # else all that was added is gone through again with each plot
        for item in items:
            document.add_root(item)
    return document.to_json(deferred=False)


def new_plot(title: str, x_label: str, height: int, along: str = "both") -> Any:
    """A plot that can be moved and zoomed `along` both axes, or its "width" alone, as those below each other are.

    The frames of these are as wide as each other's, whatever the numbers beside them.
    """
    tools = "pan,box_zoom,wheel_zoom,reset" if along == "both" else "xpan,xbox_zoom,xwheel_zoom,reset"
    plot = figure(
        title=title, height=height, sizing_mode="stretch_width", tools=tools, active_scroll=None,
        background_fill_alpha=0, border_fill_alpha=0, outline_line_color=None,
    )  # fmt: skip
    plot.toolbar.logo, plot.toolbar.autohide = None, True
    plot.title.text_color, plot.title.text_font, plot.title.text_font_size = WORDS, FONT, "13px"
    plot.min_border_right, plot.min_border_left = 12, 12 if along == "both" else 58
    plot.grid.grid_line_color, plot.grid.grid_line_alpha = GRAY, 0.2
    plot.axis.axis_line_color = plot.axis.major_tick_line_color = GRAY
    plot.axis.minor_tick_line_color = None
    plot.axis.major_label_text_color = plot.axis.axis_label_text_color = WORDS
    plot.axis.major_label_text_font = plot.axis.axis_label_text_font = FONT
    plot.axis.major_label_text_font_size = plot.axis.axis_label_text_font_size = "12px"
    plot.axis.axis_label_text_font_style = "normal"
    plot.xaxis.axis_label = x_label or None
    return plot


def add_legend(plot: Any, items: Sequence[tuple[str, Sequence[Any]]]) -> None:
    """Words and what they stand for, above the plot; a click hides it. Broken into rows where they are many."""
    legend = Legend(
        items=[(words, list(renderers)) for words, renderers in items], orientation="horizontal", ncols="auto",
        click_policy="hide", background_fill_alpha=0, border_line_color=None, label_text_color=WORDS,
        label_text_font=FONT, label_text_font_size="12px", padding=0, margin=2, spacing=14,
    )  # fmt: skip
    plot.add_layout(legend, "above")


def mark(plot: Any, at: float, dash: str, width: float = 1, alpha: float = 0.7) -> None:
    """A line across the plot, at a place on its x axis."""
    plot.add_layout(
        Span(location=at, dimension="height", line_color=GRAY, line_alpha=alpha, line_width=width, line_dash=dash)
    )


def histogram(values: Array, title: str, unit: str, noun: str, color: str) -> Any:
    """Distribution of values, in percent of them, with a line at their median; the largest half percent in one bar."""
    plot = new_plot(title, unit, height=260)
    counts, edges = binned(values)
    plot.quad(
        left=edges[:-1], right=edges[1:], bottom=0, top=100 * counts / len(values), color=color, fill_alpha=0.75,
        line_color=None,
    )  # fmt: skip
    mark(plot, float(np.median(values)), "6 3", width=2, alpha=1)
    plot.y_range.start = 0
    plot.yaxis.axis_label = f"% of {noun}"
    told = [("from", f"@left{{0.00}} {unit}"), ("to", f"@right{{0.00}} {unit}"), (noun, "@top{0.0}%")]
    plot.add_tools(HoverTool(tooltips=told))
    return plot


def binned(values: Array, high: float | None = None) -> tuple[Array, Array]:
    """Counts and edges of bins up to `high`, or the 99.5th percentile: what is above is counted in the last."""
    top = high or float(np.percentile(values, 99.5)) or 1.0
    counts, edges = np.histogram(np.minimum(values, top), bins=min(50, max(8, len(values) // 8)))
    return counts.astype(float), edges


def time_unit(span: float) -> tuple[str, float]:
    """The unit that gives an axis of so many seconds short numbers, and its seconds."""
    if span < 180:
        return "s", 1.0
    return ("min", 60.0) if span < 3 * 3600 else ("h", 3600.0)


def counted(number: int, noun: str) -> str:
    """1 epoch, 2 epochs."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
