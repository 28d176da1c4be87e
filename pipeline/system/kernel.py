"""The small files of Linux in /proc and /sys.

They are not read with psutil, which takes several times as long in a process that sleeps between its samples. The
difference grows with the number of cores, disks and processes: for the use of 128 cores, psutil takes over 2 ms. At 5
Hz, all samples together may take 1 ms to stay under 0.5% of a core. `python -m benchmarks.monitoring` measures both.
"""

import os
import re
import weakref
from pathlib import Path

_LAST_BYTES = os.sysconf("SC_PAGE_SIZE") // 2
"""A shorter part is the last one of a file. Some files come in pages that end before a line that has no room."""


class File:
    """A file that is read repeatedly. It is opened only once, because opening takes longer than reading.

    It is opened when it is first read. The open file of a process stays the file of this process, even if another
    process gets its id later.
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
