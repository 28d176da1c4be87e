"""The task `report`, which draws a training and notifies of one that is worse than those before it."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dags.xcom_keys import WORSE
from tests.watch.test_predecessors import training

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings
SENTENCE = "It takes 400 examples a second; the 6 trainings before took 800."


class Drawing:
    """Stands for the drawing of a report, which needs a whole dataset and has tests of its own."""

    def __init__(self, run: Path) -> None:
        self.notes = run.parents[2] / "notes"
        self.error: Exception | None = None

    def __call__(self, run: Path) -> Path:
        assert not self.notes.exists()
        if self.error:
            raise self.error
        (run / "report.html").touch()
        return run / "report.html"


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A training at half of the speed of those before it."""
    for number in range(6):
        training(tmp_path, number, speed=800.0)
    return training(tmp_path, 6, speed=400.0)


@pytest.fixture
def drawing(slow: Path, monkeypatch: pytest.MonkeyPatch) -> Drawing:
    import dags.tasks  # noqa: F401 - Airflow replaces the handlers of the log when it is imported

    drawing = Drawing(slow)
    monkeypatch.setattr("pipeline.report.report_run", drawing)
    monkeypatch.setenv("TENFOLD_NOTIFIERS", "tests.dags.notifier.ToFile")
    monkeypatch.setenv("TENFOLD_TEST_NOTES", str(drawing.notes))
    return drawing


def reported(run: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the function of the task with a fake context. Return its XComs."""
    from dags import tasks

    xcoms: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: xcoms.update({key: value}))
    monkeypatch.setattr(tasks, "get_current_context", lambda: {"run_id": "train 1", "ti": ti})
    assert Path(tasks.report.function([str(run)])["report"]).is_file()
    return xcoms


def test_a_worse_training_is_reported_and_notified(
    slow: Path, drawing: Drawing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A notifier that fails costs only an error in the log."""
    failing = ("tests.dags.notifier.no_such_one", "builtins.dict")
    monkeypatch.setenv("TENFOLD_NOTIFIERS", ",".join([*failing, "tests.dags.notifier.ToFile"]))
    with caplog.at_level(logging.ERROR):
        assert reported(slow, monkeypatch) == {WORSE: SENTENCE}
    assert drawing.notes.read_text() == "notify train 1\n"
    assert [f"the notifier {name} failed" in caplog.text for name in failing] == [True, True]


def test_a_training_as_good_as_those_before_it_notifies_nobody(
    slow: Path, drawing: Drawing, monkeypatch: pytest.MonkeyPatch
):
    assert reported(slow.parents[1] / "run 5" / slow.name, monkeypatch) == {}
    assert not drawing.notes.exists()


def test_a_report_that_cannot_be_drawn_notifies_nobody(slow: Path, drawing: Drawing, monkeypatch: pytest.MonkeyPatch):
    """Airflow tries the task again, and each attempt would notify."""
    drawing.error = OSError("the disk is full")
    with pytest.raises(OSError, match="the disk is full"):
        reported(slow, monkeypatch)
    assert not drawing.notes.exists()
