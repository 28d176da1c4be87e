"""The approval task when it resumes with the answer of a person."""

from types import SimpleNamespace

import pytest

from dags.operators import ApproveOperator
from pipeline.config.settings import Settings
from pipeline.errors import GateError
from pipeline.sharding.approval import answers, questions_about
from pipeline.storage import Place
from tests.dags.planned_run import PlannedRun
from tests.sharding.test_approval import publish_another, settings, write

__all__ = ["settings"]
pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings


def resume(plan: Place, settings: Settings, sentences: list[str], answer: str) -> None:
    operator = ApproveOperator(task_id="approve", settings=settings.model_dump())
    event = {"chosen_options": [answer], "params_input": {}, "responded_at": SimpleNamespace(isoformat=str)}
    operator.execute_complete({"ti": PlannedRun(plan, sentences)}, {**event, "responded_by_user": None})


def test_an_approval_covers_only_the_question_that_was_read(settings: Settings):
    plan = write(settings)
    sentences = questions_about(plan, settings)
    other = publish_another(settings)
    with pytest.raises(GateError, match=f"differ from those of version {other}.*trigger this DAG again"):
        resume(plan, settings, sentences, "Approve")
    assert [answers(plan)(each) for each in sentences] == [True]
    # The question about the other version, which the person has not read.
    assert len(questions_about(plan, settings)) == 1


def test_the_error_of_a_rejection_contains_the_question(settings: Settings):
    plan = write(settings)
    [sentence] = questions_about(plan, settings)
    publish_another(settings)
    with pytest.raises(GateError, match="a person answered 'Reject'") as caught:
        resume(plan, settings, [sentence], "Reject")
    assert sentence in str(caught.value)
