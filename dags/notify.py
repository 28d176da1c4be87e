"""The administrator's own notifiers, for runs that fail, are late, need a person, or train worse than before.

TENFOLD_NOTIFIERS names functions without arguments, as `package.module.function`, separated by commas; each returns an
Airflow notifier, such as that of Slack, PagerDuty or SMTP.
"""

import logging
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import (  # type: ignore[attr-defined]  # its stub lacks the names for deadlines
    AsyncCallback,
    BaseNotifier,
    DagRunState,
    DeadlineAlert,
)
from airflow.sdk.module_loading import import_string

from dags.queued import RunQueued

_log = logging.getLogger(__name__)


def notifiers() -> list[BaseNotifier]:
    """Return a notifier of each function that TENFOLD_NOTIFIERS names."""
    return [_notifier(name) for name in _names()]


def _names() -> list[str]:
    return [name.strip() for name in os.environ.get("TENFOLD_NOTIFIERS", "").split(",") if name.strip()]


def _notifier(name: str) -> BaseNotifier:
    notifier: BaseNotifier = import_string(name)()
    return notifier


def notify(context: Any) -> None:
    """Notify of a task that succeeds, but that a person should look at.

    It left a decision to a person, or the training is worse than those before it. A notifier that fails, or that cannot
    be imported, costs only an error in the log.
    """
    for name in _names():
        try:
            _notifier(name)(context)
        except Exception:  # noqa: BLE001 - any package of the administrator; the task has done its work
            _log.exception("the notifier %s failed", name)


def deadline(default_hours: float) -> DeadlineAlert:
    """Return an alert for a run that has not ended TENFOLD_DEADLINE_HOURS after it was queued."""
    hours = float(os.environ.get("TENFOLD_DEADLINE_HOURS") or default_hours)
    return DeadlineAlert(
        reference=RunQueued(),
        interval=timedelta(hours=hours),
        callback=AsyncCallback(tell_late, kwargs={"hours": hours}),
    )


async def tell_late(hours: float, context: dict[str, Any] | None = None) -> None:
    """Notify of a run that is late. The triggerer calls this when a deadline has passed, also if the run has failed."""
    run = (context or {}).get("dag_run") or {}
    # Airflow forgets the deadline only of a run that succeeds.
    if run.get("state") in (DagRunState.SUCCESS, DagRunState.FAILED):
        return
    # The keys of the REST API, because there is no context of a task.
    names = (run.get("dag_run_id"), run.get("dag_id"))
    _log.warning("the run %s of %s has not ended within %g hours after it was queued", *names, hours)
    for name in _names():
        try:
            notifier = _notifier(name)
            # A copy: each notifier adds its own fields to it.
            notifier.context = {**context} if context else {}
            await notifier  # Unlike `async_notify`, this renders its templates.
        except Exception:  # noqa: BLE001 - as in `notify`
            _log.exception("the notifier %s failed", name)
