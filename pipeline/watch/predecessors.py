"""Whether a training that has just ended is worse than those before it, from the folders of the runs."""

import os
from pathlib import Path

from pipeline.runs.files import RESULT
from pipeline.storage import Place
from pipeline.watch.summary import Training, summary
from pipeline.watch.trend import point_of, warnings

MAX_RUNS = 300
"""The predecessors are looked for in this number of runs of the workspace, those that changed last."""


def warning_of(training: Place) -> str:
    """Return what is worse in a complete training than in those of its dataset name before it; empty if nothing is.

    A workspace in a bucket is not searched: its runs cannot be listed by their time.
    """
    if not isinstance(training, Path) or training.parent.parent.name != "runs":
        return ""
    own = summary(Training(training, is_over=True))
    before = [summary(Training(folder, is_over=True)) for folder in _complete_before(training)]
    comparable = [each for each in before if each.state == "trained" and each.dataset == own.dataset]
    return " ".join(warnings([point_of(each) for each in (*comparable, own)])[-1].values())


def _complete_before(training: Path) -> list[Path]:
    """Return the folders of the trainings that were complete before a training, the oldest first."""
    try:
        runs = _newest_folders(training.parent.parent)
        results = [folder / RESULT for run in runs for folder in _newest_folders(run)]
        ended = {file.parent: file.stat().st_mtime_ns for file in results if file.is_file()}
    except OSError:  # Somebody cleans up meanwhile.
        return []
    last = ended.pop(training, None)
    return sorted((each for each in ended if last is None or ended[each] < last), key=lambda folder: ended[folder])


def _newest_folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        found = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [Path(path) for _, path in sorted(found, reverse=True)[:MAX_RUNS]]
