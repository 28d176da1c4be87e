"""The results of a run, or the error of its first failed task."""

from collections.abc import Sequence
from typing import Any

from pipeline.runs.outcome import outcome_lines
from scripts.airflow.client import Client, Json

COMMIT = "upload.commit"
"""The task that returns the published dataset."""
_LAST_LINES = 5
"""Lines that are shown of a log without an exception."""
_SILENT = "its process ended without a message, for example because it was killed"


def results(client: Client, run_id: str) -> list[str]:
    """Return the results of a run, one line for each: places, score and verdicts."""
    dataset, train, report, promotion = (
        task_result(client, run_id, task_id) for task_id in (COMMIT, "train", "report", "promote")
    )
    return outcome_lines({**dataset, **train, **report, "promotion": promotion.get("why")})


def task_result(client: Client, run_id: str, task_id: str) -> Json:
    """Return the result of a task, or of the first one of a mapped task; empty if it returned nothing."""
    values = (client.xcom(run_id, task_id, map_index=index) for index in (-1, 0))
    return next((value for value in values if isinstance(value, dict)), {})


def failure_of(client: Client, run_id: str) -> str:
    """Return why a run failed: its first failed task, with the lines of its log that matter."""
    instances = client.task_instances(run_id)
    failed = [task for task in instances if task["state"] == "failed"]
    if not failed:
        return f"The run {run_id} failed, but none of its tasks did: somebody stopped the run, or it ran out of time"
    # Later failures are often consequences of the first one. Times of the API sort as text.
    first = min(failed, key=lambda task: task["end_date"] or "9999")
    entries = client.log(run_id, first)
    parts = sum(task["task_id"] == first["task_id"] for task in instances)
    part = f" (part {first['map_index']})" if parts > 1 else ""
    return (
        f"{first['task_id']}{part} failed: {error_text(entries)}\nFull log: {log_path(entries) or 'none was written'}"
    )


def error_text(entries: Sequence[Any]) -> str:
    """Return the error in the log of a task: its last exception, else its last errors, else its last lines."""
    records = [entry for entry in entries if isinstance(entry, dict)]
    for record in reversed(records):
        if record.get("error_detail"):
            return "\n".join(_exceptions(record["error_detail"]))
    errors = [record for record in records if record.get("level") in ("error", "critical")]
    # Lines with `::` are marks of Airflow that fold groups of lines in its UI. The path of the log is no message.
    other = ("::", log_path(entries) or "::")
    lines = [line for line in map(_event, errors or entries) if line and not line.startswith(other)]
    return "\n".join(lines[-_LAST_LINES:]) or _SILENT


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
