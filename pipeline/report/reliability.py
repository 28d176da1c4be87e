"""The figure that says how far a model's probabilities can be believed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d

from pipeline.report.drawing import BLUE, GRAY, PURPLE, VERMILION, Figure, add_legend, new_plot


def reliability(evaluation: Mapping[str, Any]) -> Figure:
    """Draw how often the model was right, and the share of the examples, by its confidence."""
    columns = _reliability_columns(evaluation)
    plots = [_accuracy_by_confidence(columns, "Accuracy"), _share_by_confidence(columns, "Examples")]
    confidence = float(np.average(columns["confidence"], weights=columns["count"]))
    accuracy, error = (evaluation["figures"][name]["value"] for name in ("accuracy", "calibration_error"))
    sure = "surer than it should be" if confidence > accuracy else "less sure than it could be"
    sentence = (
        f"The model gave its answers a probability of {confidence:.1%} on average and was right in {accuracy:.1%}: on "
        f"the whole it is {sure}. Where a bar ends below the dashed line, it was too sure of such answers, and above "
        f"it not sure enough; the expected calibration error, {error:.1%}, is the mean distance from it."
    )
    return Figure("reliability", "Reliability", sentence, tuple(plots))


def reliability_of_labels(evaluation: Mapping[str, Any]) -> Figure:
    """Draw how often a label was there, and the share of the answers, by its probability."""
    columns = _reliability_columns(evaluation)
    plots = [_accuracy_by_confidence(columns, "Labels that were there"), _share_by_confidence(columns, "Answers")]
    predicted, actual = (
        float(np.average(columns[name], weights=columns["count"])) for name in ("confidence", "accuracy")
    )
    error = evaluation["figures"]["calibration_error"]["value"]
    often = "more often than they are there" if predicted > actual else "less often than they are there"
    sentence = (
        f"The model gave a label of an image a probability of {predicted:.1%} on average, and {actual:.1%} of them "
        f"were there: on the whole it expects labels {often}. Where a bar ends below the dashed line, labels of such a "
        f"probability were there less often than it said, and above it more often; the expected calibration error, "
        f"{error:.1%}, is the mean distance from it."
    )
    return Figure("reliability", "Reliability", sentence, tuple(plots))


def _reliability_columns(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    # An empty bin has no accuracy to draw.
    bins = [row for row in evaluation["reliability"] if row["count"]]
    columns = {name: np.array([row[name] for row in bins]) for name in ("low", "high", "confidence", "accuracy")}
    columns["count"] = np.array([row["count"] for row in bins])
    columns["share"] = 100 * columns["count"] / columns["count"].sum()
    return columns


def _accuracy_by_confidence(columns: Mapping[str, Any], title: str) -> Any:
    plot = _by_confidence(columns, title, "accuracy", BLUE)
    diagonal = plot.line([0, 1], [0, 1], color=GRAY, line_width=2, line_dash="6 3")
    dots = plot.scatter(columns["confidence"], columns["accuracy"], color=VERMILION, size=7, marker="diamond")
    add_legend(plot, [("mean confidence of the bar", [dots]), ("confidence = accuracy", [diagonal])])
    plot.y_range = Range1d(0, 1.02)
    plot.yaxis.formatter = NumeralTickFormatter(format="0%")
    return plot


def _share_by_confidence(columns: Mapping[str, Any], title: str) -> Any:
    plot = _by_confidence(columns, title, "share", PURPLE)
    plot.y_range.start = 0
    plot.yaxis.axis_label = f"% of {title.lower()}"
    return plot


def _by_confidence(columns: Mapping[str, Any], title: str, top: str, color: str) -> Any:
    plot, source = new_plot(title, "confidence", height=280), ColumnDataSource(dict(columns))
    bars = plot.quad(
        left="low", right="high", bottom=0, top=top, source=source, color=color, fill_alpha=0.6, line_color=None
    )
    plot.x_range = Range1d(0, 1)
    plot.xaxis.formatter = NumeralTickFormatter(format="0%")
    tooltips = ("confidence", "@confidence{0.0%}"), ("accuracy", "@accuracy{0.0%}"), ("examples", "@count{0,0}")
    plot.add_tools(HoverTool(renderers=[bars], tooltips=list(tooltips)))
    return plot
