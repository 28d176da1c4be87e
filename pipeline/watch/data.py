"""All that a page shows of a training, as JSON has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.watch.figures import frames
from pipeline.watch.status import load_told, status
from pipeline.watch.tables import Span
from pipeline.watch.view import Columns, columns, drawable, load_view, start_of


def data(training: Path, is_over: bool, after: float | None = None, span: Span | None = None) -> dict[str, Any]:
    """What a training says of itself, and its curves: in ``columns``, by the names of the sources of `drawn_frames`.

    All of the curves, or what comes ``after`` a time (ms from the start) that an answer before named as ``settled``:
    all before it is as it was. Where ``frames`` differs from before, the figures are others. ``is_over`` where the run
    has ended. Within ``span`` the curves are as close as they were measured.
    """
    told, view = load_told(training), load_view(training, span)
    whole = load_view(training) if span else view  # the words tell of all, wherever somebody looks
    found = columns(view, told.steps_per_epoch, told.batch_size)
    return {
        "status": status(told, whole, is_over),
        "frames": repr(drawable(view, told.steps_per_epoch)),
        "settled": round(1000 * max(0.0, view.settled - view.start)),
        "after": after,
        "columns": found if after is None else {name: _after(each, after) for name, each in found.items()},
    }


def span_of(training: Path, start: float, end: float) -> Span:
    """A part of a training, from ms since its start."""
    first = start_of(training)
    return Span(first + start / 1000, first + end / 1000)


def drawn_frames(training: Path) -> str:
    """The figures for the curves of a training, as the JSON text that `frames` gives."""
    return frames(drawable(load_view(training), load_told(training).steps_per_epoch))


def _after(found: Columns, time: float) -> Columns:
    """The rows of curves over time after a moment; what is not over time is short, and comes whole."""
    if "time" not in found:
        return found
    first = next(
        (row for row, each in enumerate(found["time"]) if each is not None and each > time), len(found["time"])
    )
    return {name: values[first:] for name, values in found.items()}
