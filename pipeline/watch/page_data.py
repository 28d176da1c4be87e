"""All that a page shows of a training, as JSON has it."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from pipeline.runs.changes import (
    Change,
    builds_under_way,
    dataset_settings,
    load_changes,
    newest_values,
    requested_dataset,
)
from pipeline.runs.files import RunFiles, load_files
from pipeline.runs.offers import load_offers
from pipeline.watch.heartbeats import Heartbeats
from pipeline.watch.live_figures import frames
from pipeline.watch.status import last_time, status
from pipeline.watch.tables import Span
from pipeline.watch.view import Columns, View, columns, columns_of_epochs, drawable, load_view, start_of


def page_data(
    training: Path,
    is_over: bool,
    after: float | None = None,
    span: Span | None = None,
    shown: str = "",
    heartbeats: Heartbeats | None = None,
    builds_dataset: bool = True,
    is_copy: bool = False,
) -> dict[str, Any]:
    """Return what the page of a training draws.

    Its keys are `status`; `figures` and their name `frames`; `columns`, all rows of the charts by the name that the
    figures give their source; `newer`, only the rows of a source `after` a time; `settled` (ms since the start): rows
    over time before it never change; `start` (Unix ms); and `steps_per_epoch`, 0 if it is not known.

    Args:
        training: The folder of the training.
        is_over: Whether the run has ended.
        after: If the page has these figures already, only rows after this time (ms since the start) are returned. It
            is the time `settled` of an earlier answer.
        span: The part of the training that is returned in full resolution, as closely as it was measured.
        shown: The name `frames` of the figures that the page has. If they are still the right ones, `figures` is None.
        heartbeats: Remembers earlier answers. Without it, this is the first look at the training.
        builds_dataset: Whether a run as that of the training can build a dataset, on which to continue.
        is_copy: Whether the folder is a copy of files in a bucket, which has new samples less often.
    """
    heartbeats = heartbeats or Heartbeats()
    files = load_files(training)
    view = load_view(training, files.steps_per_epoch, span)
    whole = load_view(training, files.steps_per_epoch) if span else view  # The status is about all of the training.
    figures = drawable(whole)
    over_time = columns(view, figures)
    name = f"{crc32(repr(figures).encode()):08x}"
    # The page draws other figures now, whose charts begin empty: it needs all rows.
    after = after if name == shown else None
    silent_s = _silent_s(heartbeats, training, whole, is_over or files.is_complete)
    return {
        "status": {
            **status(files, whole, is_over, silent_s, is_copy),
            "changes": _changes(files, training, is_over or files.is_complete, builds_dataset),
        },
        "frames": name,
        "figures": None if name == shown else frames(figures),
        "start": round(1000 * view.start),
        "steps_per_epoch": files.steps_per_epoch,
        "settled": round(1000 * max(0.0, view.settled - view.start)),
        "after": after,
        "columns": {**(over_time if after is None else {}), **columns_of_epochs(view)},
        "newer": {} if after is None else {source: _rows_after(rows, after) for source, rows in over_time.items()},
    }


def _changes(files: RunFiles, training: Path, is_over: bool, builds_dataset: bool) -> dict[str, Any]:
    """Return what changed in a training and when, and the values of the settings that can still change."""
    changes = load_changes(training)
    values = {} if is_over else newest_values(files.settings, changes)
    # As `continued_settings` refuses them. A window of several dates is in a folder of this name.
    has_window = Path(str(files.run.get("dataset", ""))).parent.name == "windows"
    can_continue = builds_dataset and not (requested_dataset(changes) or has_window or files.settings.get("callbacks"))
    names = dataset_settings(files.settings["example_kind"]) if values and can_continue else []
    values |= {name: files.settings[name] for name in names if name in files.settings}
    return {
        "sentences": [str(change) for change in changes],
        "values": [*values.items()],
        "need_dataset": names,
        "offers": _offers(training, values, changes),
    }


def _offers(training: Path, values: Mapping[str, Any], changes: Iterable[Change]) -> list[tuple[str, dict[str, Any]]]:
    """Return what the training offers to change, in words, and the new values.

    What was requested is left out, and a dataset that is being built.
    """
    built = [each.dataset_values for each in builds_under_way(changes)]

    def is_open(change: Mapping[str, Any]) -> bool:
        differing = {name: str(value) for name, value in change.items() if values[name] != value}
        return bool(differing) and differing not in built

    return [
        (offer.words, dict(offer.change))
        for offer in load_offers(training)
        if offer.change.keys() <= values.keys() and is_open(offer.change)
    ]


def _silent_s(heartbeats: Heartbeats, training: Path, view: View, is_over: bool) -> dict[int, float]:
    """Return the seconds since the newest sample of each training server changed, by the index of the server."""
    last_samples = {index: last_time(samples) for index, samples in view.servers.items()}
    if is_over:  # No sample changes any more, so the clock of the samples is compared with the clock here.
        return {index: max(0.0, time.time() - last) for index, last in last_samples.items()}
    return {index: heartbeats.silent_s((training, index), last) for index, last in last_samples.items()}


def span_of(training: Path, start: float, end: float) -> Span:
    """Return a part of a training, from its start and end in ms since the start of the training."""
    first = start_of(training)
    return Span(first + start / 1000, first + end / 1000)


def _rows_after(rows: Columns, time: float) -> Columns:
    first = next((row for row, each in enumerate(rows["time"]) if each is not None and each > time), len(rows["time"]))
    return {name: values[first:] for name, values in rows.items()}
