"""The page that lays two runs side by side: one HTML file, with both on the same axes."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas

from pipeline.evaluation.best_epoch import epoch_metric
from pipeline.evaluation.estimates import INTERVAL_PERCENT
from pipeline.monitor.diagnosis import is_steady, seconds_by_part, three_digits
from pipeline.report.compare import Comparison, cells
from pipeline.report.components import Table, text
from pipeline.report.drawing import BLUE, VERMILION, Figure, outlines
from pipeline.report.figures import Line, learning_figure, shares_of_a_second
from pipeline.report.page import page_of
from pipeline.report.utilization import busy_line, busy_panel, can_draw
from pipeline.runs.recorded_run import RecordedRun

NAMES = ("A", "B")
_LOOKS = ((BLUE, "circle"), (VERMILION, "diamond"))
Runs = tuple[RecordedRun, RecordedRun]


def render(runs: Runs, places: Sequence[str], comparison: Comparison) -> str:
    """Return the page as HTML that loads nothing from anywhere. `places` are the folders of the runs."""
    drawn = [learning(runs), time_spent(runs), times(runs), busy(runs)]
    return page_of(
        "compare.html.j2",
        drawn,
        runs=[
            (name, str(run.files.run.get("run_id", "")), place)
            for name, run, place in zip(NAMES, runs, places, strict=True)
        ],
        verdict=comparison.verdict,
        table=table(comparison),
        differing=differing(comparison),
        figures=drawn,
    )


def table(comparison: Comparison) -> Table:
    """Return all figures of both runs as a table."""
    head = ("figure", *NAMES, "B minus A", f"{INTERVAL_PERCENT}% interval of that")
    return Table(head, [cells(row) for row in comparison.rows], comparison.note)


def differing(comparison: Comparison) -> Table | None:
    """Return settings and other facts that differ as a table; None if none does."""
    rows = [(name, *map(text, values)) for name, values in comparison.differing.items()]
    return Table(("", *NAMES), rows) if rows else None


def learning(runs: Runs) -> Figure:
    """Draw loss and accuracy (or mean absolute error) of both runs by epoch."""
    metric = epoch_metric([str(column) for run in runs for column in run.epochs])
    if not any("loss" in run.epochs for run in runs):
        return learning_figure("No epoch was completed, so there is nothing to show.", metric)
    sentence = "Solid lines show the training examples, dashed lines the validation examples."
    return learning_figure(sentence, metric, partial(_lines, runs))


def _lines(runs: Runs, quantity: str) -> list[Line]:
    return [
        Line(f"{name} {split}", run.epochs, column, color, dash, marker)
        for name, run, (color, marker) in zip(NAMES, runs, _LOOKS, strict=True)
        for split, column, dash in (("training", quantity, "solid"), ("validation", f"val_{quantity}", "6 3"))
    ]


def time_spent(runs: Runs) -> Figure:
    """Draw how a second of each training was spent."""
    name, title = "spent", "Where the time went"
    seconds = {name: seconds_by_part(run.steps[0], run.epochs) for name, run in zip(NAMES, runs, strict=True)}
    known = {name: each for name, each in seconds.items() if sum(each.values())}
    if not known:
        return Figure(name, title, "No step was recorded, so there is nothing to show.")
    together = " and ".join(f"{three_digits(sum(each.values()))} s in {name}" for name, each in known.items())
    sentence = f"How an average second of each training was spent, all steps included. In total: {together}."
    return Figure(name, title, sentence, (shares_of_a_second(known),), is_stacked=True)


def times(runs: Runs) -> Figure:
    """Draw the distributions of the times of the steady steps and of their data waits."""
    name, title = "times", "How long a batch takes"
    steady = [is_steady(run.judged) for run in runs]
    if min(each.sum() for each in steady) < 2:
        return Figure(name, title, "Fewer than two steady steps were recorded, so there is no distribution to show.")
    looks = ((BLUE, "solid"), (VERMILION, "6 3"))
    plots = []
    for column, title_of in (("step/time_ms", "Time of a step"), ("input/wait_ms", "Data wait of a step")):
        values = {
            name: np.asarray(run.judged[column], dtype=float)[each]
            for name, run, each in zip(NAMES, runs, steady, strict=True)
        }
        plots.append(outlines(title_of, values, looks, height=260, is_filled=True))
    plots[1].x_range.start = 0
    sentence = "In percent of each run's steady steps. The last bar contains the slowest half percent."
    return Figure(name, title, sentence, tuple(plots))


def busy(runs: Runs) -> Figure:
    """Draw how busy the GPUs of each run were over its own time, or the processor if there is no GPU."""
    name, title = "busy", "Utilization over time"
    lines = {name: busy_line(run.servers[0]) for name, run in zip(NAMES, runs, strict=True) if can_draw(run.servers[0])}
    if not lines:
        return Figure(name, title, "No samples were recorded, so there is nothing to show.")
    lines = {name: line.moved_by(-line.seconds[0]) for name, line in lines.items()}
    means = ", ".join(f"{name} {np.nanmean(line.values):.0f}%" for name, line in lines.items())
    panel = busy_panel("GPU, or processor if there is no GPU (%)", lines, pandas.DataFrame({"time": []}))
    return Figure(name, title, f"On average over the run: {means}.", (panel,), is_stacked=True)
