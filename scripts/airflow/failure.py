"""Finds the error in the log of a failed task."""

from collections.abc import Sequence
from typing import Any

_LAST_LINES = 5
"""Lines that are shown of a log without an exception."""


def error_text(entries: Sequence[Any]) -> str:
    """Return the error in the log of a task: its last exception, else its last errors, else its last lines."""
    records = [entry for entry in entries if isinstance(entry, dict)]
    for record in reversed(records):
        if record.get("error_detail"):
            return "\n".join(_exceptions(record["error_detail"]))
    errors = [record for record in records if record.get("level") in ("error", "critical")]
    lines = [_event(entry) for entry in (errors or entries)]
    # Lines with `::` are marks of Airflow that fold groups of lines in its UI.
    return "\n".join([line for line in lines if line and not line.startswith("::")][-_LAST_LINES:]) or "(no log)"


def log_path(entries: Sequence[Any]) -> str:
    """Return the file that the log was read from; empty if the task never wrote one."""
    paths = (line for line in map(_event, entries) if line.startswith("/") and line.endswith(".log"))
    return next(paths, "")


def skip_reason(entries: Sequence[Any]) -> str:
    """Return why a task skipped its work, from its log."""
    skips = [entry for entry in entries if isinstance(entry, dict) and entry.get("event") == "Skipping task."]
    return str(skips[-1].get("reason", "")) if skips else ""


def _exceptions(stacks: list[dict[str, Any]]) -> list[str]:
    # The exception comes first, then its causes. The cause is often the line that helps.
    first, *others = stacks
    causes = [stack for stack in others if stack.get("is_cause") and stack["exc_value"] != first["exc_value"]]
    return [_exception(first), *first.get("exc_notes", []), *(f"caused by {_exception(cause)}" for cause in causes)]


def _exception(stack: dict[str, Any]) -> str:
    return f"{stack['exc_type']}: {stack['exc_value']}".rstrip(": ")


def _event(entry: Any) -> str:
    return str(entry.get("event", "")) if isinstance(entry, dict) else str(entry)
