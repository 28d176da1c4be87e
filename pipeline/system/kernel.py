"""The small files in which Linux tells what it does: /proc and /sys.

Read here and not by psutil, which takes several times as long for them in a process that sleeps between its samples,
and the more so the more cores, disks and processes a machine has: of 128 cores over 2 ms for their use alone, where all
that is sampled may take 1 ms to stay under 0.5% of a core at 5 Hz. `python -m benchmarks.monitoring` measures both.
"""

import os
import re
import weakref
from pathlib import Path

_LAST_BYTES = os.sysconf("SC_PAGE_SIZE") // 2
"""What is shorter is the last part: some files come a page at a time, filled up to a line that has no room."""


class File:
    """A file that is read again and again, and opened once: that takes longer than reading it.

    It is opened when it is first read. That of a process stays that of this one, whoever gets its number later.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> bytes:
        """Return the whole file. Raises OSError if it is missing, ProcessLookupError if its process ended."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)
        content = part = os.pread(self._descriptor, 1 << 16, 0)
        while len(part) > _LAST_BYTES:
            part = os.pread(self._descriptor, 1 << 16, len(content))
            content += part
        return content


def number(content: bytes, name: str) -> int:
    """Return the whole number in a line such as `name 12`, `name: 12` or `name:  12 kB`. Raises ValueError if none."""
    match = re.search(rb"^%b:?\s+(\d+)" % name.encode(), content, re.MULTILINE)
    if match is None:
        raise ValueError(f"there is no number called {name!r} in {content[:80]!r}")
    return int(match[1])
