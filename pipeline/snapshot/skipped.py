"""Files that a listing skips: they are counted by reason and by suffix, and listed in a file.

A list of suffixes decides which files are images. If a suffix is missing from it, these counts make the loss visible.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import IO

from pipeline.sources import Skipped
from pipeline.sources.folder import NOT_BY_NAME
from pipeline.sources.suffixes import suffix_of

SKIPPED = "skipped.jsonl"
"""This file beside `dataset.json` lists the skipped files."""
MAX_NAMES = 100_000
"""At most this many files are listed. All are counted, and a source may hold millions of them."""
MAX_SUFFIXES = 1000
"""At most this many suffixes are counted separately. If suffixes are numbers, there can be millions of them."""
_OTHERS = "others"
"""All further suffixes are counted under this entry."""


class SkippedFiles:
    """Counts skipped files, and writes their names into a file."""

    def __init__(self, names: IO[bytes]) -> None:
        self._names = names
        self._reasons: Counter[str] = Counter()
        self._suffixes: Counter[str] = Counter()

    def add(self, item: Skipped) -> None:
        """Count one file, and write a line of JSON with its `path` and `reason`."""
        if self._reasons.total() < MAX_NAMES:
            self._names.write(json.dumps({"path": item.key, "reason": item.reason}).encode("ascii") + b"\n")
        self._reasons[item.reason] += 1
        if item.reason == NOT_BY_NAME:
            suffix = suffix_of(item.key) or "no suffix"
            is_counted = suffix in self._suffixes or len(self._suffixes) < MAX_SUFFIXES
            self._suffixes[suffix if is_counted else _OTHERS] += 1

    @property
    def reasons(self) -> dict[str, int]:
        """Number of skipped files by reason, ordered by reason."""
        return dict(sorted(self._reasons.items()))

    @property
    def suffixes(self) -> dict[str, int]:
        """Number of files that were skipped because of their suffix, by suffix, the most frequent first."""
        return dict(sorted(self._suffixes.items(), key=lambda item: (-item[1], item[0])))


def suffix_counts(suffixes: Mapping[str, int], limit: int = 5) -> str:
    """Return suffixes and their counts as text, such as ".txt 90, .xml 10"."""
    shown = ", ".join(f"{suffix} {count}" for suffix, count in list(suffixes.items())[:limit])
    return shown + (f" and {len(suffixes) - limit} more" if len(suffixes) > limit else "")
