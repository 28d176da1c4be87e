"""Checks the administrator's settings of DAGs. Airflow itself would only report a DAG that it cannot import."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from croniter import CroniterError, croniter

from pipeline.allowed import OF_PLACES, allowed_places
from pipeline.config import Settings, settings_of_command_line
from pipeline.data_date import utc_of
from pipeline.errors import SettingsError
from scripts.airflow.errors import Refused
from scripts.airflow.notifiers import problem_of_notifiers
from scripts.airflow.progress import say

SCHEDULES = (
    "TENFOLD_DATASET_SCHEDULE",
    "TENFOLD_TRAINING_SCHEDULE",
    "TENFOLD_TABULAR_SCHEDULE",
    "TENFOLD_TABULAR_DATASET_SCHEDULE",
)
PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
_ANSWERS = ("true", "false", "yes", "no", "1", "0")
MAX_HOURS = 87_600
"""Ten years. Airflow adds this time to a date, and dates have a maximum."""
MAX_SECONDS = 86_400
"""One day."""
_LINKS = ("https://", "http://", "mailto:")


def check_schedule(environ: Mapping[str, str]) -> None:
    """Refuse settings that keep a DAG from being imported or make all runs fail. `up` and Compose call it first."""
    file = environ.get("TENFOLD_SETTINGS", "")
    settings = default_settings(file)
    for variable, (is_right, wanted) in _checks().items():
        if (text := environ.get(variable, "")) and not is_right(text):
            raise Refused(f"{variable} must be {wanted}, got {text!r}")
    for variable in SCHEDULES:
        if cron := environ.get(variable, ""):
            if not settings.source_uri:
                raise Refused(f"{variable} needs a settings file with a source_uri: set TENFOLD_SETTINGS to that file")
            say(f"Schedule ({variable}): {cron}, with the settings of {file}. Its latest interval starts at once")
    for setting in OF_PLACES:
        _require_places(setting, environ)

    names = [name.strip() for name in environ.get("TENFOLD_NOTIFIERS", "").split(",") if name.strip()]
    if names and (problem := problem_of_notifiers(environ, names)):
        raise Refused(
            f"TENFOLD_NOTIFIERS: {problem}. Give package.module.function names that Airflow's processes can import. "
            "Each function takes no arguments and returns an Airflow notifier"
        )


def _require_places(setting: str, environ: Mapping[str, str]) -> None:
    try:
        allowed_places(setting, environ)
    except SettingsError as error:
        raise Refused(str(error)) from error


def default_settings(file: str) -> Settings:
    """Return the settings of a DAG before a form changes any: those of the file in TENFOLD_SETTINGS. Raises Refused."""
    try:
        return settings_of_command_line(Path(file) if file else None, [])
    except SettingsError as error:
        raise Refused(f"TENFOLD_SETTINGS={file}: {error}") from error


def _checks() -> Mapping[str, tuple[Callable[[str], bool], str]]:
    """Return, for each setting, a check of its text and a description of valid values."""
    return {
        **dict.fromkeys(
            SCHEDULES, (_is_schedule, f"a cron expression with a next date, or one of {', '.join(PRESETS)}")
        ),
        "TENFOLD_START_DATE": (_is_date, "a date such as 2026-01-31, or a time such as 2026-01-31T00:00+02:00"),
        "TENFOLD_CATCHUP": (lambda text: text.lower() in _ANSWERS, "true or false"),
        **dict.fromkeys(
            ("TENFOLD_DEADLINE_HOURS", "TENFOLD_RETRAIN_WAIT_HOURS"),
            (partial(_is_number, limit=MAX_HOURS), f"a number of hours, above 0 and at most {MAX_HOURS}"),
        ),
        "TENFOLD_RETRAIN_POLL_SECONDS": (
            partial(_is_number, limit=MAX_SECONDS),
            f"a number of seconds, above 0 and at most {MAX_SECONDS}",
        ),
        "TENFOLD_OWNER_LINK": (lambda text: text.startswith(_LINKS), "an https: or mailto: link"),
    }


def _is_schedule(text: str) -> bool:
    if text.startswith("@"):
        return text in PRESETS
    try:
        croniter(text).get_next()  # "0 0 31 2 *" is valid, but never occurs.
    except CroniterError:
        return False
    return True


def _is_date(text: str) -> bool:
    try:
        return bool(utc_of(text))
    except (ValueError, OverflowError):
        return False


def _is_number(text: str, limit: float) -> bool:
    try:
        return 0 < float(text) <= limit
    except ValueError:
        return False
