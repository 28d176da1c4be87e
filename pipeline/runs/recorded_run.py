"""Reads all files in the folder of a run into one value for the report. Any of them may be missing."""

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pandas

from pipeline.config.allowed import require_outputs
from pipeline.dataset.lists import JsonLines
from pipeline.dataset.manifest import COMMIT, REJECTED
from pipeline.errors import SettingsError, TenfoldError
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import EVALUATION, load_predictions
from pipeline.monitor import record
from pipeline.monitor.columns import BatchColumns
from pipeline.monitor.diagnosis import Table
from pipeline.monitor.gpu_columns import is_busy
from pipeline.monitor.load import is_of_load
from pipeline.monitor.thinned import Samples, read_samples
from pipeline.monitor.verdict import slowest_server
from pipeline.runs.changes import load_changes
from pipeline.runs.files import RunFiles, load_files, read_or_empty
from pipeline.storage import Place, place_of


@dataclass(frozen=True)
class RecordedRun:
    """A run as its files and its record describe it. A mapping is empty if its file is missing."""

    folder: Path
    """The local folder of its files."""
    files: RunFiles
    evaluation: Mapping[str, Any]
    """The content of `evaluation.json`."""
    dataset: Mapping[str, Any]
    """The content of `dataset.json`."""
    epochs: pandas.DataFrame
    """The epochs, with the columns of pipeline.monitor."""
    servers: Mapping[int, Samples]
    """The samples of each training server, by its index."""
    steps: Mapping[int, Table]
    """The steps of each training server, by its index, with the columns of pipeline.monitor."""
    slowest: int
    """The index of the training server that waits most. The verdict and the numbers are about that server."""
    rejected: Iterable[Mapping[str, str]]
    """The rows of the dataset's file of rejected images."""
    changes: Sequence[str] = ()
    """The changes that were requested while the run trained, in words."""

    @property
    def judged(self) -> Table:
        """The steps of the training server that waits most."""
        return self.steps[self.slowest]


def load_recorded_run(folder: Path, is_shown: Callable[[str], bool] = lambda _: True) -> RecordedRun:
    """Read the folder of a run, and the description of its dataset.

    `is_shown` says whether a metric of the samples of server 0 is shown. The load is read of the server that the
    verdict is about. Of the others, only how busy they were is read.
    """
    files = load_files(folder)
    dataset = _dataset_at(files.run.get("dataset"))
    records = record.record_folders(folder)
    steps = {index: BatchColumns(each) for index, each in records.items()}
    slowest = slowest_server(steps)

    def is_wanted(index: int, name: str) -> bool:
        return is_busy(name) or (index == slowest and is_of_load(name)) or (index == 0 and is_shown(name))

    return RecordedRun(
        folder=folder,
        files=files,
        evaluation=read_or_empty(folder / EVALUATION),
        dataset=read_or_empty(dataset / COMMIT) if dataset else {},
        epochs=record.read(folder / "record", "epochs"),
        servers={index: read_samples(each, cache(partial(is_wanted, index))) for index, each in records.items()},
        steps=steps,
        slowest=slowest,
        rejected=_rejected(dataset) if dataset else (),
        changes=_changes(folder),
    )


def _changes(folder: Path) -> list[str]:
    try:
        return [str(change) for change in load_changes(folder)]
    except (TenfoldError, OSError):  # As with the other files, a report shows what there is.
        return []


def _dataset_at(uri: Any) -> Place | None:
    """Return the folder of a dataset; None if the administrator does not allow it, or if the run names none."""
    place = place_of(uri) if isinstance(uri, str) else None
    try:
        require_outputs([place / COMMIT, place / REJECTED] if place else [])
    except SettingsError:
        return None
    return place


def _rejected(dataset: Place) -> Iterable[Mapping[str, str]]:
    rows = JsonLines(dataset / REJECTED)
    try:
        deque(rows, maxlen=0)  # The report reads the rows later, when it cannot handle a missing or damaged file.
    except (OSError, ValueError):
        return ()
    return rows


def load_answers(folder: Path) -> Answers | None:
    """Return the model's answers to the images that judge a run; None if there are none that can be read."""
    try:
        return load_predictions(folder)
    # RuntimeError: the file is encrypted. MemoryError: its header has an impossible size.
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error, RuntimeError, MemoryError):
        return None
