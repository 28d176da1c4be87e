"""The figure that shows the predictions of a regression: against the true values, and their residuals."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d

from pipeline.evaluation.scales import four_digits
from pipeline.report.drawing import BLUE, GRAY, NUMBER, PURPLE, Figure, add_legend, mark, new_plot
from pipeline.report.series import Array

MIN_ALPHA = 0.15
"""Opacity of a cell with a single row. A fainter one could not be seen."""
MAX_TICKS = 5
"""Long numbers would overlap if there were more of them below a plot."""
MIN_SPAN, MAX_SIZE = 1e-3, 1e9
"""Numbers of an axis are written in full if it is longer, and all are smaller. Otherwise they have an exponent."""


def regression_figure(evaluation: Mapping[str, Any]) -> Figure:
    """Draw how often each true value had each predicted value, and the distribution of the residuals."""
    residuals = evaluation["residuals"]
    mean, median, p95 = (residuals[name] for name in ("mean", "median_absolute", "p95_absolute"))
    side = "too high" if mean > 0 else "too low"
    bias = f"{four_digits(abs(mean))} {side}" if mean else "neither too high nor too low"
    sentence = (
        f"On average, the predictions are {bias}. Half of the errors are below {four_digits(median)}, and 95% are "
        f"below {four_digits(p95)}. A cell on the dashed line has correct predictions; above the line, they are too "
        "high. Rows outside the axes count in the outermost cells and bars."
    )
    plots = (_predicted_by_true(evaluation["values"]), _residuals(residuals, evaluation["examples"]))
    return Figure("regression", "Predicted and true values", sentence, plots)


def _predicted_by_true(values: Mapping[str, Any]) -> Any:
    edges = np.array(values["edges"])
    label, predicted, count = np.array(values["cells"]).T
    source = ColumnDataSource(
        {
            "left": edges[label],
            "right": edges[label + 1],
            "bottom": edges[predicted],
            "top": edges[predicted + 1],
            "true": [_between(edges, number) for number in label],
            "predicted": [_between(edges, number) for number in predicted],
            "count": count,
            # By the root, because the counts of cells differ by orders of magnitude.
            "alpha": MIN_ALPHA + (1 - MIN_ALPHA) * np.sqrt(count / count.max()),
        }
    )
    plot = new_plot("Predicted by true value", "true value", height=340)
    cells = plot.quad(
        left="left", right="right", bottom="bottom", top="top", source=source, color=BLUE, fill_alpha="alpha",
        line_color=None,
    )  # fmt: skip
    ends = [edges[0], edges[-1]]
    diagonal = plot.line(ends, ends, color=GRAY, line_width=2, line_dash="6 3")
    add_legend(plot, [("rows, a stronger color for more", [cells]), ("predicted = true", [diagonal])])
    plot.x_range, plot.y_range = Range1d(*ends), Range1d(*ends)
    plot.yaxis.axis_label = "predicted value"
    _write_numbers(plot.xaxis, edges)
    _write_numbers(plot.yaxis, edges)
    tooltips = ("true", "@true"), ("predicted", "@predicted"), ("rows", "@count{0,0}")
    plot.add_tools(HoverTool(renderers=[cells], tooltips=list(tooltips)))
    return plot


def _residuals(residuals: Mapping[str, Any], examples: int) -> Any:
    edges, counts = np.array(residuals["edges"]), np.array(residuals["counts"])
    source = ColumnDataSource(
        {
            "left": edges[:-1],
            "right": edges[1:],
            "residual": [_between(edges, number) for number in range(len(counts))],
            "share": 100 * counts / examples,
            "count": counts,
        }
    )
    plot = new_plot("Residuals", "predicted minus true value", height=340)
    bars = plot.quad(
        left="left", right="right", bottom=0, top="share", source=source, color=PURPLE, fill_alpha=0.6, line_color=None
    )
    mark(plot, 0, "6 3", width=2, alpha=1)
    plot.y_range.start = 0
    plot.yaxis.axis_label = "% of rows"
    _write_numbers(plot.xaxis, edges)
    tooltips = ("residual", "@residual"), ("rows", "@count{0,0}")
    plot.add_tools(HoverTool(renderers=[bars], tooltips=list(tooltips)))
    return plot


def _between(edges: Array, number: int) -> str:
    """Return the ends of an interval as text."""
    return f"{four_digits(edges[number])} to {four_digits(edges[number + 1])}"


def _write_numbers(axis: Any, edges: Array) -> None:
    """Write the numbers of an axis that has these edges so that they do not overlap."""
    axis.ticker.desired_num_ticks = MAX_TICKS
    if edges[-1] - edges[0] > MIN_SPAN and np.abs(edges).max() < MAX_SIZE:
        axis.formatter = NumeralTickFormatter(format=NUMBER)
    else:
        axis.formatter.precision = 2
