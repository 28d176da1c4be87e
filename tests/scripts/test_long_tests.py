"""The groups of long tests: each test is in a group, and the record of a group says whether it must run again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import long_tests
from scripts.long_tests import GROUPS, ROOT, Result, group_of, groups_for, long_test_files, selected, warning_about


class Project:
    """A repository with one commit, in place of the project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet")
        self.commit("pipeline/input/batches.py")
        self.first = self.git("rev-parse", "HEAD")
        self.records = dict.fromkeys(GROUPS, Result("2026-01-01", self.first, "passed", 1.0))

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
    groups = {str(path): group_of(str(path)) for path in long_test_files()}
    assert [path for path, group in groups.items() if group is None] == []
    assert set(groups.values()) == set(GROUPS)


def test_the_files_of_each_group_exist():
    places = {place for group in GROUPS.values() for place in (*group.tests, *group.covers)}
    assert [place for place in sorted(places) if not list(ROOT.glob(f"{place.rstrip('/')}*"))] == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pipeline/input/batches.py", {"input", "training"}),
        ("pipeline/engines/spark.py", {"engines"}),
        ("tests/dags/test_engines.py", {"engines"}),
        ("tests/dags/test_dags.py", {"dags"}),
        ("tests/dags/conftest.py", {"dags"}),
        ("tests/test_crashes.py", {"faults"}),
        ("tests/waiting.py", set()),
        ("docs/tutorials/tables.md", {"tutorials"}),
        ("docs/benchmarks.md", set()),
        ("requirements.txt", set(GROUPS)),
    ],
)
def test_a_changed_file_concerns_groups(path: str, expected: set[str]):
    assert groups_for(path) == expected


def test_without_a_change_no_group_is_outdated(project: Project):
    assert selected(["changed"], project.records) == []
    assert selected([], project.records) == list(GROUPS)


def test_a_group_is_outdated_after_a_commit_a_failure_or_an_untracked_file(project: Project):
    project.commit("pipeline/input/batches.py")
    assert selected(["changed"], project.records) == ["input", "training"]
    project.write("plugins/new.py")
    assert selected(["changed"], project.records) == ["cluster", "input", "pages", "training"]
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
    assert warning_about(project.records).count("(2 commits ago)") == len(GROUPS) - 3


def test_a_record_needs_a_clean_tree(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, "argv", ["long_tests", "input", "--record"])
    project.write("pipeline/input/new.py")
    assert long_tests.main() == 2
    assert "needs a clean tree" in capsys.readouterr().err
    assert not (project.folder / long_tests.RECORD).exists()


@pytest.mark.parametrize(("outcome", "result", "code"), [("True", "passed", 0), ("False", "failed", 1)])
def test_the_result_of_a_group_is_recorded(
    outcome: str, result: str, code: int, project: Project, monkeypatch: pytest.MonkeyPatch
):
    test = project.folder / "tests" / "input" / "test_it.py"
    test.parent.mkdir(parents=True)
    (project.folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  long:\n  core:\n  alone:\n")
    test.write_text(f"import pytest\n\n@pytest.mark.long\ndef test_it():\n    assert {outcome}\n")
    (project.folder / long_tests.RECORD).parent.mkdir(parents=True)
    project.commit()
    monkeypatch.setattr(sys, "argv", ["long_tests", "input", "--record"])
    assert long_tests.main() == code
    [(name, record)] = json.loads((project.folder / long_tests.RECORD).read_text()).items()
    assert (name, record["result"], record["commit"]) == ("input", result, project.git("rev-parse", "HEAD"))


def test_an_unknown_group_is_refused(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        long_tests.parse(["inputs"])
    assert "there is no group 'inputs'. The groups are: airflow, cluster" in capsys.readouterr().err
