"""All that a page shows of a training, as JSON has it."""

import time
from pathlib import Path
from typing import Any
from zlib import crc32

from pipeline.runs.files import load_files
from pipeline.watch.heartbeats import Heartbeats
from pipeline.watch.live_figures import frames
from pipeline.watch.status import last_sample, status
from pipeline.watch.tables import Span
from pipeline.watch.view import Columns, View, columns, drawable, load_view, start_of


def data(
    training: Path,
    is_over: bool,
    after: float | None = None,
    span: Span | None = None,
    shown: str = "",
    heartbeats: Heartbeats | None = None,
) -> dict[str, Any]:
    """What a training says of itself, and its curves: in `columns`, by the names of the sources of its figures.

    `figures` has those, unless they are `shown` already: the name of the figures that the page has, which an answer
    before had as `frames`. Then these are all of the curves, or what comes `after` a time (ms from the start) that
    the answer before named as `settled`: all before it is as it was. `is_over` where the run has ended. Within
    `span` the curves are as close as they were measured. `heartbeats` remember the answers before; without them,
    this is the first look at the training.
    """
    heartbeats = heartbeats or Heartbeats()
    files = load_files(training)
    view = load_view(training, files.steps_per_epoch, span)
    whole = load_view(training, files.steps_per_epoch) if span else view  # the words tell of all, wherever one looks
    found, drawn = columns(view, files.batch_size), drawable(view)
    name = f"{crc32(repr(drawn).encode()):08x}"
    after = after if name == shown else None
    return {
        "status": status(files, whole, is_over, _silent_s(heartbeats, training, whole, is_over or files.is_complete)),
        "frames": name,
        "figures": None if name == shown else frames(drawn),
        "settled": round(1000 * max(0.0, view.settled - view.start)),
        "after": after,
        "columns": found if after is None else {name: _after(each, after) for name, each in found.items()},
    }


def _silent_s(heartbeats: Heartbeats, training: Path, view: View, is_over: bool) -> dict[int, float]:
    """Seconds since the newest sample of each training server changed, by the index of the server."""
    last_samples = {index: last_sample(samples) for index, samples in view.servers.items()}
    if is_over:  # nothing changes any more
        return {index: max(0.0, time.time() - last) for index, last in last_samples.items()}
    return {index: heartbeats.silent_s((training, index), last) for index, last in last_samples.items()}


def span_of(training: Path, start: float, end: float) -> Span:
    """A part of a training, from ms since its start."""
    first = start_of(training)
    return Span(first + start / 1000, first + end / 1000)


def _after(found: Columns, time: float) -> Columns:
    """The rows of curves over time after a moment; what is not over time is short, and comes whole."""
    if "time" not in found:
        return found
    first = next(
        (row for row, each in enumerate(found["time"]) if each is not None and each > time), len(found["time"])
    )
    return {name: values[first:] for name, values in found.items()}
