"""The command that shows the dates of a dataset name, and its text."""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from pipeline.commands.command import Result, argument, command
from pipeline.commands.options import published_settings
from pipeline.system.wording import counted, shortened

MARKS: Mapping[str, str] = MappingProxyType(
    {
        "failed": "x",
        "missing": "-",
        "running": ".",
        "outdated": "!",
        "withdrawn": "w",
        "drift": "~",
        "published": "o",
        "seen": "#",
    }
)
"""The character of a day in the calendar, by its state."""
MAX_SHOWN = 15
"""The text without --all has at most this many dates in detail, and commands."""
MAX_WORDS = 300
"""Maximum length of a reason in the text, in characters."""
_RULER = "1   5    10   15   20   25   30"
_HEAD = ("date", "version", "examples", "rejected", "drift", "last run", "champion", "state")


def _format_dates(result: Result) -> str:
    lines = [*_every_date(result)] if result.get("every") else [*_calendar(result), *_in_detail(result)]
    return "\n".join([_summary(result), *lines, *_commands(result)])


def _summary(result: Result) -> str:
    total = sum(result["counts"].values())
    each = f", one per {result['step']}" if result["step"] else ""
    first, last = result["dates"][0]["date"], result["dates"][-1]["date"]
    champion = result["champion"] or (f"unknown: {result['note']}" if result["note"] else "none")
    published = f"{result['published']} of {counted(total, 'date')} published"
    return (
        f"{result['dataset_name']}: {published}, from {first} to {last}{each}\nchampion: {champion}\n{result['trend']}"
    )


def _calendar(result: Result) -> Iterator[str]:
    months: dict[str, dict[int, str]] = defaultdict(dict)
    for day, state in result["days"].items():
        months[day[:7]][int(day[8:])] = MARKS[state]
    yield f"\n{'':9}{_RULER}"
    for month, marks in months.items():
        yield f"{month}  {''.join(marks.get(day, ' ') for day in range(1, 32))}".rstrip()
    yield ""
    for state, mark in MARKS.items():
        if count := result["counts"].get(state):
            yield f"  {mark} {count:>5}  {result['states'][state]}"
    if any("T" in each["date"] for each in result["dates"]):
        yield "  A day has the mark of its worst date."


def _in_detail(result: Result) -> Iterator[str]:
    """Yield the dates with problems, and why."""
    states = result["states"]
    told = [
        *((each["date"], _title(each, states), each["words"]) for each in result["dates"] if _needs_look(each)),
        *((_span(gap), f"{counted(gap['dates'], 'date')} missing", "") for gap in result["gaps"]),
    ]
    if not told:
        return
    yield ""
    for date, state, words in sorted(told)[-MAX_SHOWN:]:
        yield f"  {date}  {state}{': ' * bool(words)}{shortened(words, MAX_WORDS)}"
    if len(told) > MAX_SHOWN:
        yield f"  and {len(told) - MAX_SHOWN} before them: --all shows them"


def _needs_look(date: Mapping[str, object]) -> bool:
    return bool(date["words"]) or date["state"] == "withdrawn"


def _title(date: Mapping[str, object], states: Mapping[str, str]) -> str:
    """Return what the state of a date means. That of a withdrawn date also says whether the champion has seen it."""
    has_seen = date["state"] == "withdrawn" and date["champion"] == "seen"
    return states[str(date["state"])] + "; the champion was trained on it" * has_seen


def _every_date(result: Result) -> Iterator[str]:
    rows = [_cells(each, result["states"]) for each in result["dates"]]
    rows += [(_span(gap), *[""] * 6, f"{counted(gap['dates'], 'date')} missing") for gap in result["gaps"]]
    table = [_HEAD, *sorted(rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEAD))]
    yield ""
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cells(date: Mapping[str, object], states: Mapping[str, str]) -> tuple[str, ...]:
    numbers = ("" if date[name] is None else f"{date[name]:,}" for name in ("examples", "rejected"))
    drift = "" if date["drift"] is None else f"{date['drift']:.2f}"
    state = _title(date, states) + (f": {date['words']}" if date["words"] else "")
    return (
        *(str(date["date"]), str(date["version"]), *numbers, drift),
        *(str(date["last_run"]).removesuffix("+00:00"), str(date["champion"]), shortened(state, MAX_WORDS)),
    )


def _commands(result: Result) -> Iterator[str]:
    mend = "To build the dates that are missing or failed, fix the causes above, then run:"
    yield from _section(mend, result["mends"], result["mends_note"])
    newest = result["dates"][-1]["date"]
    later = f"No run listed the source of a date after {newest}. If such dates should exist, find the cause, then run:"
    yield from _section(later, result["later"], result["later_note"])
    withdrawn = [date for date in result["dates"] if date["command"]]
    yield from _section("To bring withdrawn dates back, run:", withdrawn)


def _section(head: str, dates: Sequence[Mapping[str, str]], note: str = "") -> Iterator[str]:
    """Yield the commands of some dates, below a line that says what they do."""
    if not dates:
        return
    yield f"\n{head}"
    yield from (f"  {each['command']}" for each in dates[-MAX_SHOWN:])
    if len(dates) > MAX_SHOWN:
        yield f"  and {len(dates) - MAX_SHOWN} commands for earlier dates: --json shows them"
    if note:
        yield f"  {note}"


def _span(gap: Mapping[str, str]) -> str:
    return gap["first"] if gap["first"] == gap["last"] else f"{gap['first']} to {gap['last']}"


@command(
    "dates",
    "flowers",
    argument("name", nargs="?", default="", help="dataset name (default: dataset_name, or the only one)"),
    argument("--all", action="store_true", help="show one line for each date instead of one for each month"),
    printer=_format_dates,
)
def dates(options: argparse.Namespace) -> Result:
    """Show the state of all dates of a dataset name: published, drifted, failed, withdrawn or missing.

    It also shows which dates the champion was trained on. Commands follow: they build failed dates, missing dates and
    the dates after the newest one, and bring withdrawn dates back.
    """
    from pipeline.runs.dates import STATES, dates_of

    if options.name:
        options.set.append(f"dataset_name={options.name}")
    result = {**dates_of(published_settings(options)).to_json(), "states": dict(STATES)}
    return {**result, "every": True} if options.all and not options.json else result
