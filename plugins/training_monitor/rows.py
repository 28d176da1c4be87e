"""A row of the list of trainings: what Airflow and the files of a training say, for the page and for searches."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.utils.state import DagRunState

from pipeline.watch.states import STATE_NAMES
from plugins.training_monitor.runs import AirflowRun, Link

if TYPE_CHECKING:
    from pipeline.runs.decision import Outcome
    from pipeline.watch.summary import Summaries, Summary

_WITHOUT_STEPS = ("starting", "silent")
"""States of a training that has a folder, and may wait for a slot of the pool again."""
_SHOWN = ("state", "words", "dataset", "model", "progress", "accuracy", "wait", "limit", "promotion", "why", "speed")
"""Fields of a summary that the page gets."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run of the list."""

    run: AirflowRun
    summary: "Summary"
    zone: tzinfo
    """The time zone of the person who reads it."""

    def cells(self) -> dict[str, str]:
        """Return the text of each column."""
        return {name: cell(self) for name, cell in CELLS.items()}

    def text(self) -> str:
        """Return the text of all columns in lower case."""
        return " ".join(cell(self) for cell in CELLS.values()).casefold()

    def cell(self, name: str) -> str:
        """Return all that a column shows."""
        return CELLS[name](self)

    def value(self, name: str) -> Any:
        """Return the value of a column or setting, as searches and the order of the list use it; None if it has none.

        A regression has no accuracy: its cell has an error, which cannot be sorted among accuracies.
        """
        if value := _VALUES.get(name):
            return value(self)
        return self.summary.setting(name)

    def _links(self) -> list[Link]:
        """Return the links to the report of a complete training, and to the log of the task that failed."""
        ids = urlencode({"dag_id": self.run.dag_id, "run_id": self.run.run_id})
        has_report = self.summary.state == "trained" and self.run.state == DagRunState.SUCCESS
        return [*([("Report", f"report?{ids}")] if has_report else []), *([self.run.log] if self.run.log else [])]

    def to_json(self) -> dict[str, Any]:
        """Return what the page gets."""
        run, summary = self.run, self.summary
        return {
            "dag_id": run.dag_id,
            "run_id": run.run_id,
            "start": run.start and run.start.isoformat(),
            "note": run.note,
            **{name: getattr(summary, name) for name in _SHOWN},
            "name": STATE_NAMES[summary.state],
            "badge": _badge(summary.promotion),
            "links": self._links(),
            "cells": self.cells(),
        }


def rows_of(runs: Sequence[AirflowRun], summaries: "Summaries", zone: tzinfo, budget_s: float = math.inf) -> list[Row]:
    """Return the rows of runs. The training of each is read with `summaries`, within `budget_s`."""
    from pipeline.watch.summary import Training

    trainings = [Training(run.training, run.is_over) for run in runs if run.training]
    of_trainings = iter(summaries.of(trainings, budget_s=budget_s))
    return [Row(run, _in_airflow(run, next(of_trainings) if run.training else None), zone) for run in runs]


def _in_airflow(run: AirflowRun, summary: "Summary | None") -> "Summary":
    """Return the summary of a run: that of its training, with what Airflow says of a run that waits or failed."""
    from pipeline.watch.summary import with_settings

    if summary is None:
        return with_settings(_without_training(run), run.settings)
    if run.failure and summary.state in ("stopped", "trained"):
        # A complete training is of use, even if a task after it failed.
        state = "failed" if summary.state == "stopped" else summary.state
        return replace(summary, state=state, words=run.failure.sentence)
    if run.stage and run.stage.state == "waiting" and summary.state in _WITHOUT_STEPS:
        return replace(summary, state="waiting", words=run.stage.words)
    return summary


def _without_training(run: AirflowRun) -> "Summary":
    from pipeline.watch.summary import GONE, Summary

    if run.state == DagRunState.FAILED:
        return Summary("failed", run.failure.sentence if run.failure else "The run ended before its training began.")
    if run.refusal:
        return Summary("unknown", f"it cannot be read: {run.refusal}")
    return Summary(run.stage.state, run.stage.words) if run.stage else GONE


@cache  # As `_share`.
def _badge(promotion: "Outcome | None") -> str:
    from pipeline.runs.decision import BADGES

    return BADGES[promotion] if promotion else ""


@lru_cache(maxsize=10_000)  # A search of thousands of rows asks for few different ones.
def _share(value: float | None) -> str:
    from pipeline.monitor.diagnosis import percent

    return "" if value is None else percent(value)


def _progress(row: Row) -> str:
    """Return the share of the steps that are done; before the training, the number of tasks."""
    done = row.run.stage.done if row.run.stage and row.run.training is None else ""
    return _share(row.summary.progress) or done


def _started(row: Row) -> str:
    # Faster than a format.
    return row.run.start.astimezone(row.zone).isoformat(" ", "seconds")[:19] if row.run.start else ""


CELLS: Mapping[str, Callable[[Row], str]] = {
    "run": lambda row: " ".join(filter(None, (row.run.note, row.run.run_id))),
    "user": lambda row: row.run.user,
    "dag": lambda row: row.run.dag_id,
    "state": lambda row: ": ".join(filter(None, (STATE_NAMES[row.summary.state], row.summary.words))),
    "started": _started,
    "dataset": lambda row: row.summary.dataset,
    "model": lambda row: row.summary.model,
    "progress": _progress,
    "accuracy": lambda row: row.summary.validation,
    "promotion": lambda row: ": ".join(filter(None, (_badge(row.summary.promotion), row.summary.why))),
    "wait": lambda row: _share(row.summary.wait),
    "limit": lambda row: row.summary.limit,
}
"""The text of each column of the page."""
_NUMBERS: Mapping[str, Callable[[Row], float | None]] = {
    "progress": lambda row: row.summary.progress,
    "accuracy": lambda row: row.summary.accuracy,
    "wait": lambda row: row.summary.wait,
    "error": lambda row: row.summary.error,
    "speed": lambda row: row.summary.speed,
}
_NAMES: Mapping[str, Callable[[Row], str]] = {
    "run": lambda row: row.run.note.split("\n")[0] or row.run.run_id,
    "state": lambda row: STATE_NAMES[row.summary.state],
    "promotion": lambda row: _badge(row.summary.promotion),
}
"""What a person calls the value of a column, without the sentence beside it."""
_VALUES: Mapping[str, Callable[[Row], Any]] = {**CELLS, **_NAMES, **_NUMBERS}
