"""Run the long tests in named groups, and record when each group passed.

    python -m scripts.long_tests [GROUP ...] [--record] [--warn]

GROUP is the name of a group, or `changed`: the groups whose tests or product code changed since their last record.
Without a group, all of them run. `--record` writes the result of each group to docs/figures/test-long.json. It needs a
clean tree, because a record names the commit that was tested. `--warn` runs nothing. It warns of old records.
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

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path("docs/figures/test-long.json")
CHANGED = "changed"
MAX_AGE = 40
"""Commits after which a record is old."""
NOTHING_COLLECTED = 5
"""Exit code of pytest if no test has the markers that were asked for."""


@dataclass(frozen=True)
class Group:
    """Long tests of one subject, which take at most ten minutes on two quiet cores.

    Args:
        tests: Files and folders of tests. A test belongs to the group with its longest matching path.
        covers: Product files and folders. If one of them changes, the group should run.
        environments: Targets of make that create what the tests need beside `.venv`.
    """

    tests: tuple[str, ...]
    covers: tuple[str, ...]
    environments: tuple[str, ...] = ()


_RUNS = ("dags/", "pipeline/runs/", "pipeline/config.py", "pipeline/allowed.py", "pipeline/preflight.py")
_BYTES = ("pipeline/records/", "pipeline/sharding/", "pipeline/snapshot/", "pipeline/sources/", "pipeline/images/")
_BATCHES = ("pipeline/records/", "pipeline/dataset/", "pipeline/input/")

GROUPS = {
    "airflow": Group(("tests/scripts/", "tests/test_secrets.py"), (*_RUNS, "scripts/", "pipeline/monitor/comet.py")),
    "cluster": Group(("tests/cluster/",), (*_RUNS, "plugins/", "scripts/airflow/", "scripts/compose/", "docker")),
    "dags": Group(("tests/dags/",), (*_RUNS, "pipeline/__main__.py", "pipeline/build.py", "pipeline/extraction.py")),
    "data": Group(
        (
            "tests/dataset/",
            "tests/images/",
            "tests/records/",
            "tests/sharding/",
            "tests/snapshot/",
            "tests/sources/",
            "tests/system/",
            "tests/tables/",
        ),
        (*_BYTES, "pipeline/dataset/", "pipeline/tables/", "pipeline/system/"),
        environments=("env-readers",),
    ),
    "engines": Group(
        ("tests/engines/", "tests/dags/test_engines.py"),
        ("pipeline/engines/", "pipeline/tables/", "pipeline/sharding/", "dags/"),
        environments=("env-engines",),
    ),
    "faults": Group(
        ("tests/test_", "tests/storage/"),
        (*_BYTES, "pipeline/storage/", "pipeline/system/", "pipeline/rendezvous/", "pipeline/dataset/"),
    ),
    "input": Group(("tests/input/",), _BATCHES),
    "monitor": Group(("tests/monitor/", "tests/tuning/"), ("pipeline/monitor/", "pipeline/tuning/")),
    "pages": Group(
        ("tests/plugins/", "tests/report/", "tests/watch/"), ("plugins/", "pipeline/report/", "pipeline/watch/")
    ),
    "training": Group(
        ("tests/training/", "tests/runs/", "tests/evaluation/"), (*_BATCHES, "pipeline/training/", "pipeline/runs/")
    ),
    "tutorials": Group(
        ("tests/docs/",), ("docs/tutorials/", "docs/quickstart.md", "dags/", "scripts/airflow/", "Makefile")
    ),
}
UNCOVERED = ("docs/", "benchmarks/", "findings/", "tests/", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
"""Files that no long test depends on, if no group names them. Any other file concerns all groups."""


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
    if arguments.record and changed_files("HEAD"):
        print("RECORD=yes needs a clean tree. Commit your changes, and run the command again.", file=sys.stderr)
        return 2
    results = {name: run(name, GROUPS[name]) for name in selected(arguments.groups, records)}
    if arguments.record:
        write_records(ROOT / RECORD, {**records, **results})
    for name, result in results.items():
        print(f"{name:10} {result.result:7} {result.minutes:5.1f} minutes")
    return 0 if all(result.result == "passed" for result in results.values()) else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.long_tests", description=__doc__.split("\n")[0])
    choices = [*GROUPS, CHANGED]
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(choices)}; by default all groups")
    parser.add_argument("--record", action="store_true", help=f"write the results to {RECORD}; needs a clean tree")
    parser.add_argument("--warn", action="store_true", help="run nothing, and warn of old records")
    parsed = parser.parse_args(arguments)
    if unknown := [name for name in parsed.groups if name not in choices]:
        parser.error(f"there is no group {unknown[0]!r}. The groups are: {', '.join(choices)}")
    return parsed


def group_of(path: str) -> str | None:
    """Return the group of a file of tests, given relative to the root of the project."""
    prefixes = {prefix: name for name, group in GROUPS.items() for prefix in group.tests if path.startswith(prefix)}
    return prefixes[max(prefixes, key=len)] if prefixes else None


def selected(names: Iterable[str], records: Mapping[str, Result]) -> list[str]:
    """Return the names of the groups to run, in the order of `GROUPS`."""
    wanted = set(names) or set(GROUPS)
    if CHANGED in wanted:
        wanted |= {name for name in GROUPS if name not in records or is_outdated(name, records[name])}
    return [name for name in GROUPS if name in wanted]


def is_outdated(name: str, record: Result) -> bool:
    """Return whether a group failed, or whether something that it tests changed since its record."""
    if record.result != "passed" or age_of(record.commit) is None:
        return True
    return any(name in groups_for(path) for path in changed_files(record.commit))


def groups_for(path: str) -> set[str]:
    """Return the groups that a changed file concerns."""
    if path.startswith("tests/") and (group := group_of(path)) and Path(path).name.startswith("test_"):
        return {group}
    concerned = {name for name, group in GROUPS.items() if path.startswith((*group.covers, *group.tests))}
    return concerned or (set() if path.startswith(UNCOVERED) else set(GROUPS))


def run(name: str, group: Group) -> Result:
    """Run the tests of a group: first several at once, then one by one those that judge the use of the machine."""
    began, commit = time.monotonic(), git("rev-parse", "HEAD").strip()
    files = sorted({str(path) for path in long_test_files() if group_of(str(path)) == name})
    pytest = [sys.executable, "-m", "pytest", *files]
    # Most of these tests wait for processes that they start, so more of them run at once than there are cores.
    beside = [*pytest, "--dist", "loadfile", "--no-loadscope-reorder", "-n", "4"]
    commands = [
        *(["make", "--no-print-directory", environment] for environment in group.environments),
        [*beside, "-m", "long and not core and not alone"],
        [*pytest, "-m", "alone"],
    ]
    codes = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands]
    passed = all(code in (0, NOTHING_COLLECTED) for code in codes)
    minutes = round((time.monotonic() - began) / 60, 1)
    return Result(datetime.now(UTC).date().isoformat(), commit, "passed" if passed else "failed", minutes)


def long_test_files() -> list[Path]:
    """Return the files of tests that mention one of the two markers, relative to the root of the project."""
    names = git("grep", "-lE", r"mark\.(long|alone)", "--", "tests/*.py").splitlines()
    return [Path(name) for name in names]


def warning_about(records: Mapping[str, Result]) -> str:
    """Return a sentence about the groups whose last record is missing, failed or old, or an empty string."""
    problems = {name: problem for name in GROUPS if (problem := problem_of(records.get(name)))}
    if not problems:
        return ""
    listed = ", ".join(f"{name} ({problem})" for name, problem in problems.items())
    groups = f'"{" ".join(problems)}"' if len(problems) > 1 else next(iter(problems))
    return f"warning: long tests without a new record: {listed}. Run: make test-long GROUP={groups} RECORD=yes"


def problem_of(record: Result | None) -> str:
    """Return what is wrong with the record of a group, or an empty string."""
    if record is None:
        return "never recorded"
    if record.result != "passed":
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
    changed = git("diff", "--name-only", commit) + git("ls-files", "--others", "--exclude-standard")
    return [name for name in changed.splitlines() if Path(name) != RECORD]


def git(*arguments: str) -> str:
    """Return the output of a command of git."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def load_records(path: Path) -> dict[str, Result]:
    """Return the record of each group that has one."""
    return {name: Result(**values) for name, values in json.loads(path.read_text()).items()} if path.exists() else {}


def write_records(path: Path, records: Mapping[str, Result]) -> None:
    """Write the record of each group."""
    values = {name: asdict(records[name]) for name in GROUPS if name in records}
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(values, indent=2) + "\n")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
