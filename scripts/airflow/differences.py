"""The settings that a running Airflow got at its start, and how those of a command differ from them.

The processes of `up` read their variables once. Without this comparison, a command with other variables would run with
those of Airflow, and say nothing.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pipeline.config.allowed import ALL
from pipeline.config.data_date import TIME_ZONE
from pipeline.errors import ERROR_FILE
from scripts.airflow.checks import BACKFILLS, RETRAIN_SCHEDULE, SCHEDULES
from scripts.airflow.remote import PASSWORD, URL

SETTINGS = "TENFOLD_SETTINGS"
CONTENT = f"the content of {SETTINGS}"
"""Stands for the file of the settings among the names of variables."""
_OF_COMMANDS = ("TENFOLD_HOME", URL, PASSWORD, ERROR_FILE)
"""Variables that commands use, and Airflow's processes do not."""
_PUBLIC = (
    SETTINGS,
    "TENFOLD_PORT",
    "TENFOLD_WORKSPACE",
    "TENFOLD_LOCAL_FOLDER",
    "TENFOLD_TRAININGS_AT_ONCE",
    TIME_ZONE,
    BACKFILLS,
    RETRAIN_SCHEDULE,
    *SCHEDULES,
    *ALL,
)
"""Variables whose values may be stored and shown. Any other may hold a secret, such as a token in an address."""


def noted_settings(environ: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the variables of Airflow and of Tenfold in an environment, and the content of the settings file.

    Values that are not public, and the content, are hashes with the secret `key`: a later command can compare them.
    """
    names = sorted(name for name in environ if name.startswith(("AIRFLOW", "TENFOLD_")))
    noted = {name: environ[name] if name in _PUBLIC else _hash(environ[name].encode(), key) for name in names}
    return {**noted, CONTENT: _hash(_content(environ.get(SETTINGS, "")), key)}


def differences(asked: Mapping[str, str], got: Mapping[str, str], key: str) -> list[str]:
    """Return how the variables that a command sets differ from those of a running Airflow, one text for each.

    Args:
        asked: The variables of the command.
        got: What `noted_settings` returned at the start of Airflow.
        key: The same key as then.
    """
    noted = noted_settings(asked, key)
    has_same_content = noted.pop(CONTENT) == got[CONTENT]
    differing = {
        name: value for name, value in noted.items() if name not in _OF_COMMANDS and value != got.get(name, "")
    }
    if has_same_content:  # A copy of the file has the same effect.
        differing.pop(SETTINGS, None)
    texts = [_difference(name, value, got.get(name, "")) for name, value in differing.items()]
    if SETTINGS in noted and SETTINGS not in differing and not has_same_content:
        texts.append(f"the file {noted[SETTINGS]} ({SETTINGS}) has changed since Airflow started")
    return texts


def _difference(name: str, here: str, there: str) -> str:
    if name not in _PUBLIC:
        return f"{name} has another value" if there else f"{name} is set, but not for Airflow"
    return f"{name} is {here or 'empty'}, but {there or 'not set'} for Airflow"


def _content(file: str) -> bytes:
    """Return the content of the settings file; empty if there is none. A file that cannot be read has its own value."""
    try:
        return Path(file).read_bytes() if file else b""
    except OSError:
        return b"unreadable"


def _hash(value: bytes, key: str) -> str:
    return hashlib.blake2b(value, digest_size=16, key=key.encode()[:64]).hexdigest() if value else ""
