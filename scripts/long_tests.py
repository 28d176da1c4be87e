"""Run the long tests in named groups, and record when each group passed.

    python -m scripts.long_tests [GROUP ...] [--record yes] [--warn]

GROUP is the name of a group, or `changed`: the groups whose tests or product code changed since their last record.
Without a group, all of them run. `--record yes` writes the result of each group to docs/figures/test-long.json. It
needs a clean tree, because a record names the commit that was tested. `--warn` runs nothing. It warns of old records.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path("docs/figures/test-long.json")
CHANGED = "changed"
MAX_AGE = 40
"""Commits after which a record is old."""
PASSED = "passed"
T = TypeVar("T")
NOTHING_COLLECTED = 5
"""Exit code of pytest if no test has the markers that were asked for."""

_OF_SERVERS = ("callbacks", "crashes", "exact_resume", "process", "servers", "stop")
_OF_DATA = ("dataset", "gate", "images", "plan", "records", "sharding", "snapshot", "sources", "system", "tables")
GROUPS = {
    "airflow": ("tests/scripts/", "tests/docker/", "tests/test_secrets.py"),
    "cluster": ("tests/cluster/",),
    "comparison": ("tests/training/compare/", "tests/runs/", "tests/evaluation/"),
    "dags": ("tests/dags/",),
    "data": tuple(f"tests/{room}/" for room in _OF_DATA),
    "engines": ("tests/engines/", "tests/dags/test_engines.py"),
    "faults": ("tests/test_", "tests/stages/", "tests/storage/"),
    "input": ("tests/input/",),
    "models": (*(f"tests/training/{room}/" for room in ("model", "served", "log", "step")), "tests/kinds/"),
    "monitor": ("tests/commands/", "tests/monitor/", "tests/tuning/"),
    "pages": ("tests/plugins/", "tests/report/", "tests/watch/"),
    "servers": (*(f"tests/training/test_{name}" for name in _OF_SERVERS), "tests/training/failure/"),
    "training": ("tests/training/",),
    "tutorials": ("tests/docs/",),
}
"""Long tests of one subject, which take at most ten minutes on two quiet cores, by the beginnings of their paths. A
test belongs to the group with the longest one."""
ENVIRONMENTS = {"airflow34": "env-airflow34", "data": "env-readers", "engines": "env-engines"}
"""Target of make that creates what the tests of a group need beside `.venv`."""


@dataclass(frozen=True)
class Repeated:
    """Tests of other groups that run in another environment, too. All of them run, not only the long ones."""

    python: str
    tests: tuple[str, ...]
    without: tuple[str, ...]

    def has(self, path: str) -> bool:
        """Return whether a file of tests is among them."""
        return path.startswith(self.tests) and not path.startswith(self.without)


REPEATED = {
    "airflow34": Repeated(
        python=".airflow34/bin/python",
        tests=(
            *("tests/dags/", "tests/plugins/"),
            *("tests/scripts/test_airflow_upgrade.py", "tests/scripts/test_live_airflow.py"),
        ),
        without=("tests/dags/test_engines.py",),
    ),
}
"""Groups that repeat tests."""
NAMES = (*GROUPS, *REPEATED)
"""All groups."""
_TRAINING = ("comparison", "models", "servers", "training")
TESTED_BY = {
    "dags/": ("airflow", "airflow34", "cluster", "dags", "engines", "tutorials"),
    "plugins/": ("airflow34", "cluster", "pages"),
    "pipeline/commands/monitor.py": ("monitor",),
    "pipeline/dataset/": ("data", "faults", "input", *_TRAINING),
    "pipeline/engines/": ("engines",),
    "pipeline/evaluation/": ("pages", *_TRAINING),
    "pipeline/gate/": ("dags", "data", "engines", "faults"),
    "pipeline/images/": ("data", "engines", "faults"),
    "pipeline/input/": ("input", *_TRAINING),
    "pipeline/kinds/": ("dags", "data", "engines", "faults", "input", *_TRAINING),
    "pipeline/monitor/": ("airflow", "monitor", "pages", *_TRAINING),
    "pipeline/plan/": ("dags", "data", "engines", "faults"),
    "pipeline/records/": ("data", "faults", "input"),
    "pipeline/rendezvous/": ("dags", "faults", *_TRAINING),
    "pipeline/report/": ("pages",),
    "pipeline/runs/": ("airflow", "cluster", "dags", "pages", *_TRAINING),
    "pipeline/sharding/": ("dags", "data", "engines", "faults"),
    "pipeline/snapshot/": ("data", "engines", "faults"),
    "pipeline/sources/": ("data", "faults"),
    "pipeline/storage/": ("faults", "input", "pages", *_TRAINING),
    "pipeline/tables/": ("data", "engines", "input", *_TRAINING),
    "pipeline/training/": ("dags", *_TRAINING),
    "pipeline/training/compare/": ("comparison", "dags"),
    "pipeline/tuning/": ("dags", "monitor", "pages", *_TRAINING),
    "pipeline/watch/": ("pages",),
    "docker": ("airflow",),
    "scripts/airflow/": ("airflow", "airflow34", "cluster", "pages", "tutorials"),
    "scripts/compose/": ("airflow",),
    "benchmarks/": ("monitor",),
    "docs/": ("tutorials",),
    "docs/figures/": (),
    "tests/airflow34.in": ("airflow34",),
    "tests/requirements-airflow34.txt": ("airflow34",),
    "docs/how-to/read-shards.md": ("data", "tutorials"),
    ".gitignore": (),
    "CHANGELOG.md": (),
    "CONTRIBUTING.md": (),
    "LICENSE": (),
    "README.md": (),
    "findings/": (),
}
"""The groups that test a file or folder. The longest matching path counts. A file without one concerns all groups."""


@dataclass(frozen=True)
class Result:
    """The last recorded run of a group."""

    date: str
    commit: str
    result: str
    minutes: float


def main() -> int:
    """Run the groups of the command line, and return the exit code."""
    arguments = parse(sys.argv[1:])
    records = load_records(ROOT / RECORD)
    if arguments.warn:
        if warning := warning_about(records):
            print(warning, file=sys.stderr)
        return 0
    is_recorded = arguments.record == "yes"
    if is_recorded and changed_files("HEAD"):
        print("RECORD=yes needs a clean tree. Commit your changes, and run the command again.", file=sys.stderr)
        return 2
    names = selected(arguments.groups, records)
    if not names:
        print("No group has changed since its last record.")
    results = {name: run(name, is_recorded) for name in names}
    for name, result in results.items():
        print(f"{name:10} {result.result:7} {result.minutes:5.1f} minutes")
    return 0 if all(result.result == PASSED for result in results.values()) else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.long_tests", description=__doc__.split("\n")[0])
    choices = [*NAMES, CHANGED]
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(choices)}; by default all groups")
    parser.add_argument(
        "--record", choices=["yes", "no", ""], default="", help=f"write the results to {RECORD}; needs a clean tree"
    )
    parser.add_argument("--warn", action="store_true", help="run nothing, and warn of old records")
    parsed = parser.parse_args(arguments)
    if unknown := [name for name in parsed.groups if name not in choices]:
        parser.error(f"there is no group {unknown[0]!r}. The groups are: {', '.join(choices)}")
    return parsed


def group_of(path: str) -> str | None:
    """Return the group of a file of tests, given relative to the root of the project. Others may repeat it."""
    return longest_match(path, {prefix: name for name, tests in GROUPS.items() for prefix in tests})


def longest_match(path: str, values: Mapping[str, T]) -> T | None:
    """Return the value of the longest key that the path begins with, or None."""
    keys = [key for key in values if path.startswith(key)]
    return values[max(keys, key=len)] if keys else None


def selected(names: Iterable[str], records: Mapping[str, Result]) -> list[str]:
    """Return the names of the groups to run, in the order of `NAMES`."""
    wanted = set(names) or set(NAMES)
    if CHANGED in wanted:
        wanted |= {name for name in NAMES if name not in records or is_outdated(name, records[name])}
    return [name for name in NAMES if name in wanted]


def is_outdated(name: str, record: Result) -> bool:
    """Return whether a group failed, or whether something that it tests changed since its record."""
    if record.result != PASSED or age_of(record.commit) is None:
        return True
    return any(name in groups_for(path) for path in changed_files(record.commit))


def groups_for(path: str) -> set[str]:
    """Return the groups that a changed file concerns."""
    if group := group_of(path):
        return {group, *(name for name, repeated in REPEATED.items() if repeated.has(path))}
    tested_by = longest_match(path, TESTED_BY)
    return set(NAMES if tested_by is None else tested_by)


def run(name: str, is_recorded: bool) -> Result:
    """Run the tests of a group, and record the result."""
    began, commit = time.monotonic(), git("rev-parse", "HEAD").strip()
    passed = passes(name, is_recorded)
    minutes = round((time.monotonic() - began) / 60, 1)
    result = Result(datetime.now(UTC).date().isoformat(), commit, PASSED if passed else "failed", minutes)
    if is_recorded and changed_files(commit):
        print(f"The tree changed while the group {name!r} ran, so its result is not recorded.", file=sys.stderr)
    elif is_recorded:
        write_records(ROOT / RECORD, {**load_records(ROOT / RECORD), name: result})
    return result


def passes(name: str, is_recorded: bool) -> bool:
    """Run several tests of a group at once, then one by one those that judge the use of the machine."""
    environment = ENVIRONMENTS.get(name)
    if environment and subprocess.run(["make", "--no-print-directory", environment], cwd=ROOT, check=False).returncode:
        print(f"`make {environment}` failed, so the group {name!r} was not run", file=sys.stderr)
        return False
    # A skipped test fails on CI: a record must not count what did not run.
    environ = {**os.environ, "CI": "true"} if is_recorded else None
    codes = [subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode for command in commands_of(name)]
    return 0 in codes and set(codes) <= {0, NOTHING_COLLECTED}


def commands_of(name: str) -> list[list[str]]:
    """Return the commands that run the tests of a group."""
    # Most of these tests wait for processes that they start, so more of them run at once than there are cores.
    beside = ["--dist", "loadfile", "--no-loadscope-reorder", "-n", "4"]
    if repeated := REPEATED.get(name):
        without = [f"--ignore={path}" for path in repeated.without]
        pytest = [str(ROOT / repeated.python), "-m", "pytest", *repeated.tests, *without]
        return [[*pytest, *beside, "-m", "not alone"], [*pytest, "-m", "alone"]]
    files = [path for path in long_test_files() if group_of(path) == name]
    # Without a file, pytest would run the tests of all groups.
    assert files, f"the group {name!r} has no file with a long test"
    pytest = [sys.executable, "-m", "pytest", *files]
    return [[*pytest, *beside, "-m", "long and not core and not alone"], [*pytest, "-m", "alone"]]


def long_test_files() -> list[str]:
    """Return the files of tests that mention one of the two markers, relative to the root of the project."""
    return git("grep", "--untracked", "-lE", r"mark\.(long|alone)", "--", "tests/*.py").splitlines()


def warning_about(records: Mapping[str, Result]) -> str:
    """Return a sentence about the groups whose last record is missing, failed or old, or an empty string."""
    problems = {name: problem for name in NAMES if (problem := problem_of(records.get(name)))}
    if not problems:
        return ""
    listed = ", ".join(f"{name} ({problem})" for name, problem in problems.items())
    groups = f'"{" ".join(problems)}"' if len(problems) > 1 else next(iter(problems))
    return f"warning: long tests without a new record: {listed}. Run: make test-long GROUP={groups} RECORD=yes"


def problem_of(record: Result | None) -> str:
    """Return what is wrong with the record of a group, or an empty string."""
    if record is None:
        return "never recorded"
    if record.result != PASSED:
        return f"failed on {record.date}"
    age = age_of(record.commit)
    if age is None:
        return "recorded for a commit that this history lacks"
    return f"{age} commits ago" if age > MAX_AGE else ""


def age_of(commit: str) -> int | None:
    """Return the number of commits since a commit, or None if this history does not contain it."""
    known = subprocess.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=ROOT, capture_output=True)
    return int(git("rev-list", "--count", f"{commit}..HEAD")) if known.returncode == 0 else None


def changed_files(commit: str) -> list[str]:
    """Return the files that differ from a commit, untracked ones included. The record itself does not count."""
    changed = git("diff", "--no-renames", "--name-only", commit) + git("ls-files", "--others", "--exclude-standard")
    return [name for name in changed.splitlines() if Path(name) != RECORD]


def git(*arguments: str) -> str:
    """Return the output of a command of git."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def load_records(path: Path) -> dict[str, Result]:
    """Return the record of each group that has one."""
    return {name: Result(**values) for name, values in json.loads(path.read_text()).items()} if path.exists() else {}


def write_records(path: Path, records: Mapping[str, Result]) -> None:
    """Write the record of each group."""
    values = {name: asdict(records[name]) for name in NAMES if name in records}
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(values, indent=2) + "\n")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
