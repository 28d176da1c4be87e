"""Files that a listing skips: they are counted by reason and by suffix, and the first ones are named.

A list of suffixes decides which files are images. If a suffix is missing from it, these counts make the loss visible.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from pipeline import storage
from pipeline.config.allowed import require_output
from pipeline.sources import Skipped
from pipeline.sources.folder import NOT_BY_NAME
from pipeline.sources.suffixes import suffix_of
from pipeline.storage import Place, place_of
from pipeline.system.wording import first_of

NOT_A_TABLE = "not a table by its name"
"""The usual reason to skip a file in the folder of a table."""
MAX_NAMES = 100_000
"""At most this many files are listed. All are counted, and a source may hold millions of them."""
MAX_SUFFIXES = 1000
"""At most this many suffixes are counted separately. If suffixes are numbers, there can be millions of them."""
_log = logging.getLogger(__name__)
_OTHERS = "others"
"""All further suffixes are counted under this entry."""


@dataclass
class SkippedFiles:
    """Counts skipped files, and keeps the names of the first ones."""

    reasons: dict[str, int] = field(default_factory=dict)
    """Number of files by reason."""
    suffixes: dict[str, int] = field(default_factory=dict)
    """Number of files that were skipped because of their suffix, by suffix."""
    names: list[Sequence[str]] = field(default_factory=list)
    """Key and reason of up to MAX_NAMES files."""
    name_files: list[str] = field(default_factory=list)
    """Files with the names that `save_names` wrote. They come after `names`."""

    def add(self, item: Skipped) -> None:
        """Count one file."""
        if len(self.names) < MAX_NAMES:
            self.names.append(tuple(item))
        self.reasons[item.reason] = self.reasons.get(item.reason, 0) + 1
        if item.reason in (NOT_BY_NAME, NOT_A_TABLE):
            self._count_suffix(suffix_of(item.key) or "no suffix", 1)

    def merge(self, other: "SkippedFiles") -> None:
        """Add all files of `other`."""
        self.names += other.names[: MAX_NAMES - len(self.names)]
        self.name_files += other.name_files
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        for suffix, count in other.suffixes.items():
            self._count_suffix(suffix, count)

    def lines(self) -> Iterator[bytes]:
        """Yield the names of up to MAX_NAMES files as lines of JSON with `path` and `reason`."""
        return islice(chain(map(_line, self.names), *map(_lines_of, self.name_files)), MAX_NAMES)

    def save_names(self, place: Place) -> None:
        """Move the names into a file, so that only `lines` reads them again."""
        if self.names:
            with storage.write_whole(place, synced=True) as file:
                file.writelines(self.lines())
            self.names, self.name_files = [], [str(place)]

    def reasons_in_order(self) -> dict[str, int]:
        """Return the counts by reason, ordered by reason."""
        return dict(sorted(self.reasons.items()))

    def suffixes_in_order(self) -> dict[str, int]:
        """Return the counts by suffix, the most frequent first."""
        return dict(sorted(self.suffixes.items(), key=lambda item: (-item[1], item[0])))

    def _count_suffix(self, suffix: str, count: int) -> None:
        is_counted = suffix in self.suffixes or len(self.suffixes) < MAX_SUFFIXES
        suffix = suffix if is_counted else _OTHERS
        self.suffixes[suffix] = self.suffixes.get(suffix, 0) + count


def _line(name: Sequence[str]) -> bytes:
    key, reason = name
    return json.dumps({"path": key, "reason": reason}).encode("ascii") + b"\n"


def _lines_of(name_file: str) -> Iterator[bytes]:
    place = place_of(name_file)
    require_output(place)  # A file of the workspace named it.
    with place.open("rb") as file:
        yield from file


def log_skipped(skipped: SkippedFiles, path: object) -> None:
    """Log the counts by reason. `path` is the file that names the skipped files."""
    for reason, count in skipped.reasons_in_order().items():
        _log.warning("files skipped: %d %s", count, reason)
    if skipped.reasons:
        _log.warning("%s names them", path)


def suffix_counts(suffixes: Mapping[str, int]) -> str:
    """Return the first five suffixes and their counts as text, such as ".txt 90, .xml 10"."""
    return first_of((f"{suffix} {count}" for suffix, count in suffixes.items()), 5)
