"""The administrator's settings of DAGs: what Airflow would only say of a DAG that it could not import."""

from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

from croniter import croniter

from pipeline.config import Settings, settings_of_command_line
from pipeline.errors import SettingsError
from scripts.airflow.errors import Refused
from scripts.airflow.progress import say

SCHEDULES = ("TENFOLD_DATASET_SCHEDULE", "TENFOLD_TRAINING_SCHEDULE")
PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
_ANSWERS = ("true", "false", "yes", "no", "1", "0")
_LINKS = ("https://", "http://", "mailto:")


def check_schedule(environ: Mapping[str, str]) -> None:
    """Refuse what keeps a DAG from being imported, or lets its runs always fail."""
    file = environ.get("TENFOLD_SETTINGS", "")
    settings = usual_settings(file)
    for variable, (is_right, wanted) in _checks().items():
        if (text := environ.get(variable, "")) and not is_right(text):
            raise Refused(f"{variable} must be {wanted}, got {text!r}")
    for variable in SCHEDULES:
        if cron := environ.get(variable, ""):
            if not settings.source_uri:
                raise Refused(f"{variable} needs a file of settings with a source_uri: name it in TENFOLD_SETTINGS")
            say(f"Schedule ({variable}): {cron}, with the settings of {file}. Its latest interval starts at once")


def usual_settings(file: str) -> Settings:
    """The settings of a DAG before a form changes any: those of the file in TENFOLD_SETTINGS. Raises Refused."""
    try:
        return settings_of_command_line(Path(file) if file else None, [])
    except SettingsError as error:
        raise Refused(f"TENFOLD_SETTINGS={file}: {error}") from error


def _checks() -> Mapping[str, tuple[Callable[[str], bool], str]]:
    """By setting: whether a text will do, and what is wanted."""
    return {
        **dict.fromkeys(SCHEDULES, (_is_schedule, f"a cron expression or one of {', '.join(PRESETS)}")),
        "TENFOLD_START_DATE": (_is_date, "a date such as 2026-01-31"),
        "TENFOLD_CATCHUP": (lambda text: text.lower() in _ANSWERS, "true or false"),
        "TENFOLD_DEADLINE_HOURS": (_is_hours, "a number of hours"),
        "TENFOLD_OWNER_LINK": (lambda text: text.startswith(_LINKS), "an https: or mailto: link"),
    }


def _is_schedule(text: str) -> bool:
    return text in PRESETS or (not text.startswith("@") and bool(croniter.is_valid(text)))


def _is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def _is_hours(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
