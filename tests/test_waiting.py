"""The helper that waits: what it returns, how long it waits, and what a failure shows."""

import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.waiting import PAUSES_PER_LOOK, Machine, slowness, until


class Clock:
    """A machine whose time passes only in pauses, which end late, and in looks."""

    def __init__(self, factor: float = 1.0, lateness: float = 1.0) -> None:
        self.time = 0.0
        self.pauses: list[float] = []
        self._lateness = lateness
        self.machine = Machine(lambda: self.time, self._sleep, lambda: factor)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += self._lateness * seconds

    def looks(self, value: object = 0, seconds: float = 0.0) -> Callable[[], object]:
        """Return a look that takes some time and always returns the same value."""

        def look() -> object:
            self.time += seconds
            return value

        return look


def note_of(error: BaseException) -> str:
    [note] = error.__notes__
    return note


def test_the_value_that_ends_the_wait_is_returned():
    clock, numbers = Clock(), count()
    assert until(lambda: next(numbers), machine=clock.machine) == 1
    assert until(lambda: next(numbers), is_expected=lambda number: number == 9, machine=clock.machine) == 9
    assert len(clock.pauses) == 8


def test_a_failure_shows_the_last_value_and_the_time():
    clock, numbers = Clock(), count()
    with pytest.raises(AssertionError, match="not as expected within 3 seconds of a quiet machine") as caught:
        until(lambda: f"step {next(numbers)}", 3, 1.0, is_expected=lambda _: False, machine=clock.machine)
    assert note_of(caught.value) == "last seen: 'step 3'; waited 3.0 s, counted 3.0 s as quiet"


def test_expected_errors_do_not_end_the_wait_and_are_shown():
    def fail() -> int:
        raise ConnectionError("refused")

    with pytest.raises(AssertionError) as caught:
        until(fail, 1, errors=OSError, machine=Clock().machine)
    assert "last seen: ConnectionError('refused')" in note_of(caught.value)
    with pytest.raises(ConnectionError) as unexpected:
        until(fail, 1, errors=ValueError, machine=Clock().machine)
    assert "waited 0.0 s" in note_of(unexpected.value)


@pytest.mark.parametrize(("factor", "lateness", "least", "most"), [(1, 1, 10, 11), (4, 1, 36, 41), (1, 5, 50, 51)])
def test_a_slow_machine_gets_more_time(factor: float, lateness: float, least: float, most: float):
    """In the first second, the speed is not known yet."""
    clock = Clock(factor, lateness)
    with pytest.raises(AssertionError, match="within 10 seconds"):
        until(clock.looks(), 10, 0.1, machine=clock.machine)
    assert least <= clock.time <= most


@pytest.mark.parametrize("seconds", [0.0, 0.001, 2.0])
def test_a_wait_leaves_the_processor_to_others(seconds: float):
    clock = Clock()
    with pytest.raises(AssertionError):
        until(clock.looks(seconds=seconds), 60, machine=clock.machine)
    assert min(clock.pauses) == pytest.approx(max(0.02, PAUSES_PER_LOOK * seconds))


def test_the_last_look_is_after_the_last_pause():
    clock = Clock()
    assert until(lambda: clock.time >= 5, 5, 1.0, machine=clock.machine)


def test_the_speed_is_measured():
    assert 1 <= slowness() < float("inf")


ENDLESS = """
from tests.waiting import until

def test_something():
    until(lambda: "evaluating", is_expected=lambda state: state == "training")
"""


def test_the_time_limit_of_pytest_shows_the_last_value_too(tmp_path: Path):
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=1", "-c", "/dev/null"]
    command += [f"--rootdir={tmp_path}", tmp_path]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "last seen: 'evaluating'; waited" in done.stdout
