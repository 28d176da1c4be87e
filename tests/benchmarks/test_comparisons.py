"""What a comparison with other packages relies on: their environments, the check of their pixels, the other load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import environments
from benchmarks.harness.environments import ENVIRONMENTS, missing_because
from benchmarks.harness.machine import other_cores
from benchmarks.input import pixel_error

ROWS = [["a.jpg", 0, "cat"], ["b.jpg", 0, "cat"], ["c.jpg", 1, "dog"]]
SEEN = {"images": 3, "distinct": 3, "labels": [1, 2], "mean": 120.4}
LOCKS = Path(environments.__file__).parents[1] / "environments"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, ""),
        ({"images": 2}, "gave 2 of 3 images"),
        ({"distinct": 2}, "gave 2 different images of 3"),
        ({"labels": [3]}, "gave other labels"),
        ({"mean": 121.1}, "differs by +1.10"),
        ({"mean": 118.9}, "differs by -1.10"),
    ],
)
def test_a_reader_that_skips_work_gets_an_error(changed: dict[str, Any], message: str):
    error = pixel_error(SEEN | changed, 120.0, ROWS, 1.0)
    assert message in error
    assert bool(error) == bool(message)


def test_the_load_of_other_programs_is_never_negative():
    assert other_cores(12.0, 10.0, 4.0) == 0.5
    assert other_cores(9.9, 10.0, 4.0) == 0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environments, "HOME", tmp_path)
    return tmp_path


def installer(home: Path, size: int) -> Callable[[str], str]:
    def install(name: str) -> str:
        folder = home / name
        folder.mkdir()
        with open(folder / "installed", "wb") as file:
            file.truncate(size)  # Takes no space on the disk.
        return ""

    return install


def test_an_environment_is_made_once(home: Path):
    assert missing_because("spdl", installer(home, 1_000)) == ""
    assert missing_because("spdl", lambda _: "must not be called") == ""


def test_an_environment_above_its_limit_is_removed(home: Path):
    assert "takes 0.6 GB, more than its limit of 0.5 GB" in missing_because("spdl", installer(home, 600_000_000))
    assert not (home / "spdl").exists()


def test_an_environment_that_does_not_install_says_why(home: Path):
    assert missing_because("spdl", lambda _: "no wheel") == "does not install here: no wheel"


def test_each_environment_has_a_lock():
    assert {path.stem for path in LOCKS.glob("*.txt")} == {path.stem for path in LOCKS.glob("*.in")} == {*ENVIRONMENTS}
