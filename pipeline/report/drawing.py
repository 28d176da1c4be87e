"""How all figures are drawn, and how a page embeds them.

Bokeh draws them without a background, with lines in a gray that is visible on white and on black. The colors are those
of Okabe and Ito, which color-blind readers can tell apart. Curves and bars of a figure also differ in dash or hatch.
The mouse wheel scrolls past a figure: it zooms only if that is switched on.
"""

from collections.abc import Iterable, Mapping, Sequence
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
NUMBER = "0,0.[0000]"
"""Format of the numbers at an axis, as in 5,000 and 0.25."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Figure:
    """Plots with a title and a sentence."""

    name: str
    title: str
    sentence: str
    """What the plots show, in numbers, or why there are none."""
    items: tuple[Any, ...] = ()
    """The plots of Bokeh."""
    is_stacked: bool = False
    """Whether the plots are below each other, as wide as the page, with one axis. Otherwise they are side by side."""
    notes: tuple[str, ...] = ()
    """Sentences below the plots."""


def embedded(figures: Iterable[Figure]) -> dict[str, Any]:
    """Return the arguments of Bokeh.embed.embed_items; {} if there are no plots.

    All plots are in one document, so that they can share an axis. A plot's place on the page has the id NAME-NUMBER:
    the name of the figure, and the number of the plot in it, from 0.
    """
    places = {f"{each.name}-{number}": item for each in figures for number, item in enumerate(each.items)}
    if not places:
        return {}
    roots = {item.id: place for place, item in places.items()}
    render = {"docid": "figures", "roots": roots, "root_ids": [*roots]}
    return {"documents": {"figures": document_json([*places.values()])}, "render": [render]}


def document_json(items: Sequence[Any]) -> Any:
    """Return a Bokeh document of plots, as Document.from_json of BokehJS reads it. Its roots are the plots."""
    document = Document()
    with document.models.freeze():  # Otherwise Bokeh goes through all models again with each plot.
        for item in items:
            document.add_root(item)
    return document.to_json(deferred=False)


def new_plot(title: str, x_label: str, height: int, along: str = "both") -> Any:
    """Return a plot that can be moved and zoomed `along` both axes, or along its "width" alone.

    Plots along the width are stacked: their frames are equally wide, however long the numbers beside them are.
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
    """Add a legend above the plot. Its items are (text, renderers). A click on an item hides its renderers."""
    legend = Legend(
        items=[(label, list(renderers)) for label, renderers in items], orientation="horizontal", ncols="auto",
        click_policy="hide", background_fill_alpha=0, border_line_color=None, label_text_color=WORDS,
        label_text_font=FONT, label_text_font_size="12px", padding=0, margin=2, spacing=14,
    )  # fmt: skip
    plot.add_layout(legend, "above")


def mark(plot: Any, at: float, dash: str, width: float = 1, alpha: float = 0.7) -> None:
    """Draw a vertical line at a place on the x axis."""
    plot.add_layout(
        Span(location=at, dimension="height", line_color=GRAY, line_alpha=alpha, line_width=width, line_dash=dash)
    )


def histogram(values: Array, title: str, unit: str, noun: str, color: str) -> Any:
    """Draw the distribution of values, with a line at their median. The last bar has the largest half percent."""
    plot = new_plot(title, unit, height=260)
    counts, edges = binned(values)
    plot.quad(
        left=edges[:-1], right=edges[1:], bottom=0, top=100 * counts / len(values), color=color, fill_alpha=0.75,
        line_color=None,
    )  # fmt: skip
    mark(plot, float(np.median(values)), "6 3", width=2, alpha=1)
    plot.y_range.start = 0
    plot.yaxis.axis_label = f"% of {noun}"
    tooltips = [("from", f"@left{{0.00}} {unit}"), ("to", f"@right{{0.00}} {unit}"), (noun, "@top{0.0}%")]
    plot.add_tools(HoverTool(tooltips=tooltips))
    return plot


def binned(values: Array) -> tuple[Array, Array]:
    """Return counts and edges of bins up to the 99.5th percentile. Higher values count in the last bin."""
    top = float(np.percentile(values, 99.5)) or 1.0
    counts, edges = np.histogram(np.minimum(values, top), bins=min(50, max(8, len(values) // 8)))
    return counts.astype(float), edges


def outlines(
    title: str, values: Mapping[str, Array], looks: Iterable[tuple[str, str]], height: int, is_filled: bool = False
) -> Any:
    """Draw distributions of times of steps, in ms, over the same bins, as outlines that can be told apart.

    `values` are named as in the legend, and `looks` has color and dash of each. `is_filled` tints the areas below.
    """
    plot = new_plot(title, "ms", height)
    _, edges = binned(np.concatenate([*values.values()]))
    items = []
    for (name, each), (color, dash) in zip(values.items(), looks, strict=True):
        # Values above the last edge count in the last bin, as in `binned`.
        counts, _ = np.histogram(np.minimum(each, edges[-1]), bins=edges)
        # A curve of steps needs a value at the last edge, too.
        share = np.append(100 * counts / len(each), 0)
        fill = {"fill_color": color, "fill_alpha": 0.15}
        area = [plot.varea_step(edges, 0, share, step_mode="after", **fill)] if is_filled else []
        line = plot.step(edges, share, mode="after", color=color, line_width=2, line_dash=dash)
        items.append((name, [line, *area]))
    plot.y_range.start = 0
    plot.yaxis.axis_label = "% of steps"
    add_legend(plot, items)
    return plot


def time_unit(span: float) -> tuple[str, float]:
    """Return the unit for an axis of so many seconds, and the seconds of the unit."""
    if span < 180:
        return "s", 1.0
    return ("min", 60.0) if span < 3 * 3600 else ("h", 3600.0)


def format_count(number: int, noun: str) -> str:
    """Write a number with a noun: 1 epoch, 2 epochs."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
