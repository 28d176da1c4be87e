"""Groups are matched in a process of its own, which may be slow, die, or be left alone."""

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
"""2 to the power of 60 ways to split the letters, of which none matches."""


def listed(*names: str) -> list[Listed]:
    return [Listed(name, ("a",), "", 1, 1) for name in names]


def found(pattern: str, *names: str) -> list[str]:
    return [image.group for image in with_groups(listed(*names), pattern)]


def test_a_slow_machine_makes_no_pattern_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The process stands still for longer than the limit before it answers."""
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\nsleep 1.5\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(groups.sys, "executable", str(slow))
    monkeypatch.setattr(groups, "MATCH_S", 1.0)
    assert found(r"^(.+)_\d$", "ann_1.jpg") == ["ann"]


@pytest.mark.parametrize("names", [1, 1000])
def test_a_process_that_dies_is_no_fault_of_the_pattern(monkeypatch: pytest.MonkeyPatch, names: int):
    monkeypatch.setattr(groups.sys, "executable", "/bin/false")
    with pytest.raises(FileSystemError, match="ended too early"):
        found("^a", *(f"{number}{200 * 'a'}.jpg" for number in range(names)))


@pytest.mark.parametrize("pattern", ["a\0", "\ud800"])
def test_any_text_is_a_pattern(pattern: str):
    assert found(pattern, "a.jpg") == [""]


ASK = """
import sys
from pipeline.snapshot import groups
groups.MATCH_S = 2.0
from pipeline.sources import Listed
list(groups.with_groups([Listed(sys.argv[2], ("a",), "", 1, 1)], sys.argv[1]))
"""


def test_no_match_outlives_a_task_that_was_killed():
    with subprocess.Popen([sys.executable, "-c", ASK, *ENDLESS]) as task:
        asked = psutil.Process(task.pid)
        until(lambda: any(child.cpu_times().user > 0.5 for child in asked.children()))
        [matcher] = asked.children()
        task.kill()
    until(lambda: not matcher.is_running() or matcher.status() == psutil.STATUS_ZOMBIE)


def test_a_pattern_that_takes_for_ever_is_bad(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(groups, "MATCH_S", 0.5)
    with pytest.raises(SettingsError, match="takes longer"):
        found(*ENDLESS)
