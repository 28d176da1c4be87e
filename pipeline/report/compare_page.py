"""The page that compares runs: one HTML file, with all runs on the same axes, each of which can be switched off."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import pandas
from bokeh.models import HoverTool, Legend, NumeralTickFormatter, Range1d

from pipeline.config.declarations import ChangesStep
from pipeline.config.settings import declared
from pipeline.evaluation.answers import Metric
from pipeline.evaluation.best_epoch import best_epoch, epoch_metric
from pipeline.evaluation.metrics import figures_in
from pipeline.monitor.diagnosis import three_digits
from pipeline.report.compare import LETTERS, Comparison, names_of
from pipeline.report.compare_words import MAX_NAMED, cells, head, lead_text, note, paragraphs
from pipeline.report.compared_run import MEASURES, SPEED, TIMES, ComparedRun
from pipeline.report.components import Table, text
from pipeline.report.drawing import BLUE, GREEN, ORANGE, PURPLE, VERMILION, Figure, new_plot, outlines, time_unit
from pipeline.report.figures import MAX_EPOCHS, SIMULATED, shares_of_a_second
from pipeline.report.page import page_of
from pipeline.report.utilization import WHOLE
from pipeline.system.wording import range_text

_COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE)
_DASHES = ("solid", "6 3", "2 2", "8 3 2 3")
_MAX_FILLED = 3
"""The areas of more distributions would hide each other."""
_WAIT = MEASURES[-1]


class Named(NamedTuple):
    """Where a run is, as the page says it."""

    place: str
    """The folder of the run, or the DAG that it is a run of."""
    address: str = ""
    """The address of its own page, if the page can lead there."""


class Cell(NamedTuple):
    """A cell of the table of results."""

    text: str
    below: str = ""


@dataclass(frozen=True)
class Result:
    """A run in the table of results."""

    letter: str
    run_id: str
    named: Named
    color: str
    dash: str
    badges: tuple[str, ...]
    cells: tuple[Cell, ...]


def render(
    comparison: Comparison, named: Sequence[Named], left_out: Sequence[str] = (), reload_s: int | None = None
) -> str:
    """Return the page as HTML that loads nothing from anywhere.

    Args:
        comparison: The runs.
        named: Where each run is.
        left_out: Why other runs are not compared.
        reload_s: The page loads itself again after this many seconds; None for a page that stays as it is.
    """
    runs = comparison.runs
    drawn = [learning(comparison), speed(runs), time_spent(runs), times(runs), busy(runs)]
    return page_of(
        "compare.html.j2",
        drawn,
        runs=[result(comparison, number, named[number]) for number in range(len(runs))],
        order=_order(comparison),
        verdict=paragraphs(comparison),
        left_out=left_out,
        reload_s=reload_s,
        result_head=result_head(comparison),
        groups=groups(comparison),
        has_groups=bool(comparison.groups),
        differing=[
            (name, name in declared(ChangesStep), ["-" if each is None else text(each) for each in values])
            for name, values in comparison.differing.items()
        ],
        figures=drawn,
        table=Table(head(len(runs)), [cells(row) for row in comparison.rows], note(comparison)),
    )


def _order(comparison: Comparison) -> list[int]:
    """Return the numbers of the runs, the best one first, and those without a rank last."""
    ranking = comparison.quality or comparison.speed
    return [*dict.fromkeys((*(ranking.order if ranking else ()), *range(len(comparison.runs))))]


def result_head(comparison: Comparison) -> tuple[str, ...]:
    """Return the head of the table of results."""
    scored = [comparison.metric.title, "against the best"] if comparison.metric else []
    return ("run", *scored, "best validation", SPEED.name, "of the fastest", "data wait")


def result(comparison: Comparison, number: int, named: Named) -> Result:
    """Return what the table of results shows of a run."""
    run, (color, dash) = comparison.runs[number], look_of(number)
    found = (*_scored_cells(comparison, number), _best_cell(run), *_speed_cells(comparison, number))
    badges = (*_badges(comparison, number), *_states(run))
    return Result(LETTERS[number], run.run_id, named, color, dash, badges, found)


def _badges(comparison: Comparison, number: int) -> Iterator[str]:
    for ranking, name in ((comparison.quality, "best model"), (comparison.speed, "fastest")):
        if ranking and ranking.best == number:
            yield name if ranking.is_sure else f"{name}, not sure"


def _scored_cells(comparison: Comparison, number: int) -> Iterator[Cell]:
    metric, ranking = comparison.metric, comparison.quality
    if metric is None:
        return
    figures = figures_in(comparison.runs[number].evaluation)
    figure = next((each for each in figures if each.metric is metric and number in comparison.scores), None)
    yield Cell(figure.value_text, figure.interval_text) if figure else Cell("-")
    yield _against_best(metric, comparison, number) if ranking and figure else Cell("-")


def _against_best(metric: Metric, comparison: Comparison, number: int) -> Cell:
    ranking = comparison.quality
    assert ranking is not None
    if number == ranking.best:
        return Cell("best")
    if number not in ranking.leads:
        return Cell("-", "not comparable")
    return Cell(
        lead_text(metric, ranking.leads[number]), "surely worse" if number in ranking.beaten else "may be as good"
    )


def _best_cell(run: ComparedRun) -> Cell:
    best = None if run.is_simulated else best_epoch(run.epochs)
    return Cell(best.text, f"epoch {best.epoch}") if best else Cell("-")


def _speed_cells(comparison: Comparison, number: int) -> Iterator[Cell]:
    run, ranking = comparison.runs[number], comparison.speed
    if SPEED not in run.measures:
        yield from (Cell("-"),) * 3
        return
    yield Cell(three_digits(run.measures[SPEED].value))
    yield _against_fastest(comparison, number) if ranking else Cell("-")
    yield Cell(f"{run.measures[_WAIT].value:.1f}%")


def _against_fastest(comparison: Comparison, number: int) -> Cell:
    ranking = comparison.speed
    assert ranking is not None
    if number == ranking.best or number not in ranking.leads:
        return Cell("100%" if number == ranking.best else "-")
    lead, *ends = (1 + each for each in ranking.leads[number])
    is_known = all(isfinite(each) and each > 0 for each in ends)
    interval = " to ".join(_percent_of(1 / each) for each in reversed(ends)) if is_known else "unknown"
    return Cell(_percent_of(1 / lead), interval)


def _percent_of(ratio: float) -> str:
    """Write a ratio of two speeds as 97.2%, or as 114%."""
    return f"{ratio:.1%}" if ratio < 0.9995 else f"{ratio:.0%}"


def _states(run: ComparedRun) -> Iterator[str]:
    """Yield what else a reader must know of a run."""
    if run.is_simulated:
        yield "simulated steps"
    if not run.files.is_complete:
        of = f" of {run.files.epochs}" if run.files.epochs else ""
        yield f"after {int(run.epochs['step'].iloc[-1]) if len(run.epochs) else 0}{of} epochs"


def groups(comparison: Comparison) -> Table | None:
    """Return the groups of runs with equal settings as a table; None if there are none with scores."""
    metric, ranking = comparison.metric, comparison.quality_of_groups
    if metric is None:
        return None
    rows = []
    for number, group in enumerate(comparison.groups):
        if group.scores:
            mean, low, high = (metric.text(float(of(group.scores))) for of in (np.mean, min, max))
            against = ""
            if ranking and number == ranking.best:
                against = "best"
            elif ranking and number in ranking.leads:
                against = lead_text(metric, ranking.leads[number])
            rows.append((group.letters, str(len(group.scores)), mean, range_text(low, high), against or "-"))
    heads = ("runs", "seeds", f"mean {metric.title}", "lowest to highest", "against the best, with its 95% interval")
    return Table(heads, rows) if rows else None


def _listed(values: Mapping[str, float], text_of: Callable[[float], str]) -> str:
    """Return the values of runs as a part of a sentence, of many only the lowest and the highest one."""
    if len(values) <= MAX_NAMED:
        return ", ".join(f"{name} {text_of(value)}" for name, value in values.items())
    low, high = (of(values, key=lambda name: values[name]) for of in (min, max))
    if text_of(values[low]) == text_of(values[high]):
        return f"{text_of(values[low])} in each of the {len(values)} runs"
    return f"from {text_of(values[low])} ({low}) to {text_of(values[high])} ({high})"


def look_of(number: int) -> tuple[str, str]:
    """Return color and dash of the lines of a run. There are 20 different pairs."""
    return _COLORS[number % len(_COLORS)], _DASHES[number // len(_COLORS) % len(_DASHES)]


def _add_line(plot: Any, number: int, x: Any, y: Any, tag: str = "run", **look: Any) -> Any:
    """Draw a line of a run. The script of the page finds it by its tags."""
    color, dash = look_of(number)
    letter = LETTERS[number]
    look = {"line_width": 2, **look}
    return _tagged(plot.line(x, y, color=color, line_dash=dash, name=letter, **look), tag, letter)


def _tagged(renderer: Any, *tags: str) -> Any:
    """Return the renderer with tags. A function such as `plot.line` would give them to the glyph instead."""
    renderer.tags = list(tags)
    return renderer


def _add_tooltip(plot: Any, lines: Sequence[Any], *further: tuple[str, str]) -> None:
    plot.add_tools(HoverTool(renderers=list(lines), tooltips=[("run", "$name"), *further], mode="mouse"))


def learning(comparison: Comparison) -> Figure:
    """Draw loss and metric of all runs by epoch, and their means over seeds."""
    runs = comparison.runs
    metric = epoch_metric([str(column) for run in runs for column in run.epochs])
    name, title = "learning", f"Loss and {metric.title}"
    if not any("loss" in run.epochs for run in runs):
        is_simulated = any(len(run.epochs) for run in runs)
        return Figure(
            name, title, SIMULATED if is_simulated else "No epoch was completed, so there is nothing to show."
        )
    plots = [_by_epoch(comparison, "loss", "Loss"), _by_epoch(comparison, metric.key, metric.title.capitalize())]
    if metric.scale == "share":
        plots[1].yaxis.formatter = NumeralTickFormatter(format="0%")
    plots[1].x_range = plots[0].x_range
    sentence = "Thick lines show the validation examples, and thin pale lines the training examples."
    means = " A band reaches from the lowest to the highest run of a group." if comparison.groups else ""
    return Figure(name, title, sentence + means, tuple(plots))


def _by_epoch(comparison: Comparison, column: str, title: str) -> Any:
    plot = new_plot(title, "epoch", height=320)
    plot.xaxis.ticker.min_interval = 1
    plot.y_range.default_span, plot.y_range.only_visible = 0.2, True
    in_groups, lines = {each for group in comparison.groups for each in group.members}, []
    for number, run in enumerate(comparison.runs):
        tag = "member" if number in in_groups else "run"
        epochs = _few_epochs(run.epochs)
        if column in epochs:
            _add_line(plot, number, epochs["step"], epochs[column], tag, line_alpha=0.45, line_width=1)
        if f"val_{column}" in epochs:
            lines.append(_add_line(plot, number, epochs["step"], epochs[f"val_{column}"], tag, line_width=2.4))
            if len(epochs) <= 2:  # A line of one point would be invisible.
                dots = plot.scatter(epochs["step"], epochs[f"val_{column}"], color=look_of(number)[0], size=7)
                _tagged(dots, tag, LETTERS[number])
    for group in comparison.groups:
        lines += _add_group(plot, comparison, group.members, f"val_{column}")
    _add_tooltip(plot, lines, ("epoch", "$x{0}"), (title.lower(), "$y{0.0000}"))
    return plot


def _few_epochs(epochs: pandas.DataFrame) -> pandas.DataFrame:
    chosen = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), MAX_EPOCHS)).astype(int))
    return epochs.iloc[chosen]


def _add_group(plot: Any, comparison: Comparison, members: Sequence[int], column: str) -> list[Any]:
    """Draw the mean of a column over the runs of a group, and a band from the lowest to the highest value."""
    known = [comparison.runs[number].epochs for number in members]
    of_members = [each.set_index("step")[column] for each in known if column in each]
    if not of_members:
        return []
    values = _few_epochs(pandas.concat(of_members, axis=1, join="inner"))
    color, dash = look_of(members[0])
    shared: dict[str, Any] = {"name": f"mean of {names_of(members)}", "visible": False}
    epoch = values.index.to_numpy()
    band = plot.varea(epoch, values.min(axis=1), values.max(axis=1), fill_color=color, fill_alpha=0.18, **shared)
    mean = plot.line(epoch, values.mean(axis=1), color=color, line_dash=dash, line_width=3, **shared)
    letters = "".join(LETTERS[number] for number in members)
    _tagged(band, "group", letters)
    return [_tagged(mean, "group", letters)]


def speed(runs: Sequence[ComparedRun]) -> Figure:
    """Draw speed and data wait of all runs over the time since their start."""
    name, title = "speed", "Speed over time"
    if not any(len(run.speed) for run in runs):
        return Figure(name, title, "No steady step was recorded, so there is nothing to show.")
    tables = {number: run.speed for number, run in enumerate(runs) if len(run.speed)}
    plots = (
        _over_time("Examples a second", tables, "rate"),
        _over_time("Data wait (% of the step time)", tables, "wait"),
    )
    plots[1].x_range = plots[0].x_range
    return Figure(name, title, "The steady steps of each run, from its own start on.", plots)


def _over_time(title: str, tables: Mapping[int, pandas.DataFrame], column: str) -> Any:
    longest = max(float(each["seconds"].max()) for each in tables.values())
    unit, per_unit = time_unit(longest)
    plot = new_plot(title, f"time from the start of the run ({unit})", height=280)
    plot.x_range, plot.y_range.start, plot.y_range.only_visible = Range1d(0, longest / per_unit), 0, True
    lines = [_add_line(plot, number, each["seconds"] / per_unit, each[column]) for number, each in tables.items()]
    _add_tooltip(plot, lines, (title.lower(), "$y{0.0}"))
    return plot


def time_spent(runs: Sequence[ComparedRun]) -> Figure:
    """Draw how a second of each training was spent."""
    name, title = "spent", "Where the time went"
    known = {LETTERS[number]: run.seconds for number, run in enumerate(runs) if sum(run.seconds.values())}
    if not known:
        return Figure(name, title, "No step was recorded, so there is nothing to show.")
    together = _listed(
        {name: sum(each.values()) for name, each in known.items()}, lambda value: f"{three_digits(value)} s"
    )
    sentence = f"How an average second of each training was spent, all steps included. In total: {together}."
    return Figure(name, title, sentence, (shares_of_a_second(known),), is_stacked=True)


def times(runs: Sequence[ComparedRun]) -> Figure:
    """Draw the distributions of the times of the steady steps and of their data waits."""
    name, title = "times", "How long a batch takes"
    known = {number: run.quantiles for number, run in enumerate(runs) if run.quantiles}
    if not known:
        return Figure(name, title, "Fewer than two steady steps were recorded, so there is no distribution to show.")
    plots = []
    for column, title_of in TIMES.items():
        values = {LETTERS[number]: each[column] for number, each in known.items()}
        looks = [look_of(number) for number in known]
        plots.append(outlines(title_of, values, looks, height=280, is_filled=len(known) <= _MAX_FILLED))
        _tag_by_legend(plots[-1])
    plots[1].x_range.start = 0
    sentence = "In percent of each run's steady steps. The last bar contains the slowest half percent."
    return Figure(name, title, sentence, tuple(plots))


def _tag_by_legend(plot: Any) -> None:
    """Tag the lines of a plot with the letters of its legend, and remove the legend: the switches take its place."""
    for legend in [each for each in plot.above if isinstance(each, Legend)]:
        for item in legend.items:
            for renderer in item.renderers:
                _tagged(renderer, "run", item.label.value)
        plot.above.remove(legend)


def busy(runs: Sequence[ComparedRun]) -> Figure:
    """Draw how busy the GPUs of each run were over its own time, or the processor if there is no GPU."""
    name, title = "busy", "Utilization over time"
    tables = {number: run.busy for number, run in enumerate(runs) if run.busy is not None}
    if not tables:
        return Figure(name, title, "No samples were recorded, so there is nothing to show.")
    means = _listed({LETTERS[number]: each["busy"].mean() for number, each in tables.items()}, "{:.0f}%".format)
    panel = _over_time("GPU, or else processor (%)", tables, "busy")
    panel.y_range = Range1d(0, 1.03 * WHOLE)
    return Figure(name, title, f"On average over the run: {means}.", (panel,), is_stacked=True)
