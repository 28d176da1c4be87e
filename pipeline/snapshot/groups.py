"""Groups of images that stay on one side of the split. `group_pattern` finds them in the file names.

A user types the pattern, and some patterns take practically forever. So matching has a deadline.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO

from pipeline.errors import FileSystemError, SettingsError
from pipeline.snapshot import match_groups
from pipeline.sources import Listed

NAMES_AT_ONCE = 1000
"""This many file names are matched with one time limit."""
MATCH_S = 10.0
"""NAMES_AT_ONCE names may take this many seconds of processor time. Usually they take 10 ms.

A limit by the clock would refuse a harmless pattern if the cores are busy or the process was stopped for a while.
"""


def with_groups(images: Iterable[Listed], pattern: str) -> Iterator[Listed]:
    """Yield the images with their groups. A group from a list is kept. A name that does not match has an empty group.

    Raises SettingsError if the pattern takes more than MATCH_S of processor time for NAMES_AT_ONCE names.
    """
    rest = iter(images)
    with _matcher(pattern) as matcher:
        while chunk := list(islice(rest, NAMES_AT_ONCE)):
            names = [image.key.rpartition("/")[2] for image in chunk]
            groups = matcher.groups([os.path.splitext(name)[0] for name in names])  # noqa: PTH122 - no files
            for image, group in zip(chunk, groups, strict=True):
                yield image if image.group else image._replace(group=group)


@contextmanager
def _matcher(pattern: str) -> Iterator["_Matcher"]:
    # Without the site packages, the process starts in a few hundredths of a second.
    command = [sys.executable, "-I", "-S", str(Path(match_groups.__file__))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            yield _Matcher(process, pattern)
        finally:
            # The process may be in a pattern that takes forever.
            process.kill()
            with suppress(BrokenPipeError):  # The process may not have read the last question.
                _stream(process.stdin).close()


class _Matcher:
    """A process that matches names."""

    def __init__(self, process: subprocess.Popen[str], pattern: str) -> None:
        self._process, self._pattern = process, pattern

    def groups(self, names: Sequence[str]) -> list[str]:
        question = json.dumps({"pattern": self._pattern, "names": names, "seconds": MATCH_S})
        try:
            _stream(self._process.stdin).write(f"{question}\n")
            _stream(self._process.stdin).flush()
            answer = _stream(self._process.stdout).readline()
        except BrokenPipeError:  # The process has ended.
            answer = ""
        if answer:
            groups: list[str] = json.loads(answer)
            return groups
        # The kernel sends this signal when the processor time is used up: see match_groups.py.
        if self._process.wait() == -signal.SIGPROF:
            raise SettingsError(
                f"group_pattern must match {NAMES_AT_ONCE} file names within {MATCH_S:g} s of processor time, got "
                f"{self._pattern!r}, which takes longer for the {len(names)} names from {names[0]!r} on: remove nested "
                "repetitions such as (a+)+"
            )
        raise FileSystemError("the process that matches group_pattern ended too early (out of memory?): run again")


def _stream(of_process: IO[str] | None) -> IO[str]:
    if of_process is None:
        raise ValueError("the process has no pipe")
    return of_process
