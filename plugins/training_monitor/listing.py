"""The list of trainings: the rows of one page of the trainings that a search finds, sorted.

A search reads the files of every training, so it is bounded. An answer says how many trainings were searched.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow.utils.state import DagRunState

from pipeline.watch.states import STATE_NAMES
from plugins.training_monitor.runs import AirflowRun, Trainings

if TYPE_CHECKING:
    from pipeline.watch.summary import Summaries, Summary

MAX_SEARCHED = 2000
"""A search covers this number of trainings, the newest. Trainings that have ended are read once."""
Column = Literal[
    "run", "dag", "state", "started", "dataset", "model", "progress", "accuracy", "promotion", "wait", "limit"
]
NUMBERS = ("progress", "accuracy", "wait")
Row = dict[str, Any]
MayRead = Callable[[str], bool]
"""Whether a user may read the logs of a DAG, by its id."""


class ListQuery(NamedTuple):
    """What a page of the list shows."""

    limit: int
    offset: int
    """Rows before the first one of the page."""
    search: str
    """Words. Only trainings whose cells contain all of them are listed."""
    sort: Column
    ascending: bool
    """Whether the lowest value of the column `sort` comes first."""
    zone: tzinfo

    @property
    def is_of_newest(self) -> bool:
        """Whether it asks for the newest trainings without a search, so that only those of the page are read."""
        return not self.search.split() and self.sort == "started" and not self.ascending


def zone_of(name: str) -> tzinfo:
    """Return the time zone of a browser; UTC if this machine knows no time zone of that name."""
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def list_trainings(
    trainings: Trainings, summaries: "Summaries", query: ListQuery, may_read_log: MayRead
) -> dict[str, Any]:
    """Return the rows of a page, and whether there are `more`.

    There are `total` trainings. `searched` of them were searched, and `found` match. For `unread` of them, the
    bucket has not answered yet.
    """
    total = trainings.count()

    def read(limit: int, offset: int = 0) -> list[Row]:
        runs = trainings.newest(limit, offset)
        shown = [run if may_read_log(run.dag_id) else run.without_error_message() for run in runs]
        return _rows(shown, summaries, query.zone)

    if query.is_of_newest:
        rows = read(query.limit, query.offset)
        counts = {"found": total, "searched": total, "unread": 0}
    else:
        from pipeline.watch.summary import UNANSWERED

        searched = read(MAX_SEARCHED)
        unread = sum(row["words"] == UNANSWERED.words for row in searched)
        matching = _sorted([row for row in searched if _matches(row, query.search)], query.sort, query.ascending)
        rows = matching[query.offset : query.offset + query.limit]
        counts = {"found": len(matching), "searched": len(searched), "unread": unread}
    return {"rows": rows, "more": query.offset + len(rows) < counts["found"], "total": total, **counts}


def _rows(runs: list[AirflowRun], summaries: "Summaries", zone: tzinfo) -> list[Row]:
    from pipeline.watch.summary import Training

    of_trainings = iter(summaries.of([Training(run.training, run.is_over) for run in runs if run.training]))
    return [_row(run, _with_failure(run, next(of_trainings) if run.training else None), zone) for run in runs]


def _with_failure(run: AirflowRun, summary: "Summary | None") -> "Summary":
    """Return the summary of a run: that of its training, or the failure of the task that ended the run."""
    from pipeline.watch.summary import GONE, Summary

    if run.state == DagRunState.FAILED and summary is None:
        return Summary("failed", run.failure.sentence if run.failure else "The run ended before its training began.")
    if run.failure and summary and summary.state == "stopped":
        return replace(summary, state="failed", words=run.failure.sentence)
    return summary or (Summary("unknown", f"it cannot be read: {run.refusal}") if run.refusal else GONE)


def _row(run: AirflowRun, summary: "Summary", zone: tzinfo) -> Row:
    """Return what the page shows of a training. `cells` has the text of each column."""
    from pipeline.monitor.diagnosis import percent
    from pipeline.runs.decision import BADGES

    badge = BADGES[summary.promotion] if summary.promotion else ""

    def share(value: float | None) -> str:
        return "" if value is None else percent(value)

    return {
        "number": run.number,
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "start": run.start and run.start.isoformat(),
        **asdict(summary),
        "name": STATE_NAMES[summary.state],
        "badge": badge,
        "log": run.log,
        "cells": {
            "run": run.run_id,
            "dag": run.dag_id,
            "state": ": ".join(filter(None, (STATE_NAMES[summary.state], summary.words))),
            "started": f"{run.start.astimezone(zone):%Y-%m-%d %H:%M:%S}" if run.start else "",
            "dataset": summary.dataset,
            "model": summary.model,
            "progress": share(summary.progress),
            "accuracy": summary.validation,
            "promotion": ": ".join(filter(None, (badge, summary.why))),
            "wait": share(summary.wait),
            "limit": summary.limit,
        },
    }


def _matches(row: Row, search: str) -> bool:
    text = " ".join(row["cells"].values()).casefold()
    return all(term in text for term in search.casefold().split())


def _sorted(rows: Iterable[Row], column: Column, ascending: bool) -> list[Row]:
    """Return the rows, sorted by a column and then by their number. Rows without a value come last."""

    def value(row: Row) -> Any:
        if column == "started":
            return row["start"]
        # A regression has no accuracy. Its cell has a mean absolute error, which cannot be sorted among accuracies.
        return row[column] if column in NUMBERS else row["cells"][column].casefold()

    by_number = sorted(rows, key=lambda row: row["number"], reverse=True)
    known = [row for row in by_number if value(row) not in (None, "")]
    unknown = [row for row in by_number if value(row) in (None, "")]
    return [*sorted(known, key=value, reverse=not ascending), *unknown]
