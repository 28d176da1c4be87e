"""What a run left in its folder, read into one value; nothing of it has to be there."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pandas

from pipeline.dataset.manifest import COMMIT, REJECTED
from pipeline.evaluation.metrics import Answers, load_predictions
from pipeline.monitor import record
from pipeline.monitor.verdict import slowest_server
from pipeline.sharding.quality_facts import from_lines
from pipeline.storage import Place, place_of


@dataclass(frozen=True)
class Run:
    """`description` is run.json, `result` result.json, `evaluation` evaluation.json, `promotion`
    promotion.json, `dataset` dataset.json; {} where missing. `rejected` are the rows of the data set's file of
    rejected images.

    `samples`, `batches` and `epochs` are the record of server 0, with the columns of pipeline.monitor;
    `servers` are the samples of each training server by its index, server 0 among them, and `steps` its batches.
    """

    description: Mapping[str, Any]
    result: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    promotion: Mapping[str, Any]
    dataset: Mapping[str, Any]
    samples: pandas.DataFrame
    batches: pandas.DataFrame
    epochs: pandas.DataFrame
    servers: Mapping[int, pandas.DataFrame]
    steps: Mapping[int, pandas.DataFrame]
    rejected: Sequence[Mapping[str, str]]

    @property
    def judged(self) -> pandas.DataFrame:
        """The batches of the training server that waits most. The verdict and the numbers are about that server."""
        return self.steps[slowest_server(self.steps)]


def load(run_folder: Path) -> Run:
    """Read the folder of a run."""
    description = read_json(run_folder / "run.json")
    named = description.get("dataset")
    dataset = place_of(named) if isinstance(named, str) else None
    folders = record.record_folders(run_folder)
    servers, steps = (
        {index: record.read(folder, kind) for index, folder in folders.items()} for kind in ("samples", "batches")
    )
    return Run(
        description=description,
        result=read_json(run_folder / "result.json"),
        evaluation=read_json(run_folder / "evaluation.json"),
        promotion=read_json(run_folder / "promotion.json"),
        dataset=read_json(dataset / COMMIT) if dataset else {},
        samples=servers[0],
        batches=steps[0],
        epochs=record.read(run_folder / "record", "epochs"),
        servers=servers,
        steps=steps,
        rejected=_rejected(dataset) if dataset else (),
    )


def _rejected(dataset: Place) -> Sequence[Mapping[str, str]]:
    try:
        return from_lines((dataset / REJECTED).read_bytes())
    except (OSError, ValueError):
        return ()


def load_answers(run_folder: Path) -> Answers | None:
    """What the model said of the validation images; None where that was not kept, or cannot be read."""
    try:
        return load_predictions(run_folder)
    except (OSError, ValueError, TypeError, BadZipFile):
        return None


def read_json(path: Place) -> dict[str, Any]:
    """The object in the file; {} where there is none, so that a run that came to nothing still has a page."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def facts(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of what run.json says; those of the host and of software begin with that."""
    yield from ((name.replace("_", " "), content[name]) for name in ("dataset", "dataset_version") if name in content)
    yield from (content.get("settings") or {}).items()
    for group in ("host", "software"):
        yield from ((f"{group}: {name}", value) for name, value in (content.get(group) or {}).items())
