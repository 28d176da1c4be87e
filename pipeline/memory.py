"""How much memory this process may still take."""

from pathlib import Path
from typing import NamedTuple

import psutil

_CGROUP = Path("/sys/fs/cgroup")


class _Files(NamedTuple):
    """Where a version of control groups says what a container may take."""

    limit: str
    use: str
    statistics: str
    reclaimable: str
    """The line of the statistics that tells what of the use are files that were read and nobody needs."""


_VERSIONS = (
    _Files("memory.max", "memory.current", "memory.stat", "inactive_file"),
    _Files(
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Version 2 and version 1, below /sys/fs/cgroup."""


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that are free on this host, or within the limit of this container where that is less.

    The host's figures alone would promise a container what it is killed for taking.
    """
    free = psutil.virtual_memory().available
    for files in _VERSIONS:
        limit, use = _number(cgroup / files.limit), _number(cgroup / files.use)
        if limit is not None and use is not None:
            # Else a container that has read more files than it has memory would seem to be full.
            needed = max(use - _reclaimable(cgroup / files.statistics, files.reclaimable), 0)
            free = min(free, max(limit - needed, 0))
    return free


def _number(path: Path) -> int | None:
    """What the file holds; None where there is none, or it holds a word such as max."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable(statistics: Path, name: str) -> int:
    """The number behind `name` in lines of a name and a number; 0 where it is not said."""
    try:
        said = dict(line.split() for line in statistics.read_text().splitlines())
        return int(said.get(name, 0))
    except (OSError, ValueError):
        return 0
