"""The figure that says how far a model's probabilities can be believed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d

from pipeline.report.drawing import BLUE, GRAY, PURPLE, VERMILION, Figure, add_legend, new_plot


def reliability(evaluation: Mapping[str, Any]) -> Figure:
    """Draw how often the model was right, and the share of the examples, by its confidence."""
    columns = _reliability_columns(evaluation)
    confidence, accuracy = _mean(columns, "confidence"), evaluation["figures"]["accuracy"]["value"]
    sure = "too confident" if confidence > accuracy else "not confident enough"
    sentence = (
        f"The mean confidence of the model was {confidence:.1%}, and {accuracy:.1%} of its predictions were correct: "
        f"on the whole, it is {sure}. If a bar ends below the dashed line, the model was too confident in such "
        f"predictions; above the line, it was not confident enough. {_error_sentence(evaluation)}"
    )
    return _figure(columns, "Accuracy", "Examples", sentence)


def reliability_of_labels(evaluation: Mapping[str, Any]) -> Figure:
    """Draw how often a label was there, and the share of the answers, by its probability."""
    columns = _reliability_columns(evaluation)
    predicted, actual = _mean(columns, "confidence"), _mean(columns, "accuracy")
    often = "too often" if predicted > actual else "too rarely"
    sentence = (
        f"The labels of an image had a mean probability of {predicted:.1%}, and {actual:.1%} of them were correct: on "
        f"the whole, the model predicts labels {often}. If a bar ends below the dashed line, labels with such a "
        f"probability were correct less often than predicted; above the line, more often. {_error_sentence(evaluation)}"
    )
    return _figure(columns, "Correct labels", "Answers", sentence)


def reliability_of_second_class(evaluation: Mapping[str, Any]) -> Figure:
    """Draw how often the row had the second of two classes, and the share of the rows, by the probability of it."""
    columns, name = _reliability_columns(evaluation), evaluation["classes"][1]["name"]
    predicted, actual = _mean(columns, "confidence"), _mean(columns, "accuracy")
    high = "too high" if predicted > actual else "too low"
    sentence = (
        f"The mean probability of {name!r} was {predicted:.1%}, and {actual:.1%} of the rows have this class: on the "
        f"whole, its probability is {high}. If a bar ends below the dashed line, the class was rarer in rows with such "
        f"a probability than predicted; above the line, it was more frequent. {_error_sentence(evaluation)}"
    )
    return _figure(columns, "Share of the class", "Rows", sentence)


def _reliability_columns(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    # An empty bin has no accuracy to draw.
    bins = [row for row in evaluation["reliability"] if row["count"]]
    names = ("low", "high", "confidence", "accuracy", "count")
    columns = {name: np.array([row[name] for row in bins]) for name in names}
    return {**columns, "share": 100 * columns["count"] / columns["count"].sum()}


def _mean(columns: Mapping[str, Any], name: str) -> float:
    """Return the mean of a column over the examples."""
    return float(np.average(columns[name], weights=columns["count"]))


def _error_sentence(evaluation: Mapping[str, Any]) -> str:
    error, baseline = (evaluation["figures"]["calibration_error"][name] for name in ("value", "baseline"))
    if error is None or baseline is None:
        return "Some probabilities are no numbers."
    return (
        f"The expected calibration error, {error:.1%}, is the mean distance from the line, without what chance adds to "
        f"it. A calibrated model has {baseline:.1%} on average with as many examples."
    )


def _figure(columns: Mapping[str, Any], accuracy: str, share: str, sentence: str) -> Figure:
    """Return the figure with its plots, which have the titles `accuracy` and `share`."""
    correct = _by_confidence(columns, accuracy, "accuracy", BLUE)
    diagonal = correct.line([0, 1], [0, 1], color=GRAY, line_width=2, line_dash="6 3")
    dots = correct.scatter(columns["confidence"], columns["accuracy"], color=VERMILION, size=7, marker="diamond")
    add_legend(correct, [("mean confidence of the bar", [dots]), ("confidence = accuracy", [diagonal])])
    correct.y_range = Range1d(0, 1.02)
    correct.yaxis.formatter = NumeralTickFormatter(format="0%")
    shares = _by_confidence(columns, share, "share", PURPLE)
    shares.y_range.start = 0
    shares.yaxis.axis_label = f"% of {share.lower()}"
    return Figure("reliability", "Reliability", sentence, (correct, shares))


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
