"""The list of trainings: the rows of one page of the trainings that a search finds, sorted.

A search reads the files of every training, so it is bounded. An answer says how many trainings were searched.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pipeline.watch.states import STATE_NAMES
from plugins.training_monitor.links import log_link
from plugins.training_monitor.runs import Found, Trainings

if TYPE_CHECKING:
    from pipeline.watch.summary import Summaries, Summary

MAX_SEARCHED = 2000
"""A search covers this number of trainings, the newest. Trainings that have ended are read once."""
Column = Literal["run", "dag", "state", "started", "dataset", "model", "progress", "accuracy", "wait", "limit"]
NUMBERS = ("progress", "accuracy", "wait")
Row = dict[str, Any]
MayRead = Callable[[str], bool]
"""Whether a user may read the logs of a DAG, by its id."""


class Query(NamedTuple):
    """A question for a page: `limit` rows, from the row `offset` on.

    The rows are trainings whose cells have all words of `search`. With `up`, the lowest value comes first. Times
    are in the time zone `zone`.
    """

    limit: int
    offset: int
    search: str
    sort: Column
    up: bool
    zone: tzinfo

    @property
    def is_of_newest(self) -> bool:
        """Whether it asks for the newest trainings without a search, so that only those of the page are read."""
        return not self.search.split() and self.sort == "started" and not self.up


def zone_of(name: str) -> tzinfo:
    """Return the time zone of a browser; UTC if this machine knows no time zone of that name."""
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def listed(trainings: Trainings, summaries: "Summaries", query: Query, may_read_log: MayRead) -> dict[str, Any]:
    """Return the rows of a page, and whether there are `more`.

    There are `total` trainings. `searched` of them were searched, and `found` match. For `unread` of them, the
    bucket has not answered yet.
    """
    total = trainings.count()

    def read(most: int, offset: int = 0) -> list[Row]:
        found = trainings.newest(most, offset)
        return _rows([run if may_read_log(run.dag_id) else run.without_words() for run in found], summaries, query.zone)

    if query.is_of_newest:
        rows = read(query.limit, query.offset)
        counts = {"found": total, "searched": total, "unread": 0}
    else:
        searched = read(MAX_SEARCHED)
        matching = _ordered([row for row in searched if _has(row, query.search)], query.sort, query.up)
        rows = matching[query.offset : query.offset + query.limit]
        counts = {"found": len(matching), "searched": len(searched), "unread": sum(map(_is_unread, searched))}
    return {"rows": rows, "more": query.offset + len(rows) < counts["found"], "total": total, **counts}


def _rows(runs: list[Found], summaries: "Summaries", zone: tzinfo) -> list[Row]:
    from pipeline.watch.summary import Training

    read = iter(summaries.of([Training(run.training, run.is_over) for run in runs if run.training]))
    return [_row(run, _with_failure(run, next(read) if run.training else None), zone) for run in runs]


def _with_failure(run: Found, read: "Summary | None") -> "Summary":
    from pipeline.watch.summary import GONE, Summary

    if run.is_failed and read is None:
        return Summary("failed", run.failure.sentence if run.failure else "The run ended before its training began.")
    if run.failure and read and read.state == "stopped":
        return replace(read, state="failed", words=run.failure.sentence)
    return read or GONE


def _row(run: Found, summary: "Summary", zone: tzinfo) -> Row:
    """Return what the page shows of a training. `cells` has the text of each column."""
    from pipeline.monitor.diagnosis import percent

    def share(value: float | None, written: Any = percent) -> str:
        return "" if value is None else str(written(value))

    return {
        "number": run.number,
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "start": run.start and run.start.isoformat(),
        **asdict(summary),
        "name": STATE_NAMES[summary.state],
        "log": log_link(run),
        "cells": {
            "run": run.run_id,
            "dag": run.dag_id,
            "state": ": ".join(filter(None, (STATE_NAMES[summary.state], summary.words))),
            "started": f"{run.start.astimezone(zone):%Y-%m-%d %H:%M:%S}" if run.start else "",
            "dataset": summary.dataset,
            "model": summary.model,
            "progress": share(summary.progress),
            "accuracy": share(summary.accuracy, "{:.1%}".format),
            "wait": share(summary.wait),
            "limit": summary.limit,
        },
    }


def _has(row: Row, search: str) -> bool:
    text = " ".join(row["cells"].values()).casefold()
    return all(term in text for term in search.casefold().split())


def _ordered(rows: Iterable[Row], column: Column, up: bool) -> list[Row]:
    """Return the rows, sorted by a column and then by their number. Rows without a value come last."""
    known, unknown = [], []
    for row in sorted(rows, key=lambda row: row["number"], reverse=True):
        (known if row["cells"][column] else unknown).append(row)

    def value(row: Row) -> Any:
        if column == "started":
            return row["start"]
        return row[column] if column in NUMBERS else row["cells"][column].casefold()

    return [*sorted(known, key=value, reverse=not up), *unknown]


def _is_unread(row: Row) -> bool:
    from pipeline.watch.summary import UNANSWERED

    return bool(row["words"] == UNANSWERED.words)
