"""Runs with a small dataset, which the first task builds up to the commit."""

from pathlib import Path
from typing import Any

import pytest

from dags.small import BETWEEN, plan_of_run
from pipeline.errors import SettingsError
from pipeline.tables.samples import write_sample_table
from tests.conftest import MakeImages
from tests.dags.conftest import RunDag

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings


class Run:
    """A fake task instance. XComs and states need a server of Airflow, which the long tests have."""

    dag_id, run_id = "image_dataset", "a run"

    def __init__(self, state: str, plans: dict[str, str]) -> None:
        self._state = state
        self._plans = plans

    def get_task_states(self, **_: Any) -> dict[str, dict[str, str]]:
        return {self.run_id: {"shard.plan": self._state}}

    def xcom_pull(self, *, task_ids: str, key: str) -> str | None:
        assert key == "plan"
        return self._plans.get(task_ids)


BOTH = {"extract": "of extract", "shard.plan": "of plan"}


@pytest.mark.parametrize(
    ("state", "plans", "expected"),
    [
        ("success", {"shard.plan": "of plan"}, "of plan"),
        ("skipped", {"extract": "of extract"}, "of extract"),
        ("success", BOTH, "of plan"),  # a person cleared `plan` of a small dataset
        ("skipped", BOTH, "of extract"),  # the source was large or had questions when the run was first tried
    ],
)
def test_the_plan_is_that_of_the_task_that_ran(state: str, plans: dict[str, str], expected: str):
    assert plan_of_run(Run(state, plans)) == expected


@pytest.mark.parametrize(("state", "plans"), [("skipped", {"shard.plan": "of plan"}), ("success", {})])
def test_a_run_without_a_plan_is_refused(state: str, plans: dict[str, str]):
    with pytest.raises(SettingsError, match=f"`shard.plan` is {state}: clear `extract` and all tasks after it"):
        plan_of_run(Run(state, plans))


def test_all_tasks_between_extract_and_commit_are_skipped(dags: dict[str, Any]):
    for dag_id in ("image_dataset", "tabular_dataset", "image_training", "tabular_training"):
        before = dags[dag_id].get_task("upload.commit").get_flat_relative_ids(upstream=True)
        assert before == {"extract", *BETWEEN}, dag_id


@pytest.mark.long
@pytest.mark.parametrize("dag_id", ["image_dataset", "tabular_dataset"])
def test_the_first_task_builds_a_small_dataset(run_dag: RunDag, make_images: MakeImages, tmp_path: Path, dag_id: str):
    form: dict[str, Any]
    if dag_id == "image_dataset":
        form = {"source_uri": str(make_images({"cats": 10, "dogs": 10}))}
    else:
        write_sample_table(tmp_path / "customers.csv", 200)
        form = {"source_uri": str(tmp_path / "customers.csv"), "label_column": "churn"}
    first = run_dag(dag_id, form)
    assert first.state == "success"
    assert first.tasks == {"extract": "success", **dict.fromkeys(BETWEEN, "skipped"), "upload.commit": "success"}
    committed = first.returned("upload.commit")
    assert not committed["already_complete"]

    second, complete = run_dag(dag_id, form), {**committed, "already_complete": True}
    assert second.tasks == first.tasks
    assert second.returned("upload.commit") == complete

    third = run_dag(dag_id, {**form, "shards_per_task": 100})  # a person wants tasks
    assert (third.tasks["shard.plan"], third.tasks["upload.approve"]) == ("success", "success")
    assert third.returned("upload.commit") == complete


@pytest.mark.long
def test_the_first_task_refuses_a_small_dataset_at_the_data_gate(run_dag: RunDag, make_images: MakeImages):
    form = {"source_uri": str(make_images({"cats": 10, "dogs": 1})), "on_imbalance": "fail", "max_imbalance": 2}
    ran = run_dag("image_dataset", form)
    assert (ran.state, ran.tasks["extract"], ran.tries["extract"]) == ("failed", "failed", 1)
    assert "max_imbalance=2" in ran.left("extract", "failure")
