"""What a run left in its folder, read into one value; nothing of it has to be there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from pipeline.monitor import record
from pipeline.storage import Place, place_of


@dataclass(frozen=True)
class Run:
    """``description`` is run.json, ``result`` result.json, ``evaluation`` evaluation.json, ``promotion``
    promotion.json, ``dataset`` dataset.json; {} where missing.

    ``samples``, ``batches`` and ``epochs`` are the record, with the columns of pipeline.monitor.
    """

    description: Mapping[str, Any]
    result: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    promotion: Mapping[str, Any]
    dataset: Mapping[str, Any]
    samples: pandas.DataFrame
    batches: pandas.DataFrame
    epochs: pandas.DataFrame


def load(run_folder: Path) -> Run:
    """Read the folder of a run."""
    description = read_json(run_folder / "run.json")
    dataset = description.get("dataset")
    return Run(
        description=description,
        result=read_json(run_folder / "result.json"),
        evaluation=read_json(run_folder / "evaluation.json"),
        promotion=read_json(run_folder / "promotion.json"),
        dataset=read_json(place_of(dataset) / "dataset.json") if isinstance(dataset, str) else {},
        samples=record.read(run_folder / "record", "samples"),
        batches=record.read(run_folder / "record", "batches"),
        epochs=record.read(run_folder / "record", "epochs"),
    )


def read_json(path: Place) -> dict[str, Any]:
    """The object in the file; {} where there is none, so that a run that came to nothing still has a page."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
