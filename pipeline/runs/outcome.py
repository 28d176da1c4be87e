"""The lines with which a command ends that has trained a model, with and without Airflow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def outcome_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the results of a run, one line for each: places, score, verdict and promotion.

    `result` has the results of all stages, as `tenfold run --json` prints them. What a stage did not return is left
    out.
    """
    dataset, report = result.get("dataset"), result.get("report")
    rows = {
        "Dataset": dataset,
        "Card": _link(f"{dataset}/card.html") if dataset else None,
        "Rejected": _rejected(result),
        "Model": result.get("model"),
        "Comet": _comet(result.get("comet", "")),
        "Report": _link(report) if report else None,
        result.get("split", "validation").title(): _score(result),
        "Verdict": result.get("verdict"),
        "Speed": _speed(result.get("examples_per_s")),
        "Promotion": result.get("promotion"),
    }
    return [f"{name + ':':<15}{value}" for name, value in rows.items() if value]


def outcome_text(result: Mapping[str, Any]) -> str:
    """Return `outcome_lines` as one text."""
    return "\n".join(outcome_lines(result))


def _link(page: str) -> str:
    """Return the address of a page that a terminal can open: with file:// on this machine, unchanged in a bucket."""
    return Path(page).as_uri() if page.startswith("/") else page


def _rejected(result: Mapping[str, Any]) -> str:
    """Return how many examples the dataset of a run lacks; empty if it lacks none."""
    count = result.get("rejected")
    listed = sum(result.get("examples", {}).values()) + (count or 0)
    return f"{count} of {listed} examples, see {result['dataset']}/rejected.jsonl" if count else ""


def _comet(experiment: str) -> str:
    """Return the address of the experiment, or the folder of its archives with what to do with them."""
    is_online = not experiment or experiment.startswith(("http://", "https://"))
    return experiment if is_online else f"{experiment} (not sent: docs/how-to/comet.md explains how to upload it)"


def _speed(examples_per_s: float | None) -> str:
    """Return the speed of the steady steps; empty if it is unknown."""
    return f"{examples_per_s:,.0f} examples per second" if examples_per_s else ""


def _score(result: Mapping[str, Any]) -> str:
    """Return the score of the model against its baseline, and its epoch."""
    best, last = (result.get("metrics") or {}).get("best_epoch"), result.get("epochs")
    shown = str(result.get("headline") or "")
    return f"{shown}; best epoch: {best} of {last}" if shown and best and last else shown
