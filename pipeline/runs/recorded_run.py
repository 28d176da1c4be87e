"""Reads all files in the folder of a run into one value for the report. Any of them may be missing."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pandas

from pipeline.dataset.lists import JsonLines
from pipeline.dataset.manifest import COMMIT, REJECTED
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import EVALUATION, load_predictions
from pipeline.monitor import record
from pipeline.monitor.verdict import slowest_server
from pipeline.runs.files import RunFiles, load_files, read_or_empty
from pipeline.storage import Place, place_of


@dataclass(frozen=True)
class RecordedRun:
    """A run as its files and its record describe it. A mapping is empty if its file is missing."""

    files: RunFiles
    """The small JSON files of the run."""
    evaluation: Mapping[str, Any]
    """The content of `evaluation.json`."""
    dataset: Mapping[str, Any]
    """The content of `dataset.json`."""
    samples: pandas.DataFrame
    """The samples of server 0, with the columns of pipeline.monitor."""
    batches: pandas.DataFrame
    """The steps of server 0, with the columns of pipeline.monitor."""
    epochs: pandas.DataFrame
    """The epochs, with the columns of pipeline.monitor."""
    servers: Mapping[int, pandas.DataFrame]
    """The samples of each training server, by its index."""
    steps: Mapping[int, pandas.DataFrame]
    """The steps of each training server, by its index."""
    rejected: Iterable[Mapping[str, str]]
    """The rows of the dataset's file of rejected images."""

    @property
    def judged(self) -> pandas.DataFrame:
        """The steps of the training server that waits most. The verdict and the numbers are about that server."""
        return self.steps[slowest_server(self.steps)]


def load_recorded_run(folder: Path) -> RecordedRun:
    """Read the folder of a run, and the description of its dataset."""
    files = load_files(folder)
    uri = files.run.get("dataset")
    dataset = place_of(uri) if isinstance(uri, str) else None
    records = record.record_folders(folder)
    servers, steps = (
        {index: record.read(each, kind) for index, each in records.items()} for kind in ("samples", "batches")
    )
    return RecordedRun(
        files=files,
        evaluation=read_or_empty(folder / EVALUATION),
        dataset=read_or_empty(dataset / COMMIT) if dataset else {},
        samples=servers[0],
        batches=steps[0],
        epochs=record.read(folder / "record", "epochs"),
        servers=servers,
        steps=steps,
        rejected=_rejected(dataset) if dataset else (),
    )


def _rejected(dataset: Place) -> Iterable[Mapping[str, str]]:
    rows = JsonLines(dataset / REJECTED)
    try:
        deque(rows, maxlen=0)  # The report reads the rows later, when it cannot handle a missing or damaged file.
    except (OSError, ValueError):
        return ()
    return rows


def load_answers(folder: Path) -> Answers | None:
    """Return the model's answers to the validation images of a run; None if there are none that can be read."""
    try:
        return load_predictions(folder)
    except (OSError, ValueError, TypeError, BadZipFile):
        return None
