"""The files of a complete training, without a training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import EVALUATION, save_predictions
from pipeline.runs.files import RUN_FORMAT
from pipeline.runs.run import EXPORT_FORMAT


def trained(
    workspace: Path,
    run: str,
    answers: Answers,
    labels: tuple[str, ...],
    columns: Sequence[str] | None = ("float area",),
    *,
    split: str = "validation",
    simulated_step_ms: float = 0.0,
) -> Path:
    """Write the files of a complete training. `columns` are the type and the name of each; None for images."""
    folder = workspace / "runs" / run / "key"
    about: dict[str, Any] = {"format": EXPORT_FORMAT, "labels": labels, "dataset": "houses", "dataset_version": "1"}
    if columns is not None:
        pairs = [column.split() for column in columns]
        about["columns"] = [{"name": name, "type": kind, "is_list": False, "length": None} for kind, name in pairs]
    settings = {"simulated_step_ms": simulated_step_ms}
    run_json = {"format": RUN_FORMAT, "dataset": str(workspace / "dataset"), "settings": settings}
    for name, content in (
        ("run.json", run_json),
        ("export/about.json", about),
        ("result.json", {"run": str(folder), "metrics": {}}),
        (EVALUATION, {"split": split}),
    ):
        with storage.write_whole(folder / name) as file:
            file.write(json.dumps(content).encode())
    save_predictions(folder, answers)
    return folder
