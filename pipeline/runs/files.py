"""The JSON files of a run, and their one reader. Imports no TensorFlow.

A run may be under way or may have been killed, so any file may be missing. What happens then depends on the reader.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import storage
from pipeline.config.workspace import workspace_of
from pipeline.errors import DatasetError, SizeError, SourceError, require_format
from pipeline.rendezvous.servers import SERVERS
from pipeline.runs.decision import Decision, decision_in
from pipeline.storage import Place

if TYPE_CHECKING:
    from pipeline.evaluation.answers import Metric

FREE_MEMORY = "free_memory_bytes"
"""The fact of the host that says how much memory was free before the training."""
RUN, RESULT, VERDICT, PROMOTION = "run.json", "result.json", "verdict.json", "promotion.json"
BEST, FAILURE, MICRO_BATCHES = "best.json", "failure.json", "micro_batches.json"
EARLY_END, CHANGES, STAGES, OFFERS = "early_end.json", "changes.jsonl", "stages.json", "offers.json"
STEPS, CACHES = "steps.json", "caches.json"
OTHER_SERVERS = f"{SERVERS}/"
"""The folder with the files of all training servers but the first."""
MAX_JSON_BYTES = 64 << 20
"""Maximum size of a JSON file of a run. The API server reads these files, which others may write."""
COMET_LOGGED = "comet/logged.json"
"""Exists once the results of a run are logged to Comet: where, and the promotion that was logged after them."""
RUN_FORMAT = 5
"""The format of all files of a run, the record included, which `run.json` states.

Increase it also if a setting is removed or renamed: `run.json` holds the settings.
"""


def require_run_format(run_json: Mapping[str, Any], folder: Place) -> None:
    """Raise FormatError if the content of `run.json` says that another version of Tenfold wrote the run."""
    require_format(run_json.get("format"), RUN_FORMAT, folder / RUN, "train again")


def with_moved_dataset(run_json: Mapping[str, Any], training: Place) -> dict[str, Any]:
    """Return the content of `run.json` with the present address of the dataset, if it is in the workspace of the run.

    A workspace may have been moved or copied since the file was written. `training` is the place of the training. For a
    folder that is in no workspace, such as the local copy of a training in a bucket, the content stays as it is.
    """
    moved = dict(run_json)
    before, dataset = (run_json.get("settings") or {}).get("workspace"), run_json.get("dataset")
    if not (isinstance(before, str) and isinstance(dataset, str) and dataset.startswith(f"{before}/")):
        return moved
    with suppress(SourceError):
        moved["dataset"] = str(workspace_of(training) / dataset.removeprefix(f"{before}/"))
    return moved


def with_moved_addresses(result: Mapping[str, Any], training: Place) -> dict[str, Any]:
    """Return the content of `result.json` with the present addresses of the training, whose place is `training`."""
    before = str(result.get("run") or training)
    return {
        name: f"{training}{value.removeprefix(before)}"
        if isinstance(value, str) and f"{value}/".startswith(f"{before}/")
        else value
        for name, value in result.items()
    }


def read_required(file: Place) -> Any:
    """Return the JSON value in a file of a run, for a process that continues the run.

    Raises:
        FileNotFoundError: The file is missing.
        json.JSONDecodeError: The file is damaged. The message names it.
        SizeError: The file is too large.
    """
    try:
        return storage.read_json(file, MAX_JSON_BYTES)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(f"{file.name} is not valid JSON: {error.msg}", error.doc, error.pos) from error


def read_optional(file: Place) -> Any:
    """Return the JSON value in a file of a run; None if the file is missing.

    The list of trainings reads so: it says of each training what is wrong with it.

    Raises:
        json.JSONDecodeError, SizeError: The file is damaged or too large. The message names it.
    """
    try:
        return read_required(file)
    except FileNotFoundError:
        return None


def read_or_empty(file: Place) -> dict[str, Any]:
    """Return the JSON object in a file of a run; an empty one if the file is missing, damaged, or no JSON object.

    A report or a page reads so: it shows what there is. A file that is too large counts as damaged.
    """
    try:
        value = storage.read_json(file, MAX_JSON_BYTES)
    except (OSError, ValueError, SizeError, DatasetError):
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class RunFiles:
    """The contents of the small JSON files of a training. The content of a missing file is empty."""

    run: Mapping[str, Any]
    """What is trained (`run.json`)."""
    result: Mapping[str, Any]
    """The result of a complete training (`result.json`)."""
    verdict: Mapping[str, Any]
    """The verdict on the last steps of a training under way (`verdict.json`)."""
    promotion: Mapping[str, Any] = field(default_factory=dict)
    """Whether the model was promoted, and why (`promotion.json`)."""
    early_end: Mapping[str, Any] = field(default_factory=dict)
    """The last epoch of a training that ended early (`early_end.json`)."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the training."""
        return self.run.get("settings") or {}

    @property
    def host(self) -> Mapping[str, Any]:
        """The machine of training server 0."""
        return self.run.get("host") or {}

    @property
    def epochs(self) -> int:
        """The number of epochs to train, or that were trained if the training ended early; 0 if it is not known."""
        return int(self.early_end.get("epoch") or self.settings.get("epochs") or 0)

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of an epoch; 0 if it is not known."""
        return int(self.run.get("steps_per_epoch") or 0)

    @property
    def num_training_servers(self) -> int:
        """The number of training servers."""
        return int(self.settings.get("num_training_servers", 1))

    @property
    def is_simulated(self) -> bool:
        """Whether the steps computed nothing (`simulated_step_ms`). Such a training has no loss and no accuracy."""
        return bool(self.settings.get("simulated_step_ms"))

    @property
    def is_complete(self) -> bool:
        """Whether the training is complete: its result is written last."""
        return bool(self.result)

    @property
    def decision(self) -> Decision | None:
        """Whether the model was promoted, and why; None if that is not decided."""
        return decision_in(self.promotion)

    @property
    def newest_verdict(self) -> Mapping[str, Any]:
        """The content of the file with the newest verdict: the result of a complete training, else `verdict.json`."""
        return self.result or self.verdict

    @property
    def steps_judged(self) -> Mapping[str, Any]:
        """The JSON object with the `numbers` of the judged steps. It is empty if there is no verdict yet."""
        step_ms, wait_ms = (self.newest_verdict.get(name) for name in ("step_ms", "wait_ms"))
        is_known = isinstance(step_ms, float) and step_ms > 0 and isinstance(wait_ms, float)
        return self.newest_verdict if is_known else {}

    @property
    def split(self) -> str:
        """The split that judges the model: "validation" until the training is complete."""
        return str(self.result.get("split", "validation"))

    def baseline_of(self, metric: "Metric") -> float | None:
        """Return the baseline of a metric on the split that judges the model; None if the training is not complete."""
        return self._number("baselines", metric)

    def judged(self, metric: "Metric") -> Iterator[tuple[str, str]]:
        """Yield title and text of a metric on the test split, if there is one, and of its baseline."""
        tested = self._number("metrics", metric)
        if self.split == "test" and tested is not None:
            yield f"test {metric.title}", metric.text(tested)
        baseline = self.baseline_of(metric)
        if baseline is not None:
            yield "its baseline", metric.text(baseline)

    def _number(self, key: str, metric: "Metric") -> float | None:
        numbers = self.result.get(key)
        value = numbers.get(metric.key_on(self.split)) if isinstance(numbers, dict) else None
        return float(value) if isinstance(value, int | float) and isfinite(value) else None


def load_files(folder: Path) -> RunFiles:
    """Read the files of a training, whatever state they are in.

    Raises:
        FormatError: If another version of Tenfold wrote them.
    """
    run_json, result = read_or_empty(folder / RUN), read_or_empty(folder / RESULT)
    if run_json:
        require_run_format(run_json, folder)
    with suppress(SourceError):  # The local copy of a training in a bucket is in no workspace.
        workspace_of(folder)
        result = with_moved_addresses(result, folder)
    return RunFiles(
        run=with_moved_dataset(run_json, folder),
        result=result,
        verdict=read_or_empty(folder / VERDICT),
        promotion=read_or_empty(folder / PROMOTION),
        early_end=read_or_empty(folder / EARLY_END),
    )


def facts(run_json: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the content of `run.json`. Names of the host and of software begin with that.

    The free memory is left out, because it differs between any two runs.
    """
    yield from ((name.replace("_", " "), run_json[name]) for name in ("dataset", "dataset_version") if name in run_json)
    yield from (run_json.get("settings") or {}).items()
    for group in ("host", "software"):
        named = (run_json.get(group) or {}).items()
        yield from ((f"{group}: {name}", value) for name, value in named if name != FREE_MEMORY)
