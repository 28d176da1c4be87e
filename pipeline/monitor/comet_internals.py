"""Everything of comet-ml that the monitor relies on although Comet does not document it. Nothing else touches it.

Seen in comet-ml 3.58.8. tests/monitor/test_comet_internals.py fails if an upgrade changes it.
"""

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SEEN_IN = "3.58.8"
"""The version of comet-ml that all of this was read in."""
ENVIRONMENT = {
    "COMET_DISABLE_AUTO_LOGGING": "1",  # It would patch TensorFlow and Keras.
    "COMET_ERROR_TRACKING_ENABLE": "false",  # It would send its own errors to Comet.
    "COMET_DISABLE_ANNOUNCEMENT": "1",
    # In an outage, it shows many tracebacks, and a command that would upload the archive as another experiment.
    "COMET_LOGGING_CONSOLE": "CRITICAL",
    "COMET_FALLBACK_STREAMER_KEEP_OFFLINE_ZIP": "1",  # What a server did not take at the very end would be lost.
    "COMET_TIMEOUT_CLEANING": "50",  # At the end, it would wait for its server for up to an hour.
}
"""Variables that Comet reads when it is imported. Values that the user has set win."""
MODULES_WITH_FOLDERS = ("comet_ml.experiment", "comet_ml.streamer.fallback")
"""Modules that make temporary folders for messages, by `tempfile.mkdtemp()`."""
MESSAGES, DESCRIPTION = "messages.json", "experiment.json"
"""Files of an offline archive: one message a line, and the experiment that `comet upload` makes of them."""


def configure() -> None:
    """Set the environment of Comet. Call it before the first import of comet_ml."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if os.environ["COMET_LOGGING_CONSOLE"] == "CRITICAL":
        # Comet's client tries again through urllib3, which warns of each try. The sink warns of the outcome.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


def setting(name: str) -> Any:
    """Return a setting of Comet, such as `comet.api_key`; None if it has no value, or comet_ml is not imported."""
    comet_ml = sys.modules.get("comet_ml")
    return comet_ml.get_config(name) if comet_ml else None


def is_running(experiment: Any) -> bool:
    """Return whether an experiment has started: its server answered and took the key, or it is offline."""
    return bool(experiment.alive)


def is_delivered(experiment: Any) -> bool:
    """Return whether the server has all of an experiment that has ended. It never has an offline one."""
    return bool(experiment.streamer.has_connection_to_server())


def description(key: str, project: str, workspace: str | None) -> dict[str, Any]:
    """Return the content of DESCRIPTION for an experiment that starts now and that a later attempt may continue."""
    return {
        "offline_id": key,
        "project_name": project,
        "start_time": _milliseconds(),
        "stop_time": None,
        "tags": [],
        "workspace": workspace,
        "resume_strategy": "get_or_create",
        "customer_error_reported": False,
        "customer_error_message": None,
        "user_provided_experiment_key": True,
        "comet_start_sourced": True,
    }


def stopped(description: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an experiment that stops now."""
    return {**description, "stop_time": _milliseconds()}


def _milliseconds() -> int:
    return int(1000 * time.time())


def is_whole_message(line: bytes) -> bool:
    """Return whether a line of MESSAGES is complete. The last line of a killed process may be torn."""
    return line.startswith(b"{") and line.endswith(b"}\n")


@contextmanager
def temporary_folders_in(folder: Path) -> Iterator[None]:
    """Have Comet make its temporary folders in `folder`.

    Comet has no setting for that, and TMPDIR would apply to the whole process.
    """
    modules = [import_module(name) for name in MODULES_WITH_FOLDERS]
    originals = [vars(module)["tempfile"] for module in modules]
    try:
        for module in modules:
            # These modules use nothing else of `tempfile`.
            vars(module)["tempfile"] = SimpleNamespace(mkdtemp=partial(tempfile.mkdtemp, dir=folder))
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            vars(module)["tempfile"] = original
