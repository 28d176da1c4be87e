"""What all DAGs share: whose they are, how their tasks are tried again, and the defaults of their forms."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, ExceptionRetryPolicy, RetryAction, RetryDecision, RetryRule

from dags.failure import keep_failure
from dags.notify import notifiers
from pipeline.config import Settings, settings_of_command_line

RETRIES = 2
DATASETS = Asset("image_dataset")
"""Updated whenever the DAG `image_dataset` has published a dataset, or found it complete."""


def form_defaults() -> Settings:
    """The settings of the TOML or JSON file in TENFOLD_SETTINGS: scheduled and backfilled runs have no form."""
    file = os.environ.get("TENFOLD_SETTINGS")
    settings = settings_of_command_line(Path(file) if file else None, [])
    if "dataset_name" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"dataset_name": ""})  # derived later, from the source that a person enters


def task_defaults() -> dict[str, Any]:
    """Arguments of every task."""
    return {
        "owner": _owner(),
        "retries": RETRIES,
        "retry_delay": timedelta(seconds=15),
        "retry_policy": ExceptionRetryPolicy(_rules()),
        "on_failure_callback": keep_failure,
    }


def training_retries() -> dict[str, Any]:
    """The same of a training: a spot machine may be taken from it many times in a week."""
    return {"retries": 20, "retry_policy": TrainingRetries(_rules())}


def _rules() -> list[RetryRule]:
    now = timedelta(0)
    return [
        RetryRule("pipeline.errors.BadInput", RetryAction.FAIL, reason="bad input: a retry would fail alike"),
        RetryRule("pipeline.errors.Preempted", RetryAction.RETRY, now, reason="goes on at its checkpoint"),
        RetryRule("pipeline.errors.ServerLost", RetryAction.RETRY, now, reason="goes on at its checkpoint, with all"),
        RetryRule("pipeline.errors.OutOfMemory", RetryAction.RETRY, now, reason="takes fewer examples at once"),
        RetryRule("pipeline.errors.CacheDamaged", RetryAction.RETRY, now, reason="decodes the images again"),
        RetryRule("pipeline.errors.StorageError", RetryAction.RETRY, now, reason="has waited for the bucket already"),
    ]


class TrainingRetries(ExceptionRetryPolicy):
    """By the rules; what none of them knows is tried as often as any task, however often the training was preempted.

    Airflow counts all tries alike, and stops at `retries` whatever a policy says. So those that are limited are counted
    here, in what Airflow keeps for a task from try to try.
    """

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        """The decision on a failure, of which those without a rule are counted."""
        decision = super().evaluate(exception, try_number, max_tries, context)
        if decision.action is not RetryAction.DEFAULT or context is None:
            return decision
        kept, key = context["task_state_store"], f"failures-{max_tries}"  # which grows when a task is cleared
        failures = kept.get(key, 0) + 1
        kept.set(key, failures)
        return decision if failures <= RETRIES else RetryDecision.fail(f"failed {failures} times, beside preemptions")


def ownership() -> dict[str, Any]:
    """Arguments of every DAG about whom to turn to: TENFOLD_OWNER, TENFOLD_OWNER_LINK (https: or mailto:)."""
    link = os.environ.get("TENFOLD_OWNER_LINK")
    return {"owner_links": {_owner(): link} if link else {}, "on_failure_callback": notifiers()}


def _owner() -> str:
    return os.environ.get("TENFOLD_OWNER") or "tenfold"
