"""The page of a comparison of inputs: one HTML file, with the article's figures for each contender."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.models import HoverTool

from pipeline.monitor import read
from pipeline.monitor.diagnosis import percent, three_digits
from pipeline.monitor.load import is_of_load
from pipeline.monitor.thinned import read_samples
from pipeline.report.components import Table, fact_tables
from pipeline.report.drawing import BLUE, GRAY, GREEN, ORANGE, PURPLE, VERMILION, Figure, new_plot, outlines
from pipeline.report.page import page_of, spread_cells
from pipeline.report.utilization import busy_line, busy_panel, can_draw
from pipeline.storage import write_json, write_whole
from pipeline.tuning.contenders import ACCELERATORS, CONTENDERS
from pipeline.tuning.measurement import (
    PAGE,
    RESULT,
    Comparison,
    Measurement,
    Turn,
    load_comparison,
    load_measurement,
    turn_folder,
    turns,
)
from pipeline.tuning.result import Result, estimate_text, load_result, steady_ms

_COLORS = (GRAY, VERMILION, BLUE, GREEN, PURPLE, ORANGE)
_DASHES = ("solid", "6 3", "solid", "6 3", "2 2", "8 3 2 3")
_LOOKS = dict(zip(CONTENDERS, zip(_COLORS, _DASHES, strict=True), strict=True))
"""Color and dash of each contender in all figures."""
Found = Sequence[tuple[Turn, Measurement]]


def write(folder: Path) -> dict[str, Any]:
    """Write result and page, and return what `compare-inputs --json` prints. Raises OSError if it cannot write them."""
    comparison = load_comparison(folder)
    result = load_result(folder, comparison)
    content = {**result.as_json(), "comparison": str(folder), "page": str(folder / PAGE)}
    write_json(folder / RESULT, content, indent=1)
    with write_whole(folder / PAGE) as file:
        file.write(render(folder, comparison, result).encode("utf-8", "backslashreplace"))
    return content


def render(folder: Path, comparison: Comparison, result: Result) -> str:
    """Return the page as HTML that loads nothing from anywhere."""
    names = [row.name for row in result.rows]
    found = [
        (turn, measured)
        for turn in turns(comparison.options)
        if turn.contender in names and isinstance(measured := load_measurement(turn_folder(folder, turn)), Measurement)
    ]
    drawn = [utilization(folder, found), times(folder, found)]
    settings = comparison.settings
    return page_of(
        "inputs.html.j2",
        drawn,
        dataset=str(settings.get("dataset_name", "")),
        model=f"{settings['model']}, {settings['image_size']} pixels, batches of {settings['batch_size']}",
        verdict=result.verdict,
        table=table(result),
        alone=alone(result),
        what=Table(
            ("input", "what an image goes through"), [(row.title, CONTENDERS[row.name].what) for row in result.rows]
        ),
        left_out=[f"{CONTENDERS[each.contender].title}: left out, because {each.why}." for each in result.left_out],
        notes=result.notes,
        figures=drawn,
        facts=fact_tables(
            {
                "Options": comparison.options.model_dump(),
                "Settings": settings,
                "Host": comparison.host,
                "Datasets": comparison.datasets,
            }
        ),
    )


def table(result: Result) -> Table:
    """Return the times of epochs and batches of all contenders."""
    head = (
        *("input", "images/s (95% interval)", "ratio (95% interval)", "data wait", "first epoch"),
        *(f"{what} {name}" for what in ("epoch", "step") for name in ("mean", "median", "std", "p95")),
        *("CPU use", "GPU use", "cores of other programs"),
    )
    rows = [
        (
            row.title,
            estimate_text(row.examples_per_s),
            estimate_text(row.ratio),
            percent(row.wait_fraction),
            f"{three_digits(row.first_epoch_s)} s",
            *spread_cells(row.epoch_s, "s"),
            *spread_cells(row.step_ms, "ms"),
            *("-" if each is None else f"{each:.0f}%" for each in (row.cpu_pct, row.gpu_pct)),
            "-" if row.other_cores is None else f"{row.other_cores:.1f}",
        )
        for row in result.rows
    ]
    epochs = (
        "The first epoch reads from the disk. It has its own column, and no other time or rate contains it."
        if result.epochs > 1
        else "There is only one epoch, and it reads from the disk."
    )
    note = (
        f"Values are over {result.rounds} rounds. {epochs} A step on a batch that is already in memory takes "
        f"{three_digits(result.step_alone_ms)} ms."
    )
    return Table(head, rows, note)


def alone(result: Result) -> Table:
    """Return the rates of the inputs without a model, and how many accelerators each can feed."""
    head = (
        "input alone",
        "rate from the disk",
        "rate from memory",
        *(f"{each.title}s with {each.model} fed from the disk / memory" for each in ACCELERATORS.values()),
    )
    rows = [
        (
            row.title,
            f"{three_digits(row.cold_per_s)} images/s",
            f"{three_digits(row.warm_per_s)} images/s",
            *(f"{row.cold_accelerators[name]:.2g} / {row.accelerators[name]:.2g}" for name in ACCELERATORS),
        )
        for row in result.rows
    ]
    rates = "; ".join(
        f"{each.title} with {each.model} {each.per_s:,.0f} ({each.source})" for each in ACCELERATORS.values()
    )
    note = (
        f"The accelerators take images at these rates per second: {rates}. The rates of the inputs are those of your "
        "images at your image size."
    )
    return Table(head, rows, note)


def utilization(folder: Path, found: Found) -> Figure:
    """Draw how busy the accelerator, or the processor, was with each contender in the first round."""
    name, title = "utilization", "Utilization over time"
    panels = []
    for turn, _ in found:
        if turn.round:
            continue
        record = turn_folder(folder, turn) / "record"
        samples = read_samples(record, is_of_load)
        if can_draw(samples):
            line = {CONTENDERS[turn.contender].title: busy_line(samples)}
            panels.append(busy_panel(f"{CONTENDERS[turn.contender].title} (%)", line, read(record, "epochs")))
    if not panels:
        return Figure(name, title, "No samples were recorded, so there is nothing to show.")
    sentence = (
        "Use of the GPU, or of the processor if there is no GPU, in the first round. The strong line is smoothed, and "
        "the pale line behind it is raw. Dotted lines mark the ends of epochs. Each panel has its own time axis."
    )
    return Figure(name, title, sentence, tuple(panels), is_stacked=True)


def times(folder: Path, found: Found) -> Figure:
    """Draw the distributions of the times of batches and epochs of all contenders."""
    steps: dict[str, list[Any]] = {}
    epochs: dict[str, list[float]] = {}
    for turn, measured in found:
        batches = read(turn_folder(folder, turn) / "record", "batches")
        steps.setdefault(turn.contender, []).append(steady_ms(batches))
        epochs.setdefault(turn.contender, []).extend(measured.epoch_s[1:] or measured.epoch_s)
    times_of = {CONTENDERS[name].title: np.concatenate(each) for name, each in steps.items()}
    batch_plot = outlines("Time of a step", times_of, [_LOOKS[name] for name in steps], height=300)
    batch_plot.legend.ncols = 3  # In one row, six contenders are wider than this plot.
    epoch_plot = _epochs({name: np.asarray(each) for name, each in epochs.items()})
    sentence = (
        "Steps of all rounds, without the first step of each epoch. The last bin also holds the slowest half percent. "
        "Each dot is an epoch after the first one, or the only epoch."
    )
    return Figure("times", "Times of steps and epochs", sentence, (batch_plot, epoch_plot))


def _epochs(values: Mapping[str, Any]) -> Any:
    """Draw each epoch as a dot, one line of dots for each contender, with a mark at the mean."""
    names = list(reversed(list(values)))  # The first contender is at the top.
    plot = new_plot("Time of an epoch", "s", height=300)
    for place, name in enumerate(names):
        each, (color, _) = values[name], _LOOKS[name]
        plot.scatter(each, np.full(len(each), place), color=color, size=8, fill_alpha=0.4, name=CONTENDERS[name].title)
        plot.scatter([each.mean()], [place], color=color, size=16, marker="dash", line_width=3, angle=np.pi / 2)
    plot.yaxis.ticker = list(range(len(names)))
    plot.yaxis.major_label_overrides = {place: CONTENDERS[name].title for place, name in enumerate(names)}
    plot.x_range.start = 0
    plot.add_tools(HoverTool(tooltips=[("epoch of", "$name"), ("time", "@x{0.00} s")]))
    return plot
