"""Checks the administrator's settings of DAGs. Airflow itself would only report a DAG that it cannot import."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from zoneinfo import ZoneInfo

from croniter import CroniterError, croniter

from pipeline.config.allowed import OF_PLACES, allowed_places
from pipeline.config.data_date import TIME_ZONE, moment_in, zone_from
from pipeline.config.settings import Settings, settings_of_command_line
from pipeline.errors import SettingsError
from scripts.airflow.errors import Refused
from scripts.airflow.progress import say

SCHEDULE_OF: Mapping[str, str] = {
    "image_dataset": "TENFOLD_DATASET_SCHEDULE",
    "image_training": "TENFOLD_TRAINING_SCHEDULE",
    "tabular_training": "TENFOLD_TABULAR_SCHEDULE",
    "tabular_dataset": "TENFOLD_TABULAR_DATASET_SCHEDULE",
}
"""The schedule of each DAG that reads a source."""
SCHEDULES = tuple(SCHEDULE_OF.values())
RETRAIN_SCHEDULE = "TENFOLD_RETRAIN_SCHEDULE"
BACKFILLS = "TENFOLD_BACKFILL_SCHEDULE"
"""The dates of backfills of a DAG without a schedule."""
PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
MAX_HOURS = 87_600
"""Ten years. Airflow adds this time to a date, and dates have a maximum."""
MAX_SECONDS = 86_400
"""One day."""


def check_schedule(environ: Mapping[str, str]) -> None:
    """Refuse settings that keep a DAG from being imported or make all runs fail. `up` and Compose call it first."""
    settings = default_settings(environ)
    for variable, (check, wanted) in _checks().items():
        if (text := environ.get(variable, "")) and not _is_right(check, text):
            raise Refused(f"{variable} must be {wanted}, got {text!r}")
    for variable in (*SCHEDULES, RETRAIN_SCHEDULE):
        if cron := environ.get(variable, ""):
            if missing := [name for name in _needed_settings(variable) if not getattr(settings, name)]:
                raise Refused(
                    f"{variable} needs a settings file with a {missing[0]}: set TENFOLD_SETTINGS to that file"
                )
            file = environ.get("TENFOLD_SETTINGS")
            if settings.data_date and variable in SCHEDULES:
                raise Refused(
                    f"{variable} needs settings without data_date, got {settings.data_date!r} in {file}: remove it, "
                    "because each run uses its own date"
                )
            source = f"the settings of {file}" if file else "the default settings"
            say(f"Schedule ({variable}): {cron}, with {source}. The run of the latest interval starts at once")
    try:
        for setting in OF_PLACES:
            allowed_places(setting, environ)
    except SettingsError as error:
        raise Refused(str(error)) from error


def _needed_settings(variable: str) -> tuple[str, ...]:
    """Return the settings without a default that the scheduled runs need."""
    if variable == RETRAIN_SCHEDULE:
        return ()
    return ("source_uri", "label_column") if "TABULAR" in variable else ("source_uri",)


def default_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings of a DAG before a form changes any: those of the file in TENFOLD_SETTINGS. Raises Refused."""
    file = environ.get("TENFOLD_SETTINGS", "")
    try:
        return settings_of_command_line(Path(file) if file else None, [])
    except SettingsError as error:
        raise Refused(f"TENFOLD_SETTINGS={file}: {error}") from error


def _checks() -> Mapping[str, tuple[Callable[[str], object], str]]:
    """Return, for each setting, a check of its text, which returns or raises, and a description of valid values."""
    # "0 0 31 2 *" is valid, but never occurs.
    schedule = (
        lambda text: text in PRESETS if text.startswith("@") else croniter(text).get_next(),
        f"a cron expression with a next date, or one of {', '.join(PRESETS)}",
    )
    hours = (lambda text: 0 < float(text) <= MAX_HOURS, f"a number of hours, above 0 and at most {MAX_HOURS}")
    return {
        **dict.fromkeys((*SCHEDULES, RETRAIN_SCHEDULE, BACKFILLS), schedule),
        TIME_ZONE: (lambda text: zone_from({TIME_ZONE: text}), "the name of a time zone such as Europe/Berlin"),
        "TENFOLD_START_DATE": (
            lambda text: moment_in(ZoneInfo("UTC"), text),
            "a date such as 2026-01-31, or a time such as 2026-01-31T00:00+02:00",
        ),
        "TENFOLD_CATCHUP": (lambda text: text.lower() in ("true", "false", "yes", "no", "1", "0"), "true or false"),
        "TENFOLD_DEADLINE_HOURS": hours,
        "TENFOLD_RETRAIN_WAIT_HOURS": hours,
        "TENFOLD_RETRAIN_POLL_SECONDS": (
            lambda text: 0 < float(text) <= MAX_SECONDS,
            f"a number of seconds, above 0 and at most {MAX_SECONDS}",
        ),
        "TENFOLD_NOTIFIERS": (
            lambda text: all(re.fullmatch(r"(\w+(\.\w+)+)?", name.strip()) for name in text.split(",")),
            "package.module.function names, separated by commas",
        ),
        "TENFOLD_OWNER_LINK": (
            lambda text: text.startswith(("https://", "http://", "mailto:")),
            "an https: or mailto: link",
        ),
    }


def _is_right(check: Callable[[str], object], text: str) -> bool:
    try:
        return bool(check(text))
    except (ValueError, OverflowError, CroniterError, SettingsError):
        return False
