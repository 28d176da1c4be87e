"""How good the default model of a table is, beside gradient boosting and a linear model of scikit-learn.

`python -m benchmarks.tables --models` runs this. The tables and the models are in
`benchmarks/contenders/table_models.py`.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.environments import ENVIRONMENTS, missing_because
from benchmarks.harness.machine import job_file, logs, new_folder, say
from benchmarks.harness.rounds import Contender, whole

SEEDS = 5
OURS = "Tenfold"
PEERS = {"boosting": "`HistGradientBoosting`", "linear": "ridge or logistic regression"}
MAX_BELOW = 0.02
"""An AUC or an accuracy is as good as another one if it is at most this much lower."""
MAX_ABOVE = 0.02
"""A root mean squared error is as good as another one if it is at most this share higher."""


@dataclass(frozen=True)
class Compared:
    """The scores of all models on one table, for each seed of the split."""

    table: Mapping[str, Any]
    """What `write_model_tables` returned."""
    scores: Mapping[str, Sequence[float]]
    epochs: Sequence[int]
    seconds: Sequence[float]
    """Epochs and seconds of the trainings of this project."""

    @property
    def medians(self) -> dict[str, float]:
        """The median score of each model."""
        return {name: median(scores) for name, scores in self.scores.items()}

    @property
    def behind(self) -> float:
        """How much worse the default is than the best other model; negative if it is better."""
        medians = self.medians
        ours, others = medians.pop(OURS), medians.values()
        return ours / min(others) - 1 if self.table["metric"] == "rmse" else max(others) - ours

    @property
    def is_as_good(self) -> bool:
        """Whether the default is as good as the best other model."""
        return self.behind <= (MAX_ABOVE if self.table["metric"] == "rmse" else MAX_BELOW)

    @property
    def line(self) -> str:
        """A row of the table in Markdown."""
        is_error = self.table["metric"] == "rmse"
        scores = [f"{score:.4g}" if is_error else f"{score:.3f}" for score in self.medians.values()]
        behind = f"{-self.behind:+.1%}" if is_error else f"{-self.behind:+.3f}"
        facts = [self.table["name"], f"{self.table['rows']:,}", str(self.table["columns"]), self.table["metric"]]
        cost = [f"{median(self.epochs):.0f}", f"{median(self.seconds):.1f}"]
        return f"| {' | '.join([*facts, *scores, behind, 'yes' if self.is_as_good else '**no**', *cost])} |"


def compare_models() -> tuple[list[Compared], list[str]]:
    """Return the comparison on each table, and a table in Markdown."""
    if reason := missing_because("models"):
        raise SystemExit(f".bench/models {reason}")
    folder = new_folder("model-tables")
    folder.mkdir(parents=True)
    tables = _seen("write_model_tables", {"folder": str(folder), "seeds": SEEDS}, ENVIRONMENTS["models"].python)
    compared = [_compared(table) for table in tables]
    head = ["table", "rows", "columns", "score", OURS, *PEERS.values(), "better by", "as good", "epochs", "s"]
    good = sum(each.is_as_good for each in compared)
    return compared, [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(each.line for each in compared),
        "",
        f"As good as the best of them: {good} of {len(compared)} tables.",
    ]


def models_as_json(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return all figures."""
    return [asdict(each) | {"behind": each.behind} for each in compared]


def _compared(table: Mapping[str, Any]) -> Compared:
    say(f"models: {table['name']}")
    job = {"files": table["files"], "metric": table["metric"]}
    workspace = new_folder("workspace")
    ours = _seen("train_models", {**job, "workspace": str(workspace)}, Path(sys.executable), workspace)
    scores = {OURS: [each["score"] for each in ours]}
    for name in PEERS:
        seen = _seen("fit_models", {**job, "model": name}, ENVIRONMENTS["models"].python)
        scores[name] = [each["score"] for each in seen]
    return Compared(table, scores, [each["epochs"] for each in ours], [each["seconds"] for each in ours])


def _seen(work: str, job: Mapping[str, Any], python: Path, *makes: Path) -> Any:
    """Do some work in a process of its own, and return what it reports."""
    contender = Contender(work, work, python, [job_file(dict(job))], 0, list(makes))
    log = logs() / f"{work}.log"
    whole(contender, log)
    if contender.error:
        raise SystemExit(f"{work}: {contender.error}; see {log}")
    return contender.seen[0]
