"""The groups of long tests: each test is in a group, and the record of a group says whether it must run again."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import long_tests
from scripts.long_tests import (
    GROUPS,
    NAMES,
    REPEATED,
    ROOT,
    TESTED_BY,
    Result,
    commands_of,
    group_of,
    groups_for,
    long_test_files,
    selected,
    warning_about,
)

TRAINING = {"comparison", "models", "servers", "training"}


class Project:
    """A repository with one commit, in place of the project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet")
        self.commit("pipeline/input/batches.py")
        self.first = self.git("rev-parse", "HEAD")
        self.records = dict.fromkeys(NAMES, Result("2026-01-01", self.first, "passed", 1.0))

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout.strip()

    def write(self, *names: str) -> None:
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("# changed\n" + (path.read_text() if path.exists() else ""))

    def commit(self, *names: str) -> None:
        self.write(*names)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(long_tests, "ROOT", tmp_path)
    return Project(tmp_path)


def test_each_long_test_is_in_a_group_and_each_group_has_tests():
    groups = {path: group_of(path) for path in long_test_files()}
    assert [path for path, group in groups.items() if group is None] == []
    assert set(groups.values()) == set(GROUPS)


def test_the_files_of_each_group_exist():
    in_groups = (*GROUPS.values(), *((*each.tests, *each.without) for each in REPEATED.values()))
    places = {*TESTED_BY, *(place for group in in_groups for place in group)} - {"findings/"}
    assert [place for place in sorted(places) if not list(ROOT.glob(f"{place.rstrip('/')}*"))] == []
    assert {name for names in TESTED_BY.values() for name in names} == set(NAMES)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pipeline/input/batches.py", {"input", *TRAINING}),
        ("pipeline/engines/spark.py", {"engines"}),
        ("tests/dags/test_engines.py", {"engines"}),
        ("tests/dags/test_dags.py", {"airflow34", "dags"}),
        ("tests/dags/conftest.py", {"airflow34", "dags"}),
        ("tests/scripts/test_airflow_follow.py", {"airflow"}),
        ("plugins/training_monitor/runs.py", {"airflow34", "cluster", "pages"}),
        ("tests/test_crashes.py", {"faults"}),
        ("tests/waiting.py", set(NAMES)),
        ("docs/tutorials/tables.md", {"tutorials"}),
        ("docs/figures/input.json", set()),
        ("docs/how-to/read-shards.md", {"data", "tutorials"}),
        ("pipeline/config/settings.py", set(NAMES)),
        ("requirements.txt", set(NAMES)),
        ("tests/airflow34.in", {"airflow34"}),
        ("tests/requirements-airflow34.txt", {"airflow34"}),
    ],
)
def test_a_changed_file_concerns_groups(path: str, expected: set[str]):
    assert groups_for(path) == expected


@pytest.mark.parametrize("name", NAMES)
def test_no_test_runs_beside_those_that_judge_the_use_of_the_machine(name: str):
    for command in commands_of(name):
        markers = command[command.index("-m", 3) + 1]
        assert ("-n" in command) is markers.endswith("not alone"), command


def test_without_a_change_no_group_is_outdated(project: Project):
    assert selected(["changed"], project.records) == []
    assert selected([], project.records) == list(NAMES)


def test_a_group_is_outdated_after_a_commit_a_failure_or_an_untracked_file(project: Project):
    project.commit("pipeline/input/batches.py")
    assert selected(["changed"], project.records) == sorted({"input", *TRAINING})
    project.write("plugins/new.py")
    assert set(selected(["changed"], project.records)) == {"airflow34", "cluster", "input", "pages", *TRAINING}
    project.records["dags"] = Result("2026-01-01", project.first, "failed", 1.0)
    del project.records["data"]
    assert {"dags", "data"} < set(selected(["changed"], project.records))


def test_an_old_a_missing_and_a_failed_record_lead_to_a_warning(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(long_tests, "MAX_AGE", 1)
    assert warning_about(project.records) == ""
    project.records["dags"] = Result("2026-01-01", project.first, "failed", 1.0)
    assert warning_about(project.records) == (
        "warning: long tests without a new record: dags (failed on 2026-01-01). "
        "Run: make test-long GROUP=dags RECORD=yes"
    )
    del project.records["data"]
    project.records["input"] = Result("2026-01-01", 40 * "0", "passed", 1.0)
    warning = warning_about(project.records)
    assert "data (never recorded), input (recorded for a commit that this history lacks). " in warning
    assert warning.endswith('GROUP="dags data input" RECORD=yes')
    for _ in range(2):
        project.commit()
    assert warning_about(project.records).count("(2 commits ago)") == len(NAMES) - 3


def test_a_moved_file_concerns_the_groups_of_both_places(project: Project):
    (project.folder / "pipeline" / "watch").mkdir()
    project.git("mv", "pipeline/input/batches.py", "pipeline/watch/batches.py")
    project.commit()
    assert selected(["changed"], project.records) == sorted({"input", "pages", *TRAINING})


def test_a_record_needs_a_clean_tree(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, "argv", ["long_tests", "input", "--record", "yes"])
    project.write("pipeline/input/new.py")
    assert long_tests.main() == 2
    assert "needs a clean tree" in capsys.readouterr().err
    assert not (project.folder / long_tests.RECORD).exists()


BODIES = {
    "assert True": "passed",
    "assert False": "failed",
    "pytest.skip('needs a printer')": "failed",
    "open('new', 'w').close()": "",
}
"""The recorded result of a test with this body. The last one changes the tree, so nothing is recorded."""


@pytest.mark.long
@pytest.mark.parametrize(("body", "expected"), BODIES.items())
def test_the_result_of_a_group_is_recorded(body: str, expected: str, project: Project, monkeypatch: pytest.MonkeyPatch):
    test = project.folder / "tests" / "input" / "test_it.py"
    test.parent.mkdir(parents=True)
    (project.folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  long:\n  core:\n  alone:\n")
    (project.folder / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    test.write_text(f"import pytest\n\n@pytest.mark.long\ndef test_it():\n    {body}\n")
    (project.folder / long_tests.RECORD).parent.mkdir(parents=True)
    (project.folder / ".gitignore").write_text("__pycache__\n.pytest_cache\n")
    project.commit()
    monkeypatch.setattr(sys, "argv", ["long_tests", "input", "--record", "yes"])
    assert long_tests.main() == (1 if expected == "failed" else 0)
    records = long_tests.load_records(project.folder / long_tests.RECORD)
    assert {name: record.result for name, record in records.items()} == ({"input": expected} if expected else {})


def test_an_unknown_group_is_refused(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        long_tests.parse(["inputs"])
    assert "there is no group 'inputs'. The groups are: airflow, cluster" in capsys.readouterr().err
