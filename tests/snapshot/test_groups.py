"""Groups are matched in a separate process, which can be slow, die, or lose its parent."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.errors import FileSystemError, SettingsError
from pipeline.snapshot import groups
from pipeline.snapshot.groups import with_groups
from pipeline.sources import Listed
from tests.waiting import until

ENDLESS = ("^(a+)+$", f"{60 * 'a'}!.jpg")
"""There are 2 to the power of 60 ways to split the letters, and none of them matches."""


def listed(*names: str) -> list[Listed]:
    return [Listed(name, ("a",), "", 1, 1) for name in names]


def groups_of(pattern: str, *names: str) -> list[str]:
    return [image.group for image in with_groups(listed(*names), pattern)]


def test_a_slow_start_of_the_process_does_not_reject_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The process sleeps longer than the limit before it starts to match."""
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\nsleep 1.5\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(groups.sys, "executable", str(slow))
    monkeypatch.setattr(groups, "MATCH_S", 1.0)
    assert groups_of(r"^(.+)_\d$", "ann_1.jpg") == ["ann"]


@pytest.mark.parametrize("names", [1, 10_000])
def test_a_process_that_dies_is_not_blamed_on_the_pattern(monkeypatch: pytest.MonkeyPatch, names: int):
    monkeypatch.setattr(groups.sys, "executable", "/bin/false")
    with pytest.raises(FileSystemError, match="ended too early"):
        groups_of("^a", *(f"{number}{200 * 'a'}.jpg" for number in range(names)))


@pytest.mark.parametrize("pattern", ["a\0", "\ud800"])
def test_any_text_is_accepted_as_a_pattern(pattern: str):
    assert groups_of(pattern, "a.jpg") == [""]


ASK = """
import sys
from pipeline.snapshot import groups
groups.MATCH_S = 2.0
from pipeline.sources import Listed
list(groups.with_groups([Listed(sys.argv[2], ("a",), "", 1, 1)], sys.argv[1]))
"""


@pytest.mark.long
def test_the_matching_process_ends_when_its_task_is_killed():
    with subprocess.Popen([sys.executable, "-c", ASK, *ENDLESS]) as task:
        process = psutil.Process(task.pid)
        until(lambda: any(child.cpu_times().user > 0.5 for child in process.children()))
        [matcher] = process.children()
        task.kill()
    until(lambda: not matcher.is_running() or matcher.status() == psutil.STATUS_ZOMBIE)


def test_a_pattern_that_takes_forever_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(groups, "MATCH_S", 0.5)
    with pytest.raises(SettingsError, match="takes longer"):
        groups_of(*ENDLESS)
