"""Groups of images that stay on one side of the split. `group_pattern` finds them in the file names.

A user types the pattern, and some patterns take practically forever. So matching has a deadline.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from pipeline.errors import FileSystemError, SettingsError
from pipeline.snapshot import match_groups
from pipeline.sources import Listed

NAMES_AT_ONCE = 10_000
"""This many file names are matched by one process, which starts in a few hundredths of a second."""
MATCH_S = 10.0
r"""NAMES_AT_ONCE names may take this many seconds of processor time, which is 1 ms for each.

Usual patterns take 0.01 to 0.04 s, so that even a slow core refuses none of them. At the limit, the names of a million
images take 17 minutes. Any limit would find nested repetitions: `(\w+)*x` takes 12 s for one name of 27 characters,
and twice as long for each further character. A limit by the clock would refuse a harmless pattern if the cores are busy
or the process was stopped for a while.
"""


def with_groups(images: Iterable[Listed], pattern: str) -> Iterator[Listed]:
    """Yield the images with their groups. A group from a list is kept. A name that does not match has an empty group.

    Raises SettingsError if the pattern takes more than MATCH_S of processor time for NAMES_AT_ONCE names.
    """
    rest = iter(images)
    while chunk := list(islice(rest, NAMES_AT_ONCE)):
        names = [(image.name or image.key).rpartition("/")[2] for image in chunk]
        groups = _groups([os.path.splitext(name)[0] for name in names], pattern)  # noqa: PTH122 - no files
        for image, group in zip(chunk, groups, strict=True):
            yield image if image.group else image._replace(group=group)


def _groups(names: Sequence[str], pattern: str) -> list[str]:
    question = json.dumps({"pattern": pattern, "names": names, "seconds": MATCH_S})
    # Without the site packages, the process starts faster.
    command = [sys.executable, "-I", "-S", match_groups.__file__]
    ended = subprocess.run(command, input=question, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    # The kernel sends this signal when the processor time is used up: see match_groups.py.
    if ended.returncode == -signal.SIGPROF:
        raise SettingsError(
            f"group_pattern must match {NAMES_AT_ONCE:,} file names within {MATCH_S:g} s of processor time, got "
            f"{pattern!r}, which takes longer for the {len(names):,} names from {names[0]!r} on: remove nested "
            "repetitions such as (a+)+"
        )
    if ended.returncode:
        raise FileSystemError("the process that matches group_pattern ended too early (out of memory?): run again")
    groups: list[str] = json.loads(ended.stdout)
    return groups
