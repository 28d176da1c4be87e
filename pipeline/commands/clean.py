"""The command that removes what nothing uses any more, and its text."""

import argparse
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pipeline.commands.command import Result, argument, command
from pipeline.commands.options import settings_of
from pipeline.config.preflight import require_buckets
from pipeline.errors import SettingsError
from pipeline.storage import place_of
from pipeline.system.wording import counted, format_size

if TYPE_CHECKING:
    from pipeline.config.settings import Settings
    from pipeline.runs.unused import Stored

_AGE = re.compile("([0-9]{1,5})d")


def _format(result: Result) -> str:
    lines = [*_rows(result["unused"]), *_kept(result["kept"])]
    total = f"{counted(len(result['unused']), 'folder')} with {format_size(result['bytes'])}"
    if not result["unused"] and not result["removed"]:
        lines.append(f"Nothing to remove: everything older than {result['older_than']} is in use")
    elif result["removed"]:
        lines.append(f"Removed: {total}")
    else:
        lines.append(f"Nothing was removed. Nothing uses {total}")
    return "\n".join(lines)


def _rows(unused: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in unused:
        yield f"{format_size(each['bytes']):>9}  {each['changed'][:10]}  {each['kind']:<16}  {each['folder']}"


def _kept(kept: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    sizes: Counter[tuple[str, str]] = Counter()
    for each in kept:
        sizes[each["kind"], each["why"]] += each["bytes"]
    counts = Counter((each["kind"], each["why"]) for each in kept)
    for (kind, why), count in sorted(counts.items()):
        yield f"kept: {kind} ({why}): {count}, {format_size(sizes[kind, why])}"


@command(
    "clean",
    "--older-than 30d --dry-run",
    argument("--older-than", default="30d", metavar="DAYS", help="at least this old, such as 30d (default: 30d)"),
    argument("--dry-run", action="store_true", help="only list what would be removed, and what stays and why"),
    argument("--yes", action="store_true", help="remove without asking"),
    printer=_format,
)
def clean(options: argparse.Namespace) -> Result:
    """Remove old versions, windows, runs, plans and copies that nothing uses.

    With dataset_name, only those of this name. Everything stays that one of these uses: a date, the newest version of a
    name, the champion, a window that stays, a build, or a training that may be used again. Asks before it removes.
    """
    from pipeline.runs.removal import remove_all

    settings, days = settings_of(options), _days(options.older_than)
    require_buckets({"workspace": place_of(settings.workspace), "publish_uri": settings.datasets_folder})
    if not place_of(settings.workspace).is_dir():
        raise SettingsError(f"workspace {settings.workspace} is not a folder: name it with --set workspace=...")
    unused, kept = _divided(settings, days)
    total = sum(each.size for each in unused)
    is_agreed = bool(unused) and not options.dry_run and (options.yes or _agrees(unused, total))
    if is_agreed:
        # A person may take an hour to answer, and the removal may take hours: it looks again and again.
        removal = remove_all(unused, lambda: _reasons(settings, days))
        removed = {*removal.removed}
        unused, kept = [each for each in unused if each in removed], {**kept, **removal.stayed}
    return {
        "older_than": options.older_than,
        "unused": [_to_json(each) for each in unused],
        "bytes": sum(each.size for each in unused),
        "removed": is_agreed,
        "kept": [{**_to_json(each), "why": why} for each, why in kept.items()],
    }


def _days(text: str) -> int:
    match = _AGE.fullmatch(text)
    days = int(match[1]) if match else 0
    if days < 1:
        raise SettingsError(f"--older-than must be a number of days from 1d, such as 30d, got {text!r}")
    return days


def _reasons(settings: "Settings", days: int) -> "dict[Stored, str]":
    from pipeline.runs.inventory import contents_of
    from pipeline.runs.unused import DAY_S, reasons_to_keep

    return reasons_to_keep(contents_of(settings), time.time(), days * DAY_S)


def _divided(settings: "Settings", days: int) -> "tuple[list[Stored], dict[Stored, str]]":
    """Return what nothing uses, the largest of each kind first, and the rest with the reason why it stays."""
    name = settings.dataset_name
    ours = {each: why for each, why in _reasons(settings, days).items() if not name or each.name == name}
    unused = sorted((each for each, why in ours.items() if not why), key=lambda each: (each.kind, -each.size))
    return unused, {each: why for each, why in ours.items() if why}


def _agrees(unused: "Sequence[Stored]", total: int) -> bool:
    from pipeline.gate.decide import ask_terminal

    ask = ask_terminal()
    if ask is None:
        raise SettingsError("there is no terminal to ask whether to remove these folders: give --yes or --dry-run")
    rows = "\n".join(_rows([_to_json(each) for each in unused]))
    return ask(
        f"{rows}\nThis removes {counted(len(unused), 'folder')} with {format_size(total)}. Nothing brings them back."
    )


def _to_json(each: "Stored") -> dict[str, Any]:
    changed = datetime.fromtimestamp(each.changed_s, UTC).isoformat(timespec="seconds")
    return {"kind": each.kind, "folder": str(each.folder), "bytes": each.size, "changed": changed}
