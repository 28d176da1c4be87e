"""The trend of a dataset name: the numbers of its last complete trainings, above the list."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.config.workspace import workspace_of
from pipeline.errors import SourceError, TenfoldError
from pipeline.storage import BucketPath, Place
from plugins.training_monitor.dataset_counts import Counts, counts_in_time
from plugins.training_monitor.listing import MayRead, Sources, search_rows
from plugins.training_monitor.rows import Row
from plugins.training_monitor.runs import Trainings

if TYPE_CHECKING:
    from pipeline.watch.questions import Questions

MAX_TRAININGS = 30
"""A trend has this number of trainings, the newest."""
MAX_COMPARED = 200
"""The predecessors are looked for in this number of trainings."""


def trend_of(
    trainings: Trainings, sources: Sources, dataset_name: str, may_read_log: MayRead, questions: "Questions"
) -> dict[str, Any]:
    """Return the dataset names of complete trainings, and the trend of one of them, the oldest training first.

    `promises` says how well the promises of the advice hold in the workspaces of these trainings, for all trainings
    there that the user may see; empty without any.
    Without a `dataset_name`, it is the one of the newest training. `later` is as in `list_trainings`.
    """
    from pipeline.watch.trend import point_of, warnings

    rows, later = search_rows(trainings, sources, may_read_log)
    complete = [row for row in rows if row.summary.state == "trained" and row.summary.dataset]
    names = list(dict.fromkeys(row.summary.dataset for row in complete))
    shown = dataset_name if dataset_name in names else next(iter(names), "")
    # More trainings than are shown, so that the first one of these has predecessors.
    known = [row for row in complete if row.summary.dataset == shown][:MAX_COMPARED][::-1]
    worse = warnings([point_of(row.summary) for row in known])[-MAX_TRAININGS:]
    last = known[-MAX_TRAININGS:]
    counts = counts_in_time([row.run.dataset for row in last], questions)
    return {
        "names": names,
        "shown": shown,
        "trainings": [_numbers(*each) for each in zip(last, counts, worse, strict=True)],
        "promises": _promises([row.run.training for row in last], [row.run.training for row in rows], questions),
        "later": later,
    }


def _promises(trainings: Sequence[Place | None], allowed: Sequence[Place | None], questions: "Questions") -> str:
    """Return how well the promises in the workspaces of some trainings hold, of those that the user may see."""
    from pipeline.runs.promises import Promise, load_promises, summary_of

    workspaces = set()
    for training in (each for each in trainings if each is not None):
        with suppress(SourceError):  # The run has a folder of its own.
            workspaces.add(workspace_of(training))
    found: list[Promise] = []
    places = {str(training) for training in allowed}
    for workspace in workspaces:
        with suppress(TenfoldError, OSError):
            if isinstance(workspace, BucketPath):
                question = ("promises", workspace)
                kept = questions.ask(workspace.bucket, question, partial(load_promises, workspace))
            else:
                kept = load_promises(workspace)
            found += [each for each in kept if f"{workspace}/{each.training}" in places]
    return summary_of(found)


def _numbers(row: Row, counts: Counts | None, worse: Mapping[str, str]) -> dict[str, Any]:
    summary = row.summary
    return {
        "dag_id": row.run.dag_id,
        "run_id": row.run.run_id,
        "note": row.run.note,
        "start": row.run.start and row.run.start.isoformat(),
        "images": counts and counts.examples,
        "rejected": counts and counts.rejected,
        "accuracy": summary.accuracy,
        # Rounded here as all pages write it, because JavaScript rounds a half to another digit.
        "error": None if summary.error is None else float(f"{summary.error:.4g}"),
        "wait": summary.wait,
        "speed": summary.speed,
        "worse": dict(worse),
    }
