"""The data date of a run, and its placeholders in the address of a source: `{date}`, `{hour}` and so on."""

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pipeline.errors import SettingsError

TIME_ZONE = "TENFOLD_TIMEZONE"
"""The administrator's time zone of schedules and days."""
_FORMATS = {"date": "%Y-%m-%d", "year": "%Y", "month": "%m", "day": "%d", "hour": "%H", "minute": "%M"}
_PLACEHOLDER = re.compile("{(" + "|".join(_FORMATS) + ")}")
_PLACEHOLDER_LIKE = re.compile(r"{([a-z_]+)}")
PLACEHOLDERS = ", ".join(f"{{{name}}}" for name in _FORMATS)


def is_dated(address: str) -> bool:
    """Return whether an address has a placeholder."""
    return _PLACEHOLDER.search(address) is not None


def before_placeholder(address: str) -> str:
    """Return an address up to its first placeholder. This part can be checked before the date is known."""
    return _PLACEHOLDER.split(address, maxsplit=1)[0]


def unknown_placeholder(address: str) -> str:
    """Return the first unknown placeholder of an address; empty if all are known."""
    return next((match[0] for match in _PLACEHOLDER_LIKE.finditer(address) if match[1] not in _FORMATS), "")


def fill(address: str, moment: datetime) -> str:
    """Return an address with the parts of a data date instead of its placeholders."""
    return _PLACEHOLDER.sub(lambda match: format(moment, _FORMATS[match[1]]), address)


def without_placeholders(address: str) -> str:
    """Return an address without its placeholders."""
    return _PLACEHOLDER.sub("", address)


def needs_time(address: str) -> bool:
    """Return whether an address has a placeholder for a time of the day."""
    return not {"hour", "minute"}.isdisjoint(_PLACEHOLDER.findall(address))


def format_data_date(moment: datetime, address: str) -> str:
    """Return a data date with the parts that an address uses. Moments with the same images give the same text."""
    used = set(_PLACEHOLDER.findall(address))
    # A source with only {year}/{month} is the same on all days of a month, and must have one partition.
    if not used & {"date", "day", "hour", "minute"}:
        moment = moment.replace(day=1) if "month" in used else moment.replace(month=1, day=1)
    if not needs_time(address):
        return moment.strftime("%Y-%m-%d")
    return moment.strftime("%Y-%m-%dT%H:%M" if "minute" in used else "%Y-%m-%dT%H:00")


def data_moment(moment: datetime, address: str, environ: Mapping[str, str] = os.environ) -> datetime:
    """Return the moment of a run, in the time zone of the data date that it gives an address.

    Days are days of TENFOLD_TIMEZONE. A date with an hour is in UTC, because in other time zones an hour comes twice
    when summer time ends, and two runs would make one partition.
    """
    return moment.astimezone(UTC if needs_time(address) else zone_from(environ))


def zone_from(environ: Mapping[str, str]) -> ZoneInfo:
    """Return the time zone of TENFOLD_TIMEZONE, or UTC. Raises SettingsError if there is no such time zone."""
    name = environ.get(TIME_ZONE) or "UTC"
    try:
        return ZoneInfo(name)
    # The name is looked up as a path: a folder, such as "Europe", raises OSError.
    except (ValueError, KeyError, OSError):
        raise SettingsError(
            f"{TIME_ZONE} must be the name of a time zone such as Europe/Berlin, got {name!r}"
        ) from None


def schedule_in(zone: str, cron: str) -> str:
    """Return a schedule as Airflow shows it: with its time zone, unless that is UTC."""
    return cron if zone == "UTC" else f"{cron} in {zone}"


def zone_of_schedule(shown: str) -> str:
    """Return the time zone of a schedule that `schedule_in` wrote, maybe in parentheses."""
    return shown.rstrip(")").partition(" in ")[2] or "UTC"


def check_data_date(text: str) -> str:
    """Return a data date in its canonical form: `2026-01-31` or `2026-01-31T07:00`. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a date such as 2026-01-31, or a time such as 2026-01-31T07:00") from None
    if moment.tzinfo:
        raise ValueError("must be a date such as 2026-01-31T07:00, in UTC, without a time zone")
    return moment.strftime("%Y-%m-%d" if has_no_time(text) else "%Y-%m-%dT%H:%M")


def moment_in(zone: ZoneInfo, text: str) -> datetime:
    """Return a date or time in a time zone. A time with an offset is converted. Raises ValueError if it is no date."""
    moment = datetime.fromisoformat(text)
    return moment.astimezone(zone) if moment.tzinfo else moment.replace(tzinfo=zone)


def has_no_time(text: str) -> bool:
    """Return whether a data date is only a day."""
    return len(text) <= len("2026-01-31")
