"""A request for the change of one setting."""

from typing import Any

from pipeline.runs.changes import Change, request_changes
from pipeline.storage import Place


def request_change(folder: Place, field: str, value: Any, by: str) -> Change:
    """Request a change of one setting, and return it. Arguments and errors are those of `request_changes`."""
    [requested] = request_changes(folder, {field: value}, by)
    return requested
