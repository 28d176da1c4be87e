"""Runs whose training has not started: what they wait for or do, on the tab and in the list."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

# Airflow imports Starlette's test client, which warns that it prefers another HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")


@pytest.fixture
def waiting(airflow_database: None) -> Iterator[None]:
    """A run whose task `train` is ready to start."""
    from airflow.models.pool import Pool
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import delete, update

    from tests.plugins.airflow_runs import add_run, remove_all

    add_run("ours", "run 1", None, state="running")
    with create_session() as session:
        session.execute(update(TaskInstance).values(state="scheduled"))
        session.execute(delete(Pool).where(Pool.pool == "gpu"))
    yield
    remove_all()


def stage_of(run_id: str = "run 1") -> Any:
    from plugins.training_monitor.runs import find_run

    run = find_run("ours", run_id)
    assert run is not None
    return run.stage


def set_tasks(state: str | None, **which: Any) -> None:
    """Give tasks a state, and a start two minutes ago."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    start = datetime.now(UTC) - timedelta(minutes=2)
    with create_session() as session:
        session.execute(update(TaskInstance).filter_by(**which).values(state=state, start_date=start))


def add_task(run_id: str, task_id: str, state: str | None, map_index: int = -1) -> None:
    """Add a task that needs no GPU."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import insert

    task = {"dag_id": "ours", "run_id": run_id, "task_id": task_id, "map_index": map_index, "pool": "default_pool"}
    with create_session() as session:
        session.execute(insert(TaskInstance).values(**task))
    set_tasks(state, run_id=run_id, task_id=task_id, map_index=map_index)


def listed() -> dict[str, Any]:
    """Return the rows of the list by run id."""
    from pipeline.watch.summary import Summaries
    from plugins.training_monitor.listing import ListQuery, Sources, list_trainings
    from plugins.training_monitor.runs import EndedRuns, Trainings

    query = ListQuery(100, 0, "", "started", ascending=False, zone=UTC)
    sources = Sources(Summaries(), Summaries(), EndedRuns())
    answer = list_trainings(Trainings({"ours"}), sources, query, may_read_log=lambda dag_id: True)
    return {row["run_id"]: row for row in answer["rows"]}


def set_slots(slots: int) -> None:
    from airflow.models.pool import Pool

    Pool.create_or_update_pool("gpu", slots=slots, description="", include_deferred=False)


def test_the_tab_names_a_missing_pool_and_the_command_that_creates_it(waiting: None):
    """Airflow leaves the task in the state scheduled, and reports that only in the scheduler's log."""
    message = stage_of().words
    assert "train waits for the pool 'gpu', which does not exist" in message
    assert 'airflow pools set gpu 1 "trainings at once"' in message
    set_slots(1)
    assert stage_of().words == "train is about to start"
    set_slots(0)
    assert "needs 1 slot of the pool 'gpu', but the pool has 0" in stage_of().words
    set_slots(-1)
    assert stage_of().words == "train is about to start"


def test_a_run_that_waits_for_the_pool_is_listed_with_its_place_in_the_queue(waiting: None):
    from tests.plugins.airflow_runs import add_run

    set_slots(1)
    set_tasks("running", run_id="run 1")
    for number in (2, 3):
        add_run("ours", f"run {number}", None, state="running")
        set_tasks("scheduled", run_id=f"run {number}")
        add_task(f"run {number}", "extract", "success")
    rows = listed()
    assert [*rows] == ["run 3", "run 2", "run 1"]
    assert [row["state"] for row in rows.values()] == ["waiting", "waiting", "starting"]
    for number in (2, 3):
        words = f"train is number {number - 1} of 2 in the queue of the pool 'gpu', which has 1 slot"
        assert rows[f"run {number}"]["words"] == stage_of(f"run {number}").words == words
        assert rows[f"run {number}"]["cells"]["progress"] == "1 of 2 tasks"
    assert rows["run 1"]["words"] == "train has started, and prepares the training"
    set_tasks("queued", run_id="run 2", task_id="train")
    assert stage_of("run 2").words == "train has a slot of the pool 'gpu', and waits for a worker"


def test_a_task_of_higher_priority_is_ahead_in_the_queue(waiting: None):
    """As the scheduler chooses, and not in the order of the runs."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    from tests.plugins.airflow_runs import add_run

    set_slots(1)
    set_tasks("running", run_id="run 1")
    for number in (2, 3):
        add_run("ours", f"run {number}", None, state="running")
        set_tasks("scheduled", run_id=f"run {number}")
        with create_session() as session:
            session.execute(update(TaskInstance).filter_by(run_id=f"run {number}").values(priority_weight=number))
    assert "is number 2 of 2" in stage_of("run 2").words
    assert "is number 1 of 2" in stage_of("run 3").words


def test_a_run_that_builds_its_dataset_is_listed_with_its_task_and_progress(waiting: None):
    set_tasks(None, run_id="run 1")
    assert stage_of().words == "Airflow has not started its next task yet"
    add_task("run 1", "extract", "running")
    assert (stage_of().state, stage_of().words) == ("building", "extract is running, for 2 min so far")
    set_tasks("success", run_id="run 1", task_id="extract")
    for index, state in enumerate(("success", "running", "running", "scheduled")):
        add_task("run 1", "shard.write", state, map_index=index)
    [row] = listed().values()
    assert (row["name"], row["words"]) == ("Building", "shard.write is running: 1 of 4 parts are done")
    assert row["cells"]["progress"] == "2 of 6 tasks"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("awaiting_input", "waits for the answer of a person: answer under Required Actions"),
        ("up_for_retry", "failed, and Airflow will try it again"),
        ("queued", "waits for a worker"),
    ],
)
def test_a_run_whose_task_before_the_training_waits_says_for_what(waiting: None, state: str, words: str):
    set_tasks(None, run_id="run 1")
    add_task("run 1", "upload.approve", state)
    assert (stage_of().state, stage_of().words) == ("waiting", f"upload.approve {words}")


def test_a_queued_run_says_why_airflow_has_not_started_it(waiting: None):
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    from tests.plugins.airflow_runs import add_dag, add_run

    add_run("ours", "run 2", None, state="queued")
    assert stage_of("run 2").words == "Airflow has not started the run yet"
    add_dag("ours", "us")
    with create_session() as session:
        session.execute(update(DagModel).values(max_active_runs=1, is_paused=False))
    assert stage_of("run 2").words == "at most 1 run of ours at the same time: 1 waits for its start"
    with create_session() as session:
        session.execute(update(DagModel).values(is_paused=True))
    words = {row["words"] for row in listed().values()}  # run 1 waits for the pool
    assert words == {"the DAG ours is paused: turn it on, and the run goes on"}


def test_a_run_without_a_training_has_the_names_of_its_settings(waiting: None):
    from airflow.utils.session import create_session

    from dags.xcom_keys import SETTINGS
    from tests.plugins.airflow_runs import store

    task = {"dag_id": "ours", "run_id": "run 1", "task_id": "train"}
    with create_session() as session:
        store(session, task, SETTINGS, {"dataset_name": "flowers", "model": "small_cnn"})
    row = listed()["run 1"]
    assert (row["dataset"], row["model"]) == ("flowers", "small_cnn")


def test_a_run_that_succeeds_without_a_training_is_not_listed(waiting: None):
    """A run of `retrain` may find nothing new. A comparison of inputs uses the pool, and trains no model to keep."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 2", None, state="success")
    add_run("ours", "run 3", None, state="running")
    with create_session() as session:
        session.execute(update(TaskInstance).filter_by(run_id="run 3").values(task_id="measure"))
    assert [*listed()] == ["run 1"]
