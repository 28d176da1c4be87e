"""Whether a training that has just ended is worse than those before it, from the folders of the runs."""

import os
import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from pipeline import storage
from pipeline.runs.files import RESULT
from pipeline.storage import BucketPath, Place
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map
from pipeline.watch.summary import READERS, Summary, Training, summary
from pipeline.watch.trend import point_of, warnings

MAX_RUNS = 300
"""The predecessors are looked for in this number of runs of the workspace, those that changed last. In a bucket, which
does not know when a folder changed, they are the runs with the latest times in their names."""
MAX_FOLDERS_OF_BUCKET, MAX_READ_OF_BUCKET = 1000, 100
"""In a bucket, at most so many trainings are asked when they ended, and so many are read, those that ended last. Each
answer takes a request, and to read a training takes five."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+")


def warning_of(training: Place) -> str:
    """Return what is worse in a complete training than in those of its dataset name before it; empty if nothing is."""
    if training.parent.parent.name != "runs":
        return ""
    own, *before = ordered_map(_summary, [training, *_complete_before(training)], READERS)
    comparable = [each for each in before if each.state == "trained" and each.dataset == own.dataset]
    return " ".join(warnings([point_of(each) for each in (*comparable, own)])[-1].values())


def _summary(training: Place) -> Summary:
    return summary(Training(training, is_over=True))


def _complete_before(training: Place) -> list[Place]:
    """Return the folders of the trainings that were complete before a training, the oldest first."""
    runs = training.parent.parent
    try:
        folders = list(_in_bucket(runs) if isinstance(runs, BucketPath) else _on_disk(Path(runs)))
        times = ordered_map(_end_ns, [*folders, training], READERS)
        ended = {folder: end for folder, end in zip([*folders, training], times, strict=True) if end is not None}
    except OSError:  # Somebody cleans up meanwhile.
        return []
    last = ended.pop(training, None)
    before = sorted((each for each in ended if last is None or ended[each] < last), key=lambda folder: ended[folder])
    return before[-MAX_READ_OF_BUCKET:] if isinstance(runs, BucketPath) else before


def _end_ns(folder: Place) -> int | None:
    """Return when a training was complete (Unix ns); None if it is not."""
    return unless_missing(lambda: (folder / RESULT).stat().st_mtime_ns)


def _in_bucket(runs: BucketPath) -> Iterator[Place]:
    latest = sorted(storage.folders(runs), key=_time_in_name, reverse=True)[:MAX_RUNS]
    return islice(chain.from_iterable(ordered_map(_folders, latest, READERS)), MAX_FOLDERS_OF_BUCKET)


def _time_in_name(run: Place) -> str:
    return max(_TIME.findall(run.name), default="")


def _folders(run: Place) -> list[Place]:
    return list(storage.folders(run))


def _on_disk(runs: Path) -> Iterator[Place]:
    return chain.from_iterable(map(_newest_folders, _newest_folders(runs)))


def _newest_folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        found = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [Path(path) for _, path in sorted(found, reverse=True)[:MAX_RUNS]]
