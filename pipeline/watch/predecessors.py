"""Whether a training that has just ended is worse than those before it, from the folders of the runs."""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from pipeline import storage
from pipeline.errors import TenfoldError
from pipeline.runs.files import RESULT
from pipeline.storage import BucketPath, Place
from pipeline.system.os_errors import cause_of
from pipeline.system.parallel import ordered_map
from pipeline.watch.summary import READERS, Summary, Training, summary
from pipeline.watch.trend import MAX_PREDECESSORS, point_of, warnings

MAX_RUNS = 300
"""Only this number of runs of the workspace is searched for earlier trainings: those that changed last. A bucket does
not store when a folder changed, so `_in_bucket` chooses others."""
MAX_LOOKED_UP, MAX_READ = 1000, 300
"""How many trainings of other runs a search of a bucket asks when they ended (one request each), and how many trainings
it reads at most, the newest first (about ten requests each)."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+")
_log = logging.getLogger(__name__)


def warning_of(training: Place) -> str:
    """Return what is worse in a complete training than in those of its dataset name before it; empty if nothing is.

    It is also empty, with a line in the log, if the earlier trainings cannot be read.
    """
    if training.parent.parent.name != "runs":
        return ""
    own = _summary(training)
    point = point_of(own)

    def is_comparable(other: Summary) -> bool:
        return other.state == "trained" and other.dataset == own.dataset and point_of(other).work == point.work

    try:
        read = ordered_map(_summary, _complete_before(training), READERS, READERS)
        newest = list(islice(filter(is_comparable, read), MAX_PREDECESSORS))
    except (OSError, TenfoldError) as error:  # For example, somebody removes old runs now.
        _log.warning("%s was not compared with the trainings before it: %s", training, error)
        return ""
    return " ".join(warnings([*map(point_of, reversed(newest)), point])[-1].values())


def _summary(training: Place) -> Summary:
    return summary(Training(training, is_over=True))


def _complete_before(training: Place) -> list[Place]:
    """Return the folders of the trainings that were complete before a training, the newest first."""
    run = training.parent
    found = _in_bucket(run) if isinstance(run, BucketPath) else _on_disk(Path(run).parent)
    folders = [training, *(folder for folder in found if folder != training)]
    times = zip(folders, ordered_map(_end_ns, folders, READERS), strict=True)
    (_, last), *others = ((folder, end) for folder, end in times)
    ended = {folder: end for folder, end in others if end is not None and (last is None or end < last)}
    newest = sorted(ended, key=ended.__getitem__, reverse=True)
    return newest[:MAX_READ] if isinstance(run, BucketPath) else newest


def _end_ns(folder: Place) -> int | None:
    """Return when a training was complete (Unix ns); None if it is not."""
    try:
        return (folder / RESULT).stat().st_mtime_ns
    except OSError as error:
        if cause_of(error) == "absent":
            return None
        raise


def _in_bucket(run: BucketPath) -> Iterator[Place]:
    """Yield trainings of a run, of runs without a time in their names, and of those with the latest times.

    The trainings of `retrain` on one dataset name, for example, share a folder without a time.
    """
    others = [other for other in storage.folders(run.parent) if other != run]
    timed = sorted(filter(_time_in_name, others), key=_time_in_name, reverse=True)
    timeless = [other for other in others if not _time_in_name(other)]
    yield from storage.folders(run)
    yield from islice(_trainings([*timeless, *timed][:MAX_RUNS]), MAX_LOOKED_UP)


def _time_in_name(run: Place) -> str:
    return max(_TIME.findall(run.name), default="")


def _trainings(runs: Iterable[Place]) -> Iterator[Place]:
    return chain.from_iterable(ordered_map(lambda run: list(storage.folders(run)), runs, READERS))


def _on_disk(runs: Path) -> Iterator[Place]:
    return chain.from_iterable(map(_newest_folders, _newest_folders(runs)))


def _newest_folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        found = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [Path(path) for _, path in sorted(found, reverse=True)[:MAX_RUNS]]
