"""The list of trainings: the rows of one page of the trainings that a search finds, sorted.

A search reads the files of every training, so it is bounded. An answer says how many trainings were searched.
"""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from plugins.training_monitor.rows import Row, rows_of
from plugins.training_monitor.runs import AirflowRun, EndedRuns, Trainings
from plugins.training_monitor.search import SearchError, parse

if TYPE_CHECKING:
    from pipeline.watch.queue_wait import TimesLeft
    from pipeline.watch.summary import Summaries

MAX_SEARCHED = 10_000
"""A search covers this number of trainings, the newest. Trainings that have ended are read once."""
BUDGET_S = 0.2
"""Seconds in which a search reads trainings. For the others, the page asks again."""
Column = Literal[
    "run", "user", "dag", "state", "started", "dataset", "model", "progress", "accuracy", "promotion", "wait", "limit"
]
MayRead = Callable[[str], bool]
"""Whether a user may read the logs of a DAG, by its id."""


class ListQuery(NamedTuple):
    """What a page of the list shows."""

    limit: int
    offset: int
    """Rows before the first one of the page."""
    search: str
    """Words and filters (`search.py`). Only trainings that have all of them are listed."""
    sort: Column
    ascending: bool
    """Whether the lowest value of the column `sort` comes first."""
    zone: tzinfo
    within_dataset: bool = False
    """Whether the rows are sorted by the name of their dataset first."""

    @property
    def is_of_newest(self) -> bool:
        """Whether it asks for the newest trainings without a search, so that only those of the page are read."""
        is_sorted = self.sort != "started" or self.ascending or self.within_dataset
        return not self.search.split() and not is_sorted


def zone_of(name: str) -> tzinfo:
    """Return the time zone of a browser; UTC if this machine knows no time zone of that name."""
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


class Sources(NamedTuple):
    """Where the list gets the runs and their files from. A search has sources of its own.

    It reads thousands of trainings, and if these are in a slow bucket, ordinary lists must not wait for them.
    """

    listed: "Summaries"
    searched: "Summaries"
    ended: EndedRuns
    times_left: "TimesLeft"


def list_trainings(trainings: Trainings, sources: Sources, query: ListQuery, may_read_log: MayRead) -> dict[str, Any]:
    """Return the rows of a page, and whether there are `more`.

    There are `total` trainings. `searched` of them were searched, and `found` match. For `unread` of them, the bucket
    has not answered yet. For `later` of them there was no time, and the next search continues with them. `filters` says
    how the filters of the search are understood, and `problem` which one is not understood. In this case, no training
    is listed.
    """
    from pipeline.config.settings import Settings
    from pipeline.watch.summary import LATER, UNANSWERED

    try:
        search = parse(query.search, Settings.model_fields)
    except SearchError as error:
        counts = {"found": 0, "searched": 0, "unread": 0, "later": 0}
        return {"rows": [], "more": False, "total": trainings.count(), **counts, "filters": [], "problem": str(error)}
    if query.is_of_newest:
        runs = _readable(trainings.newest(query.limit, sources.times_left, query.offset), may_read_log)
        rows = rows_of(runs, sources.listed, query.zone)
        total = trainings.count()
        counts = {"total": total, "found": total, "searched": total, "unread": 0, "later": 0}
    else:
        searched, later = search_rows(trainings, sources, may_read_log, query.zone)
        matching = _sorted(filter(search.finds, searched), query)
        rows = matching[query.offset : query.offset + query.limit]
        total = len(searched) if len(searched) < MAX_SEARCHED and not later else trainings.count()
        counts = {
            "total": total,
            "found": len(matching),
            "searched": sum(row.summary is not LATER for row in searched),
            "unread": sum(row.summary is UNANSWERED for row in searched),
            "later": later,
        }
    return {
        "rows": [row.to_json() for row in rows],
        "more": query.offset + len(rows) < counts["found"],
        **counts,
        "filters": [*map(str, search.filters)],
        "problem": "",
    }


def search_rows(
    trainings: Trainings, sources: Sources, may_read_log: MayRead, zone: tzinfo = UTC
) -> tuple[list[Row], int]:
    """Return the rows of all trainings that a search covers, the newest first, and how many are not read yet.

    It reads for about BUDGET_S, and the next call continues.
    """
    from pipeline.watch.summary import LATER

    end = time.monotonic() + BUDGET_S
    runs, not_loaded = trainings.newest_in_time(MAX_SEARCHED, sources.ended, sources.times_left, BUDGET_S)
    # To find thousands of runs may take all of the time, and each call must read more than a few of their trainings.
    left_s = max(end - time.monotonic(), BUDGET_S / 2)
    rows = rows_of(_readable(runs, may_read_log), sources.searched, zone, left_s)
    later = not_loaded + sum(row.summary is LATER for row in rows)
    sources.ended.freeze()
    return rows, later


def _readable(runs: Iterable[AirflowRun], may_read_log: MayRead) -> list[AirflowRun]:
    return [run if may_read_log(run.dag_id) else run.without_error_message() for run in runs]


def _sorted(rows: Iterable[Row], query: ListQuery) -> list[Row]:
    """Return the rows, sorted by the query and then by their number.

    Rows without a value come last. If the query sorts by accuracy, they are sorted by their error, of which the lowest
    is the best. A run that waits for its start counts as the newest.
    """

    def value(row: Row) -> Any:
        if query.sort == "started":
            return row.run.start
        found = row.value(query.sort)
        return found.casefold() if isinstance(found, str) else found

    by_number = sorted(rows, key=lambda row: row.run.number, reverse=True)
    known = [row for row in by_number if value(row) not in (None, "")]
    unknown = [row for row in by_number if value(row) in (None, "")]
    known.sort(key=value, reverse=not query.ascending)
    if query.sort == "accuracy":
        sign = -1 if query.ascending else 1
        unknown.sort(key=lambda row: (row.summary.error is None, sign * (row.summary.error or 0)))
    waiting = [row for row in unknown if query.sort == "started" and not query.ascending and not row.run.is_over]
    by_value = [*waiting, *known, *(row for row in unknown if row not in waiting)]
    if not query.within_dataset:
        return by_value
    return sorted(by_value, key=lambda row: (not row.summary.dataset, row.summary.dataset.casefold()))
