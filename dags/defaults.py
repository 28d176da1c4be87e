"""Arguments that all DAGs share: form, owner, deadline, and what happens when a task fails."""

import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, ExceptionRetryPolicy, RetryAction, RetryDecision, RetryRule
from airflow.sdk.log import redact
from pydantic import BaseModel

from dags.form import form
from dags.form_settings import FORM_SETTINGS
from dags.notify import deadline, notifiers
from dags.small import EXTRACT
from dags.xcom_keys import ANNOUNCED, FAILURE
from pipeline.config.settings import Settings, settings_of_command_line
from pipeline.errors import TenfoldError
from pipeline.storage import place_of

RETRIES = 2
"""Attempts after the first one, for failures without a rule."""
DATASETS = Asset("dataset")
"""The DAGs `image_dataset` and `tabular_dataset` update this asset when they have published a dataset, or found it
complete."""
MAX_CHARACTERS = 2000
"""Limit for a stored message, which is shown on a page."""


def form_defaults() -> Settings:
    """Return the settings of the file in TENFOLD_SETTINGS. Scheduled and backfilled runs have no other form."""
    file = os.environ.get("TENFOLD_SETTINGS")
    settings = settings_of_command_line(Path(file) if file else None, [])
    if "dataset_name" in settings.model_fields_set:
        return settings
    # It is derived later, from the source that a person enters.
    return settings.model_copy(update={"dataset_name": ""})


def dag_defaults(
    dag_id: str, first: Iterable[str], deadline_hours: float, options: BaseModel | None = None
) -> dict[str, Any]:
    """Return the arguments that every DAG has: its form, its owner, its deadline and the retries of its tasks.

    Args:
        dag_id: Name of the DAG.
        first: Settings that come first in the form.
        deadline_hours: A run is late if it has not ended after this time, unless TENFOLD_DEADLINE_HOURS is set.
        options: Default values of the options that only this DAG has.
    """
    owner = os.environ.get("TENFOLD_OWNER") or "tenfold"
    link = os.environ.get("TENFOLD_OWNER_LINK")  # https: or mailto:
    return {
        "params": form(form_defaults(), FORM_SETTINGS[dag_id], first, options),
        "owner_links": {owner: link} if link else {},
        "on_failure_callback": notifiers(),
        "deadline": deadline(deadline_hours),
        "default_args": {
            "owner": owner,
            "retries": RETRIES,
            "retry_delay": timedelta(seconds=15),
            "retry_policy": ExceptionRetryPolicy(_rules()),
            "on_failure_callback": [store_failure, withdraw_announcement],
        },
    }


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


def withdraw_announcement(context: Any) -> None:
    """Store in the training that a run continues that its dataset is not built any more, unless it is complete."""
    if "exception" not in context:  # As in `store_failure`.
        return
    if announced := context["ti"].xcom_pull(task_ids=EXTRACT, key=ANNOUNCED):
        from pipeline.runs.changes import withdraw_dataset
        from pipeline.runs.continuation import BUILD_FAILED

        training, announced_at = announced
        withdraw_dataset(place_of(training), announced_at, BUILD_FAILED)


def long_task_retries() -> dict[str, Any]:
    """Return the arguments for retries of a task that may be ended many times by no fault of its own.

    A spot machine may be preempted, and a busy Airflow fails a sensor that waits without a worker
    (https://github.com/apache/airflow/issues/71172).
    """
    return {"retries": 20, "retry_policy": LongTaskRetries(_rules())}


def _rules() -> list[RetryRule]:
    # No delay: the next attempt does something else, or the time limit of the bucket's retries is over already.
    now = timedelta(0)
    return [
        RetryRule("pipeline.errors.BadInput", RetryAction.FAIL, reason="bad input: a retry would fail in the same way"),
        RetryRule("pipeline.errors.Preempted", RetryAction.RETRY, now, reason="continues from its checkpoint"),
        RetryRule(
            "pipeline.errors.ServerLost", RetryAction.RETRY, now, reason="all servers continue from the checkpoint"
        ),
        RetryRule("pipeline.errors.OutOfMemory", RetryAction.RETRY, now, reason="uses smaller micro-batches"),
        RetryRule("pipeline.errors.CacheDamaged", RetryAction.RETRY, now, reason="decodes the images again"),
        RetryRule("pipeline.errors.StorageError", RetryAction.RETRY, now, reason="has already waited for the bucket"),
    ]


class LongTaskRetries(ExceptionRetryPolicy):
    """Retries by the rules, and other failures as often as those of any task, however often it was ended.

    Airflow counts all attempts alike, and stops at `retries` whatever a policy decides. So this class counts the
    failures without a rule itself, in the state that Airflow stores for a task.
    """

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        """Return the decision on a failure, and count the failure if no rule matches."""
        decision = super().evaluate(exception, try_number, max_tries, context)
        if decision.action is not RetryAction.DEFAULT or context is None:
            return decision
        store, key = context["task_state_store"], f"failures-{max_tries}"  # max_tries grows when a task is cleared.
        failures = store.get(key, 0) + 1
        store.set(key, failures)
        return (
            decision
            if failures <= RETRIES
            else RetryDecision.fail(f"failed {failures} times, not counting attempts that were ended from outside")
        )
