"""What the list says of each training: from its small JSON files, and the last rows of its record.

No table is read, so that a hundred trainings are listed at once. From a bucket, only the JSON files are read.
"""

import logging
import math
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.allowed import require_folder
from pipeline.config.settings import settings_from
from pipeline.errors import FormatError
from pipeline.evaluation.answers import Metric
from pipeline.evaluation.best_epoch import epoch_metric
from pipeline.evaluation.one_label import ACCURACY
from pipeline.evaluation.regression import MAE
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
ANSWER_S = 60.0
"""Seconds after the start of a reading in which a call may still get its answer. Later, the training is read again."""
MAX_GOING = 200
"""Maximum number of ended trainings of one bucket that are being read. A search of thousands continues with others."""
ENDED_S = 600.0
"""How long a summary of a training in a bucket is kept that ended without a result: a rerun may change its files."""
MAX_KEPT = 20_000
"""Maximum number of summaries in memory. A search of the list reads thousands of trainings."""
MIN_READ = 20
"""A call reads at least this number of ended trainings, even if its time is over."""
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
    speed: float | None = None
    """Examples a second in the steps of the newest verdict."""
    error: float | None = None
    """The mean absolute error of the best model so far, on the same split as `accuracy`. Only a regression has one."""
    changed: Mapping[str, Any] | None = field(default=None, compare=False)
    """The settings that differ from their defaults; None if they are not known. All settings of thousands of trainings
    would need much memory."""

    def setting(self, name: str) -> Any:
        """Return a setting of the training; None if it is not known, or if there is no setting of this name."""
        return None if self.changed is None else self.changed.get(name, _defaults().get(name))


GONE = Summary("unknown", "its folder was removed, or is on another machine")
UNANSWERED = Summary("unknown", "its bucket has not answered yet")
LATER = Summary("unknown", "it has not been read yet")


@cache
def _defaults() -> Mapping[str, Any]:
    defaults: Mapping[str, Any] = settings_from({}).model_dump(mode="json")
    return defaults


def changed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from their defaults. Other names are left out."""
    defaults = _defaults()
    return {name: value for name, value in settings.items() if name in defaults and value != defaults[name]}


def with_settings(summary: Summary, settings: Mapping[str, Any]) -> Summary:
    """Return a summary with settings, and with the names of dataset and model in them."""
    return replace(
        summary,
        dataset=_text(settings.get("dataset_name")),
        model=_text(settings.get("model")),
        changed=changed_settings(settings),
    )


class _Reading(NamedTuple):
    """A training of a bucket that is being read, or whose summary no call has got yet."""

    summary: Future[Summary]
    start: float
    """By the monotonic clock, in seconds."""
    bucket: str


class Summaries:
    """Reads trainings. Those in buckets are read a few at a time, in threads whose answer a later call may get.

    A summary of a training in a bucket that has ended is kept for `kept_s`.
    """

    def __init__(self, kept_s: float = 0.0) -> None:
        self._kept_s = kept_s
        self._kept: dict[Training, tuple[float, Summary]] = {}
        """Summaries of trainings in buckets that have ended, each with the time until which it is valid."""
        self._pools: dict[str, ThreadPoolExecutor] = {}
        """The readers of each bucket that has trainings of this Airflow."""
        self._readings: dict[Training, _Reading] = {}
        self._heartbeats = Heartbeats()
        self._lock = threading.Lock()

    def of(
        self, trainings: Sequence[Training], patience_s: float | None = None, budget_s: float = math.inf
    ) -> list[Summary]:
        """Return a summary of each training.

        It is `LATER` if there was no time for it within `budget_s`, and `UNANSWERED` if its bucket takes longer than
        `patience_s`. Ended trainings that were read before are not read again.
        """
        budget = _Budget(budget_s)
        patience_s = PATIENCE_S if patience_s is None else patience_s
        in_buckets = {each: each.place for each in trainings if isinstance(each.place, BucketPath)}
        kept, readings = self._start(in_buckets)
        # The buckets are read meanwhile.
        local = [each for each in trainings if each not in in_buckets]
        found = {each: summary(each, self._heartbeats, budget.allows_one_more) for each in local}
        wait([each.summary for each in readings.values()], min(patience_s, budget.left_s))
        found |= kept | self._finish(readings)
        silent = self._silent_buckets(patience_s)
        for training, place in in_buckets.items():
            found.setdefault(training, UNANSWERED if place.bucket in silent else LATER)
        return [found[each] for each in trainings]

    def _start(
        self, trainings: Mapping[Training, BucketPath]
    ) -> tuple[dict[Training, Summary], dict[Training, _Reading]]:
        """Have trainings in buckets read. Return the summaries that are kept, and the others that are being read."""
        now = time.monotonic()
        with self._lock:
            self._kept = {each: (end, found) for each, (end, found) in self._kept.items() if now < end}
            self._readings = {
                each: reading
                for each, reading in self._readings.items()
                if now < reading.start + ANSWER_S or not reading.summary.done()
            }
            kept = {each: self._kept[each][1] for each in trainings if each in self._kept}
            going = Counter(each.bucket for each in self._readings.values() if not each.summary.done())
            for each, place in trainings.items():
                # Ended ones are kept, so that the next call continues. Others are always read: few run at a time.
                is_allowed = going[place.bucket] < MAX_GOING or not each.is_over
                if each not in kept and each not in self._readings and is_allowed:
                    going[place.bucket] += 1
                    self._readings[each] = _Reading(self._submit(each, place), now, place.bucket)
            return kept, {each: self._readings[each] for each in trainings if each in self._readings}

    def _submit(self, training: Training, place: BucketPath) -> Future[Summary]:
        if place.bucket not in self._pools:
            self._pools[place.bucket] = ThreadPoolExecutor(READERS, thread_name_prefix="summaries")
        return self._pools[place.bucket].submit(summary, training)

    def _finish(self, readings: Mapping[Training, _Reading]) -> dict[Training, Summary]:
        """Return the summaries that have been read."""
        read = {each: reading.summary.result() for each, reading in readings.items() if reading.summary.done()}
        end = time.monotonic() + self._kept_s
        with self._lock:
            for each, found in read.items():
                # An answer is given once. The next call reads the training again, because it may have changed.
                self._readings.pop(each, None)
                if each.is_over:
                    self._kept[each] = end, found
            for each in [*self._kept][: max(0, len(self._kept) - MAX_KEPT)]:
                del self._kept[each]
        return read

    def _silent_buckets(self, patience_s: float) -> set[str]:
        """Return the buckets that have left a training unanswered for longer than `patience_s`."""
        begin = time.monotonic() - patience_s
        with self._lock:
            return {each.bucket for each in self._readings.values() if each.start <= begin and not each.summary.done()}


class _Budget:
    """The time in which trainings are read.

    The time starts again at the first training that is read: to look at thousands of known ones may take all of it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._read = 0

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def allows_one_more(self) -> bool:
        """Whether one more training may be read. Some always may, so that each call comes closer to the end."""
        now = time.monotonic()
        if not self._read:
            self._end = now + self._seconds
        self._read += 1
        return self._read <= MIN_READ or now < self._end


def summary(
    training: Training, heartbeats: Heartbeats | None = None, may_read: Callable[[], bool] = lambda: True
) -> Summary:
    """Return the summary of a training. If it cannot be read, the summary says why.

    `heartbeats` remembers earlier answers. Without it, this is the first look at the training. `may_read` is called
    if the training has ended, and no summary in memory is valid. If it returns False, the summary is `LATER`.
    """
    try:
        return _read(training, heartbeats or Heartbeats(), may_read)
    except Exception as error:  # noqa: BLE001 - one damaged training must not hide all others
        _log.warning("%s cannot be listed: %r", training.place, error)
        return _unreadable(error)


def _unreadable(error: Exception) -> Summary:
    return Summary("unknown", _text(f"it cannot be read: {error}"))


def _read(training: Training, heartbeats: Heartbeats, may_read: Callable[[], bool]) -> Summary:
    version = _version(training)
    if version and (known := _ended.find(training.place, version)):
        return known
    if version is None:
        # It is always read. It is not kept, so a later call would be no closer to the end.
        return _summary(training, heartbeats)
    if not may_read():
        return LATER
    # A complete training has ended, whatever the state of its run is.
    found = _summary(training._replace(is_over=True), Heartbeats())
    _ended.keep(training.place, version, found)
    return found


def _version(training: Training) -> tuple[int, ...] | None:
    """Return numbers that change with the files of an ended training; None if it has not ended.

    Each change of a file changes the time of the folder. In a bucket, the number changes every ENDED_S.
    """
    place = training.place
    if result := _modified(place, RESULT):
        # A complete training changes only if its model is promoted.
        return result, _modified(place, PROMOTION)
    if not training.is_over:
        return None
    if not isinstance(place, Path):
        return (int(time.monotonic() // ENDED_S),)
    return (place.stat().st_mtime_ns if place.is_dir() else 0,)


def _modified(place: Place, name: str) -> int:
    """Return the time of the last change of a file of a training (Unix ns); 0 if there is none."""
    try:
        if isinstance(place, Path):
            # Of thousands of trainings, twice each. With Path, this takes several times as long.
            return os.stat(f"{place}/{name}").st_mtime_ns  # noqa: PTH116
        return (place / name).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


class _Kept:
    """Summaries of ended trainings in memory, each of one version. Any number of threads may use it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Place, tuple[tuple[int, ...], Summary]] = OrderedDict()
        """The training that was used most recently is the last one."""
        self._lock = threading.Lock()

    def find(self, place: Place, version: tuple[int, ...]) -> Summary | None:
        """Return the summary of a training; None if there is none of this version."""
        with self._lock:
            kept = self._kept.get(place)
            if kept is None or kept[0] != version:
                return None
            self._kept.move_to_end(place)
            return kept[1]

    def keep(self, place: Place, version: tuple[int, ...], found: Summary) -> None:
        """Keep the summary of a training. Beyond MAX_KEPT, those that were not used for the longest time go."""
        with self._lock:
            self._kept[place] = version, found
            self._kept.move_to_end(place)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)


_ended = _Kept()


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
    metrics = _best_metrics(place, files)
    metric = epoch_metric(metrics)
    value = None if files.is_simulated else _number(metrics.get(metric.key_on(files.split)))
    step = _step(place, files)
    decision = files.decision
    of_training = Summary(
        state=_state(training, files, step, heartbeats),
        progress=_number(progress(files, step) if step or files.is_complete else None),
        accuracy=value if metric is ACCURACY else None,
        validation="simulated" if files.is_simulated else _validation_text(metric, value, files),
        wait=_number(_wait(place, files)),
        limit=_text(files.newest_verdict.get("limit")),
        promotion=decision and decision.outcome,
        why=_text(decision and decision.reason),
        speed=_number(files.steps_judged.get("examples_per_s")),
        error=value if metric is MAE else None,
    )
    return with_settings(of_training, files.settings)


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


def _number(value: Any) -> float | None:
    """Return a number that JSON can have; None for any other value."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _text(value: Any) -> str:
    """Return a text that a page can have: of limited length, and valid in UTF-8."""
    return "" if value is None else str(value)[:MAX_TEXT].encode(errors="replace").decode()
