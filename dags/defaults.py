"""What all DAGs share: whose they are, how their tasks are tried again, and the defaults of their forms."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, ExceptionRetryPolicy, RetryAction, RetryRule

from dags.notify import notifiers
from pipeline.config import Settings, settings_of_command_line

DATASETS = Asset("image_dataset")
"""Updated whenever the DAG `image_dataset` has published a data set, or found it complete."""


def form_defaults() -> Settings:
    """The settings of the TOML or JSON file in TENFOLD_SETTINGS: scheduled and backfilled runs have no form."""
    file = os.environ.get("TENFOLD_SETTINGS")
    return settings_of_command_line(Path(file) if file else None, [])


def task_defaults() -> dict[str, Any]:
    """Arguments of every task."""
    return {
        "owner": _owner(),
        "retries": 2,
        "retry_delay": timedelta(seconds=15),
        "retry_policy": ExceptionRetryPolicy(
            rules=[
                RetryRule("pipeline.errors.BadInput", RetryAction.FAIL, reason="bad input: a retry would fail alike"),
                RetryRule(
                    "pipeline.errors.Preempted", RetryAction.RETRY, timedelta(0), reason="goes on at its checkpoint"
                ),
            ]
        ),
    }


def ownership() -> dict[str, Any]:
    """Arguments of every DAG about whom to turn to: TENFOLD_OWNER, TENFOLD_OWNER_LINK (https: or mailto:)."""
    link = os.environ.get("TENFOLD_OWNER_LINK")
    return {"owner_links": {_owner(): link} if link else {}, "on_failure_callback": notifiers()}


def _owner() -> str:
    return os.environ.get("TENFOLD_OWNER") or "tenfold"
