"""Store the error message of a task that failed, for the pages of the plugin."""

from typing import Any

from airflow.sdk.log import redact

from dags.xcom_keys import FAILURE
from pipeline.errors import TenfoldError

MAX_CHARACTERS = 2000
"""Limit for a stored message, which is shown on a page."""


def store_failure(context: Any) -> None:
    """Store the error message in an XCom. The plugin shows it on the page of the training."""
    # Only the task's own process sets it. If that process died with its worker, the dag-processor calls this function,
    # and there a push is never answered (Airflow 3.3.2): it would hang, and the callbacks after it would be lost.
    if "exception" not in context:
        return
    # If Airflow ended the task itself, the exception is a text.
    error = context["exception"] or "it ended without an error"
    message = str(error) if isinstance(error, TenfoldError | str) else f"{type(error).__name__}: {error}"
    # Airflow hides secrets in logs, but not in XComs.
    hidden = str(redact(message)).encode("utf-8", "backslashreplace").decode()  # A file name may not be UTF-8.
    context["ti"].xcom_push(key=FAILURE, value=hidden[:MAX_CHARACTERS])
