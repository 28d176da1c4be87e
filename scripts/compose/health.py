"""Whether one part of Airflow is well, for Compose: `python -m scripts.compose.health PART`.

Asked every few seconds on every container, so it imports nothing of Airflow: `airflow jobs check` and `celery inspect`
of its app cost seconds of CPU each time.
"""

import json
import os
import socket
import sys
import urllib.request
from typing import Any

from scripts.airflow.remote import URL

TIMEOUT_S = 20


def main(part: str) -> int:
    """Return the exit code for Compose. `part` is worker, api-server, or a name that Airflow's monitor reports."""
    checks = {"worker": worker_answers, "api-server": server_is_whole}
    try:
        return 0 if checks.get(part, lambda: is_healthy(part))() else 1
    except OSError as error:
        print(f"{part}: {error}", file=sys.stderr)
        return 1


def server_is_whole() -> bool:
    """Whether the API server answers, for tasks too, and reaches the database."""
    # The first call makes the server build what serves tasks. That takes longer than the first task would wait.
    _ask("/execution/health")
    return is_healthy("metadatabase")


def is_healthy(part: str) -> bool:
    """Whether the API server says that a part is healthy: metadatabase, scheduler, triggerer, dag_processor."""
    return bool(_ask("/api/v2/monitor/health")[part]["status"] == "healthy")


def worker_answers() -> bool:
    """Whether the Celery worker of this container answers through the broker."""
    from celery import Celery

    app = Celery(broker=os.environ["AIRFLOW__CELERY__BROKER_URL"])
    return bool(app.control.ping([f"celery@{socket.gethostname()}"], timeout=TIMEOUT_S))


def _ask(path: str) -> Any:
    with urllib.request.urlopen(f"{os.environ[URL]}{path}", timeout=TIMEOUT_S) as answer:  # noqa: S310 - our own
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
