"""The test run itself: no test is skipped on CI, and the longest groups start first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distribution import LONGEST, SHARED

ROOT = Path(__file__).parents[1]
SKIPPED = """
import pytest

def test_something():
    pytest.skip("needs a printer")
"""


@pytest.mark.parametrize(
    ("ci", "code", "message"), [("", 0, "1 skipped"), ("true", 1, "may not be skipped on CI. Skipped: needs a printer")]
)
def test_a_skipped_test_fails_on_ci(ci: str, code: int, message: str, tmp_path: Path):
    (tmp_path / "test_printer.py").write_text(SKIPPED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "CI": ci}, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stdout


FAILING = """
import os
import signal
from pathlib import Path

from tests.waiting import until

def test_first():
    assert "brown" == "white"

def test_second():
    until(lambda: "test_first failed" in Path(os.environ["OUTPUT"]).read_text())
    os.kill(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
@pytest.mark.parametrize("processes", [[], ["-n", "1"]])
def test_a_failure_is_printed_before_a_later_test_ends_the_run(processes: list[str], tmp_path: Path):
    (tmp_path / "test_colors.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *processes, tmp_path]
    output = tmp_path / "output"
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    with output.open("w") as file:
        done = subprocess.run(command, cwd=ROOT, env={**environment, "OUTPUT": str(output)}, stdout=file, check=False)
    assert done.returncode == -signal.SIGKILL
    assert "test_colors.py::test_first failed in its call part" in output.read_text()
    assert "AssertionError: assert 'brown' == 'white'" in output.read_text()


NOTING = """
import os
import pytest

@pytest.mark.parametrize("number", range(8))
def test_something(number):
    with open(os.environ["NOTES"], "a") as notes:
        print(os.environ["PYTEST_XDIST_WORKER"], __name__, file=notes)
"""


@pytest.mark.long
def test_a_group_of_files_runs_in_one_process_and_the_longest_groups_start_first(tmp_path: Path):
    for file in ("test_any.py", "tests/cluster/test_one.py", "tests/cluster/test_two.py", "tests/test_crashes.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(NOTING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    command += ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--import-mode=importlib", tmp_path]
    environment = {**os.environ, "NOTES": str(tmp_path / "notes"), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    rows = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert len(rows) == 4 * 8
    assert len({worker for worker, name in rows if "cluster" in name}) == 1
    [first], [second] = ({worker for worker, name in rows if part in name} for part in ("cluster", "test_crashes"))
    assert first != second
    assert "test_any" not in {rows[0][1], rows[1][1]}


def test_the_files_of_all_groups_exist():
    groups = {*LONGEST, *(place for places in SHARED.values() for place in places)} - {*SHARED}
    assert [group for group in groups if not (ROOT / group).exists()] == []
