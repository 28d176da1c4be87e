"""What the list says of each training: from its small JSON files, and the last rows of its record.

No table is read, so that a hundred trainings are listed at once. From a bucket, only the JSON files are read.
"""

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.allowed import require_folder
from pipeline.errors import FormatError
from pipeline.evaluation.answers import Metric
from pipeline.evaluation.best_epoch import epoch_metric
from pipeline.evaluation.one_label import ACCURACY
from pipeline.monitor.overview import OVERVIEW
from pipeline.monitor.record import last_row
from pipeline.runs.decision import Outcome
from pipeline.runs.files import (
    BEST,
    EARLY_END,
    PROMOTION,
    RESULT,
    RUN,
    VERDICT,
    RunFiles,
    read_optional,
    require_run_format,
)
from pipeline.storage import BucketPath, Place
from pipeline.watch.heartbeats import Heartbeats
from pipeline.watch.status import progress, state_of

READERS = 8
"""Maximum number of trainings that are read from one bucket at once. A silent bucket blocks only its own readers."""
PATIENCE_S = 4.0
"""Seconds that a page waits for a bucket. The client tries for two minutes, and nobody waits that long for a list."""
ENDED_S = 600.0
"""How long a summary of a training in a bucket is kept that ended without a result: a rerun may change its files."""
MAX_KEPT = 5000
"""Maximum number of summaries in memory."""
MAX_TEXT = 300
"""Maximum length of a text of the list, in characters."""
_log = logging.getLogger(__name__)


class Training(NamedTuple):
    """Where a training is, and whether the run of Airflow that it belongs to has ended."""

    place: Place
    is_over: bool


@dataclass(frozen=True)
class Summary:
    """A row of the list. A text is empty and a share is None if it is not known. Shares are from 0 to 1."""

    state: str
    """One of `state_of`, or unknown."""
    words: str = ""
    """What is wrong."""
    dataset: str = ""
    model: str = ""
    progress: float | None = None
    """The share of the steps that are done."""
    accuracy: float | None = None
    """The accuracy of the best model so far: on the validation split, or on the test split of a complete training that
    has one. A regression has none."""
    wait: float | None = None
    """The share of the step time that is data wait."""
    limit: str = ""
    """The bottleneck."""
    validation: str = ""
    """The accuracy as text, or of a regression the mean absolute error. It says if it is that of the test split, and
    once the training is complete, the baseline. A training on a simulated accelerator has neither, so it says that."""
    promotion: Outcome | None = None
    """Whether the model was promoted; None if that is not decided."""
    why: str = ""
    """The reason of the promotion, or of its refusal."""


GONE = Summary("unknown", "its folder was removed, or is on another machine")
UNANSWERED = Summary("unknown", "its bucket has not answered yet")


class Summaries:
    """Reads trainings. Those in buckets are read a few at a time, in threads whose answer a later call may get."""

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPoolExecutor] = {}
        """The readers of each bucket that has trainings of this Airflow."""
        self._pending: dict[Training, Future[Summary]] = {}
        self._heartbeats = Heartbeats()
        self._lock = threading.Lock()

    def of(self, trainings: Sequence[Training], patience_s: float = PATIENCE_S) -> list[Summary]:
        """Return a summary of each training; `UNANSWERED` if its bucket takes longer than `patience_s`."""
        futures = {each: self._start(each, each.place) for each in trainings if isinstance(each.place, BucketPath)}
        wait(futures.values(), patience_s)
        answers = {each: future.result() if future.done() else UNANSWERED for each, future in futures.items()}
        return [answers.get(each) or summary(each, self._heartbeats) for each in trainings]

    def _start(self, training: Training, place: BucketPath) -> Future[Summary]:
        with self._lock:
            # An answer is given once. The next call reads the training again, because it may have changed.
            self._pending = {each: future for each, future in self._pending.items() if not future.done()}
            if training not in self._pending:
                if place.bucket not in self._pools:
                    self._pools[place.bucket] = ThreadPoolExecutor(READERS, thread_name_prefix="summaries")
                self._pending[training] = self._pools[place.bucket].submit(summary, training)
            return self._pending[training]


def summary(training: Training, heartbeats: Heartbeats | None = None) -> Summary:
    """Return the summary of a training. If it cannot be read, the summary says why.

    `heartbeats` remembers earlier answers. Without it, this is the first look at the training.
    """
    try:
        return _read(training, heartbeats or Heartbeats())
    except Exception as error:  # noqa: BLE001 - one damaged training must not hide all others
        _log.warning("%s cannot be listed: %r", training.place, error)
        return _unreadable(error)


def _unreadable(error: Exception) -> Summary:
    return Summary("unknown", _text(f"it cannot be read: {error}"))


def _read(training: Training, heartbeats: Heartbeats) -> Summary:
    place = training.place
    version: tuple[int, ...] | None
    if result := _modified(place / RESULT):
        # A complete training changes only if its model is promoted.
        version = (result, _modified(place / PROMOTION))
    else:
        version = _version(place) if training.is_over else None
    return _summary(training, heartbeats) if version is None else _ended(place, version)


def _modified(file: Place) -> int:
    """Return the time of the last change of a file (Unix ns); 0 if there is none."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _version(place: Place) -> tuple[int, ...] | None:
    """Return numbers that change with the files of a training; None if its folder was removed.

    Each change of a file changes the time of the folder. In a bucket, the number changes every ENDED_S.
    """
    if not isinstance(place, Path):
        return (int(time.monotonic() // ENDED_S),)
    return (place.stat().st_mtime_ns,) if place.is_dir() else None


@lru_cache(maxsize=MAX_KEPT)
def _ended(place: Place, _version: tuple[int, ...]) -> Summary:
    """Return the summary of a training that has ended, read once for each version."""
    return _summary(Training(place, is_over=True), Heartbeats())


def _summary(training: Training, heartbeats: Heartbeats) -> Summary:
    place = training.place
    require_folder(place)
    files = RunFiles(
        run=read_optional(place / RUN) or {},
        result=read_optional(place / RESULT) or {},
        verdict=read_optional(place / VERDICT) or {},
        promotion=read_optional(place / PROMOTION) or {},
        early_end=read_optional(place / EARLY_END) or {},
    )
    if not files.run:
        return GONE
    try:
        require_run_format(files.run, place)
    except FormatError as error:  # Returned and not raised, so that the answer is kept like that of any other training.
        return _unreadable(error)
    settings = files.settings
    metrics = _best_metrics(place, files)
    metric = epoch_metric(metrics)
    value = None if files.is_simulated else _share(metrics.get(metric.key_on(files.split)))
    step = _step(place, files)
    decision = files.decision
    return Summary(
        state=_state(training, files, step, heartbeats),
        dataset=_text(settings.get("dataset_name")),
        model=_text(settings.get("model")),
        progress=_share(progress(files, step) if step or files.is_complete else None),
        accuracy=value if metric is ACCURACY else None,
        validation="simulated" if files.is_simulated else _validation_text(metric, value, files),
        wait=_share(_wait(place, files)),
        limit=_text(files.newest_verdict.get("limit")),
        promotion=decision and decision.outcome,
        why=_text(decision and decision.reason),
    )


def _validation_text(metric: Metric, value: float | None, files: RunFiles) -> str:
    """Write the value, and its baseline if the training is complete; an empty text if the value is not known."""
    if value is None:
        return ""
    # The column is about the accuracy on the validation split, so any other metric or split is named.
    names = [*(["test"] if files.split == "test" else []), *([] if metric is ACCURACY else [metric.key.upper()])]
    baseline = files.baseline_of(metric)
    beside = [] if baseline is None else [f"(baseline {metric.text(baseline)})"]
    return " ".join([*names, metric.text(value), *beside])


def _state(training: Training, files: RunFiles, step: int, heartbeats: Heartbeats) -> str:
    if isinstance(training.place, Path):
        last_sample = (last_row(training.place / "record", "samples") or {}).get("time", 0.0)
        return state_of(files, step, heartbeats.silent_s(training.place, last_sample), training.is_over)
    # From a bucket, no record is read.
    return "trained" if files.is_complete else "stopped" if training.is_over else "training"


def _step(place: Place, files: RunFiles) -> int:
    """Return the last step; 0 if there is none, if the training is complete, or if it is in a bucket."""
    if files.is_complete or not isinstance(place, Path):
        return 0
    return int((last_row(place / "record", "batches") or {}).get("step", 0))


def _best_metrics(place: Place, files: RunFiles) -> Mapping[str, Any]:
    """Return the metrics of the best model so far; empty if there is none."""
    if files.is_complete:
        return dict(files.result["metrics"])
    bests = read_optional(place / BEST)
    return dict(bests[-1]["metrics"]) if bests else {}


def _wait(place: Place, files: RunFiles) -> Any:
    """Return the share of the data wait in the step time: of the newest verdict, else of the newest interval."""
    fraction = files.newest_verdict.get("wait_fraction")
    if fraction is not None or not isinstance(place, Path):
        return fraction
    interval: Mapping[str, float] = last_row(place / OVERVIEW, "batches") or {}
    step_ms = interval.get("step/time_ms")
    return interval.get("input/wait_ms", 0.0) / step_ms if step_ms else None


def _share(value: Any) -> float | None:
    """Return a number that JSON can have; None for any other value."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _text(value: Any) -> str:
    """Return a text that a page can have: of limited length, and valid in UTF-8."""
    return "" if value is None else str(value)[:MAX_TEXT].encode(errors="replace").decode()
