"""The task `promote`, which ends each run of `retrain` and of the trainings: it succeeds whatever is decided."""

import logging
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.settings import settings_from
from pipeline.runs.promotion import promote_by_hand
from tests.runs.complete import trained
from tests.runs.test_promotion_table import CLASSES, accuracy

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings
CONTEXT = {"run_id": "retrain 1"}


def promoted(run: Path, monkeypatch: pytest.MonkeyPatch, notifier: str = "tests.dags.notifier.ToFile") -> Any:
    """Run the function of the task with a fake context."""
    from dags import tasks

    monkeypatch.setenv("TENFOLD_NOTIFIERS", notifier)
    monkeypatch.setattr(tasks, "get_current_context", lambda: CONTEXT)
    return tasks.promote.function(settings_from({}).model_dump(), [str(run)])


@pytest.mark.parametrize(
    ("champion", "points", "decision", "notes"),
    [(75, 85, "promoted", ""), (85, 75, "kept", ""), (None, 40, "asked", "notify retrain 1\n")],
)
def test_the_task_succeeds_and_notifies_only_if_a_person_must_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, champion: float | None, points: float, decision: str, notes: str
):
    monkeypatch.setenv("TENFOLD_TEST_NOTES", str(tmp_path / "notes"))
    before = None
    if champion:
        before = trained(tmp_path, "champion", accuracy(champion), CLASSES, None)
        promote_by_hand(before, output=2)
    run = trained(tmp_path, "new", accuracy(points), CLASSES, None)
    returned = promoted(run, monkeypatch)
    assert returned["decision"] == decision
    assert returned["champion"] == str((run if decision == "promoted" else before) or "")
    assert ((tmp_path / "notes").read_text() if (tmp_path / "notes").exists() else "") == notes


def test_a_notifier_that_fails_does_not_fail_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv("TENFOLD_TEST_NOTES", raising=False)  # the notifier raises KeyError without it
    run = trained(tmp_path, "new", accuracy(40), CLASSES, None)
    with caplog.at_level(logging.ERROR):
        assert promoted(run, monkeypatch)["decision"] == "asked"
    assert "the notifier tests.dags.notifier.ToFile failed" in caplog.text
