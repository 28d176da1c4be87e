"""The command that builds some dates of a dataset name again: `make backfill` with the source of its other dates."""

import json
import re
import shlex
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from pipeline.config.data_date import fill, format_data_date, has_no_time, is_dated
from pipeline.config.dataset_name import name_of_source, name_of_table
from pipeline.config.example_kinds import TABLE
from pipeline.config.settings import Settings, settings_from, settings_in_fingerprint
from pipeline.dataset.manifest import Dataset

UNKNOWN = "..."
"""Stands for a source that a person must give."""
_NO_DIGIT_BEFORE, _NO_DIGIT_AFTER = "(?<![0-9])", "(?![0-9])"


def backfill_command(first: str, last: str, arguments: str) -> str:
    """Return the command for two dates and all between them: days, or hours if both dates have a time.

    `arguments` is as `arguments_of` returns.
    """
    length = len("2026-01-31" if has_no_time(first) or has_no_time(last) else "2026-01-31T07")
    # Without REPROCESS=all, Airflow leaves out a date whose own run succeeded. A later run may have failed, or files of
    # the date are damaged.
    return f"make backfill FROM={first[:length]} TO={last[:length]} REPROCESS=all{arguments}"


def schedule_note(dates: Collection[str]) -> str:
    """Return what Airflow needs for the commands of some dates; empty if its defaults are enough."""
    if all(map(has_no_time, dates)):
        return ""
    if all(has_no_time(date) or date.endswith(":00") for date in dates):
        return (
            "If an Airflow is already up, it needs TENFOLD_BACKFILL_SCHEDULE=@hourly, or an hourly schedule of the DAG."
        )
    return (
        "Set TENFOLD_BACKFILL_SCHEDULE to a schedule with a run for each of these dates, such as '*/15 * * * *', for "
        "the command and for an Airflow that is already up."
    )


def arguments_of(settings: Settings, datasets: Mapping[str, Dataset]) -> str:
    """Return the further arguments of the command, by the newest of some datasets by date.

    A dataset stores the address of its source without placeholders. If they cannot be put back, or if there is no
    dataset, a person must give the source.
    """
    newest = datasets[max(datasets)] if datasets else None
    source = source_with_placeholders({date: str(each.source["uri"]) for date, each in datasets.items()})
    kind = newest.kind if newest else settings.example_kind
    described = newest.table.get("columns", ()) if newest else ()
    columns = {f"{each['role']}_column": str(each["name"]) for each in described}
    named = {"TABLE" if kind == TABLE else "SOURCE": source or UNKNOWN}
    if label := columns.pop("label_column", ""):
        named["LABEL"] = label
    name_of = name_of_table if kind == TABLE else name_of_source
    usual = settings_from({"example_kind": kind})
    params = {
        "dataset_name": settings.dataset_name if name_of(source) != settings.dataset_name else "",
        "workspace": settings.workspace if settings.workspace != usual.workspace else "",
        "publish_uri": settings.publish_uri,
        **{name: column for name, column in columns.items() if name in Settings.model_fields},
    }
    given = {name: value for name, value in params.items() if value}
    given |= _unusual(newest.settings, settings_in_fingerprint(usual)) if newest else {}
    if given:
        named["PARAMS"] = json.dumps(given)
    return "".join(f" {name}={shlex.quote(value)}" for name, value in named.items())


def _unusual(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a dataset that differ from the defaults. A window refuses dates with other settings."""
    return {
        name: value
        for name, value in settings.items()
        if name in Settings.model_fields and (name not in usual or value != usual[name])
    }


def source_with_placeholders(addresses: Mapping[str, str]) -> str:
    """Return the address from which most `addresses` of dates, and the newest, were filled; empty if there is none."""
    if not addresses:
        return ""
    newest = max(addresses)
    moments = [(date, datetime.fromisoformat(date), address) for date, address in addresses.items()]
    template = _template(addresses[newest], newest)
    fits = [
        fill(template, moment) == address and format_data_date(moment, template) == date
        for date, moment, address in moments
    ]
    # The newest address alone may have a date in it by chance. A few dates may have been built from another folder.
    return template if is_dated(template) and 2 * sum(fits) > len(fits) else ""


def _template(address: str, date: str) -> str:
    """Return an address with placeholders for the parts of a date, which follow each other."""
    moment = datetime.fromisoformat(date)
    whole = f"{moment:%Y-%m-%d}"
    if whole in address:
        before, _, rest = address.partition(whole)
        return f"{before}{{date}}{_with_time(rest, date)}"
    year, month, day = (f"{moment:{each}}" for each in ("%Y", "%m", "%d"))
    between = "([^0-9]{0,20})"
    for pattern, placeholders in (
        (f"{year}{between}{month}{between}{day}", r"{year}\1{month}\2{day}"),
        (f"{year}{between}{month}", r"{year}\1{month}"),
        (year, "{year}"),
    ):
        found = re.search(f"{_NO_DIGIT_BEFORE}{pattern}{_NO_DIGIT_AFTER}", address)
        if found:
            rest = address[found.end() :]
            return address[: found.start()] + found.expand(placeholders) + _with_time(rest, date)
    return address


def _with_time(rest: str, date: str) -> str:
    """Return the rest of an address after the day, with placeholders for the hour and the minute if it has them."""
    if has_no_time(date):
        return rest
    moment = datetime.fromisoformat(date)
    hour = re.search(f"{_NO_DIGIT_BEFORE}{moment:%H}", rest)
    if not hour:
        return rest
    before, after = rest[: hour.start()], rest[hour.end() :]
    minute = re.match(f"([^0-9]{{0,20}}){moment:%M}{_NO_DIGIT_AFTER}", after)
    if minute:
        after = f"{minute[1]}{{minute}}{after[minute.end() :]}"
    elif after[:1].isdigit():
        return rest
    return f"{before}{{hour}}{after}"
