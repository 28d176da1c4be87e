"""Runs whose training has not started: what they wait for or do, on the tab and in the list."""

import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.monitor.row import Row
from pipeline.runs.files import RUN_FORMAT
from tests.report.rich import Records

# Airflow imports Starlette's test client, which warns that it prefers another HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")

UNKNOWN = (
    "when it starts is unknown: no earlier run of the DAG has ended, so nothing says how long the run before it takes"
)


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


def add_task(run_id: str, task_id: str, state: str | None, map_index: int = -1, pool: str = "default_pool") -> None:
    """Add a task, which needs no GPU by default."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import insert

    task = {"dag_id": "ours", "run_id": run_id, "task_id": task_id, "map_index": map_index, "pool": pool}
    with create_session() as session:
        session.execute(insert(TaskInstance).values(**task))
    set_tasks(state, run_id=run_id, task_id=task_id, map_index=map_index)


def listed() -> dict[str, Any]:
    """Return the rows of the list by run id."""
    from pipeline.watch.queue_wait import TimesLeft
    from pipeline.watch.summary import Summaries
    from plugins.training_monitor.listing import ListQuery, Sources, list_trainings
    from plugins.training_monitor.runs import EndedRuns, Trainings

    query = ListQuery(100, 0, "", "started", ascending=False, zone=UTC)
    sources = Sources(Summaries(), Summaries(), EndedRuns(), TimesLeft())
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


def store_training(run_id: str, training: Path) -> None:
    """Store the place of the training of a run, as its task does."""
    from airflow.utils.session import create_session

    from dags.xcom_keys import TRAINING_PLACE
    from tests.plugins.airflow_runs import store

    with create_session() as session:
        store(session, {"dag_id": "ours", "run_id": run_id, "task_id": "train"}, TRAINING_PLACE, str(training))


def training_with_steps(
    folder: Path, step_ms: float, steps: int = 10, age_s: float = 0.0, validation_s: float | None = None
) -> Path:
    """Replace a training by one of 100 steps that has taken `steps` of them, in `step_ms` each."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    about = {"format": RUN_FORMAT, "settings": {"epochs": 2, "dataset_name": "flowers"}, "steps_per_epoch": 50}
    (folder / "run.json").write_text(json.dumps(about))
    records, begin = Records(folder), time.time() - age_s
    for step in range(1, steps + 1):
        at = begin + step * step_ms / 1000
        times = {"step/time_ms": step_ms, "step/compute_ms": step_ms, "input/wait_ms": 0.0, "input/examples": 8}
        records.write(Row("samples", at, step, {"sys/cpu_pct": 50.0}))
        records.write(Row("batches", at, step, {**times, "epoch": 1, "first": float(step == 1)}))
    if validation_s is not None:
        records.write(Row("epochs", at, 1, {"epoch/validation_s": validation_s}))
    records.close()
    return folder


def status_of(training: Path) -> dict[str, Any]:
    """Return what the tab shows of a training under way."""
    from pipeline.watch.page_data import page_data

    status: dict[str, Any] = page_data(training, is_over=False)["status"]
    return status


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
        words = f"train is number {number - 1} of 2 in the queue of the pool 'gpu', which has 1 slot; {UNKNOWN}"
        assert rows[f"run {number}"]["words"] == stage_of(f"run {number}").words == words
        assert rows[f"run {number}"]["cells"]["progress"] == "1 of 2 tasks"
    assert rows["run 1"]["words"] == "train has started, and prepares the training"
    set_tasks("queued", run_id="run 2", task_id="train")
    assert stage_of("run 2").words == "train has a slot of the pool 'gpu', and waits for a worker"


def add_ended(run_id: str, minutes: float, dataset_name: str = "", days: int = 1, servers: int = 1) -> None:
    """Add a run whose training ended some days ago, and took so many minutes."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    from tests.plugins.airflow_runs import add_run

    add_run("ours", run_id, None)
    end = datetime.now(UTC) - timedelta(days=days)
    times = {"state": "success", "start_date": end - timedelta(minutes=minutes), "end_date": end}
    for server in range(1, servers):
        add_task(run_id, "train", "success", map_index=server, pool="gpu")
    with create_session() as session:
        session.execute(update(TaskInstance).filter_by(run_id=run_id).values(**times))
    set_dataset(run_id, dataset_name)


def set_dataset(run_id: str, dataset_name: str) -> None:
    """Store the settings of a run, as its first task does."""
    from airflow.utils.session import create_session

    from dags.xcom_keys import SETTINGS
    from tests.plugins.airflow_runs import store

    with create_session() as session:
        store(
            session, {"dag_id": "ours", "run_id": run_id, "task_id": "train"}, SETTINGS, {"dataset_name": dataset_name}
        )


def add_waiting(run_id: str, dataset_name: str = "", servers: int = 1) -> None:
    """Add a run whose training waits for slots of the pool. Each of several servers is a mapped task."""
    from tests.plugins.airflow_runs import add_run

    add_run("ours", run_id, None, state="running")
    set_tasks("scheduled", run_id=run_id)
    set_dataset(run_id, dataset_name)
    for server in range(1, servers):
        add_task(run_id, "train", "scheduled", map_index=server, pool="gpu")


def wait_of(run_id: str) -> str:
    """Return when a run starts, in the words of its page."""
    return stage_of(run_id).words.rpartition("; ")[2]


def test_a_wait_is_what_the_running_training_has_left_and_what_the_last_ones_took(waiting: None, tmp_path: Path):
    """The running one has 90 steps of 80 ms left on its tab. Those of its dataset took 20 minutes, others one hour."""
    set_slots(1)
    training = training_with_steps(tmp_path / "training", step_ms=80.0)
    store_training("run 1", training)
    set_tasks("running", run_id="run 1")
    for number, minutes in enumerate((20, 18, 21, 300, 20)):
        add_ended(f"ended {number}", minutes, "flowers")
        add_ended(f"other {number}", 60, "birds")
    add_waiting("run 2", "flowers")
    add_waiting("run 3", "birds")
    add_waiting("run 4")
    assert wait_of("run 2") == "it starts in less than a minute, when the training that runs now ends"
    as_earlier = "as long as earlier trainings of"
    assert wait_of("run 3") == f"it starts in about 20 min, if the run before it takes {as_earlier} its dataset"
    assert wait_of("run 4") == f"it starts in about 80 min, if the 2 runs before it take {as_earlier} their datasets"
    training_with_steps(training, step_ms=80_000.0)
    left = dict(status_of(training)["tiles"])["remaining, about"]
    assert wait_of("run 2") == f"it starts in about {left}, when the training that runs now ends"
    assert left == "2 h 0 min"


def test_the_wait_for_a_training_that_is_being_evaluated_is_unknown(waiting: None, tmp_path: Path):
    """Its evaluation and export come after its last step, and take any time."""
    set_slots(1)
    store_training("run 1", training_with_steps(tmp_path / "training", step_ms=80.0, steps=100))
    set_tasks("running", run_id="run 1")
    add_waiting("run 2")
    assert wait_of("run 2") == "when it starts is unknown: the training that runs now is being evaluated"


@pytest.mark.parametrize(
    "wrong",
    [{"step_ms": 80.0, "validation_s": float("nan")}, {"step_ms": 80.0, "age_s": 7200.0}],
    ids=["nan", "silent"],
)
def test_a_record_that_says_nothing_about_the_time_left_counts_as_none(
    waiting: None, tmp_path: Path, wrong: dict[str, float]
):
    """The last sample of a silent training is too old."""
    set_slots(1)
    store_training("run 1", training_with_steps(tmp_path / "training", **wrong))
    set_tasks("running", run_id="run 1")
    add_ended("ended", 12)
    add_waiting("run 2")
    assert wait_of("run 2").startswith("it starts in about 10 min, if the run before it takes")


def test_the_time_left_of_a_training_is_read_once_for_many_pages(tmp_path: Path):
    from pipeline.watch.queue_wait import TimesLeft

    times = TimesLeft()
    training = training_with_steps(tmp_path / "training", step_ms=1000.0)
    found = times.find(training)
    assert found is not None
    assert found.seconds == pytest.approx(90)
    shutil.rmtree(training)
    assert times.find(training) is found
    assert TimesLeft().find(training) is None


def test_the_servers_of_a_run_count_as_one_of_the_last_runs(waiting: None):
    """Run 1 has run for two minutes. The last run of its dataset took 12, before one with many servers."""
    set_slots(1)
    set_dataset("run 1", "flowers")
    set_tasks("running", run_id="run 1")
    add_ended("ended", 12, "flowers")
    add_ended("many servers", 90, "birds", servers=60)
    add_waiting("run 2")
    assert wait_of("run 2").startswith("it starts in about 10 min")


def test_a_run_without_steps_is_expected_to_take_as_long_as_the_last_ones(waiting: None):
    """It has run for two minutes. Of a DAG without an ended run, and of a run that takes longer, nothing is known."""
    set_slots(1)
    set_tasks("running", run_id="run 1")
    add_waiting("run 2")
    assert wait_of("run 2") == UNKNOWN
    add_ended("ended", 12)
    assert (
        wait_of("run 2")
        == "it starts in about 10 min, if the run before it takes as long as earlier trainings of its DAG"
    )
    for number in range(3):
        add_ended(f"short {number}", 1, servers=1)
    assert (
        wait_of("run 2") == "when it starts is unknown: a run before it takes longer than earlier trainings of its DAG"
    )


def test_each_slot_of_the_pool_takes_a_run_of_the_queue(waiting: None):
    """Run 1 and earlier ones take ten minutes. Run 4 needs both slots, so it waits for run 3, too."""
    from tests.plugins.airflow_runs import add_run

    set_slots(2)
    add_run("ours", "run 2", None, state="running")
    for run_id in ("run 1", "run 2"):
        set_tasks("running", run_id=run_id)
    add_ended("ended", 10)
    add_waiting("run 3")
    add_waiting("run 4", servers=2)
    add_waiting("run 5")
    like = "as long as earlier trainings of their DAGs"
    assert wait_of("run 3") == f"it starts in about 8 min, if the 2 runs before it take {like}"
    assert wait_of("run 4").startswith("it starts in about 18 min, if the 3 runs")
    assert wait_of("run 5").startswith("it starts in about 28 min, if the 4 runs")


def test_a_run_does_not_wait_for_a_slot_that_one_of_its_servers_has(waiting: None, tmp_path: Path):
    """Run 2 has two hours left. A server of run 1 has a slot, and its other one waits for that of run 2."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    from tests.plugins.airflow_runs import add_run

    set_slots(2)
    set_tasks("running", run_id="run 1")
    add_task("run 1", "train", "scheduled", map_index=1, pool="gpu")
    add_run("ours", "run 2", None, state="running")
    set_tasks("running", run_id="run 2")
    store_training("run 2", training_with_steps(tmp_path / "training", step_ms=80_000.0))
    add_waiting("run 3")
    add_waiting("run 4", servers=2)
    add_waiting("run 5")
    with create_session() as session:  # Run 1 is ahead of the others in the queue.
        session.execute(update(TaskInstance).values(priority_weight=1))
        session.execute(update(TaskInstance).filter_by(run_id="run 1").values(priority_weight=2))
    add_ended("ended", 10)
    assert wait_of("run 1") == "it starts in about 2 h 0 min, when the training that runs now ends"
    assert wait_of("run 3").startswith("it starts in about 2 h 10 min, if the run before it takes")
    # Run 1 gives back both of its slots.
    assert wait_of("run 4").startswith("it starts in about 2 h 20 min")
    assert wait_of("run 5").startswith("it starts in about 2 h 30 min")


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


def test_the_next_run_of_a_dag_starts_when_the_first_one_of_it_ends(waiting: None):
    """The first one has run for 2 of 10 minutes."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    from tests.plugins.airflow_runs import add_dag, add_run

    add_dag("ours", "us")
    with create_session() as session:
        session.execute(update(DagModel).values(max_active_runs=2))
    set_slots(1)
    set_tasks("running", run_id="run 1")
    add_waiting("run 2")
    add_run("ours", "run 3", None, state="queued")
    limit = "at most 2 runs of ours at the same time: "
    assert stage_of("run 3").words == f"{limit}1 waits for its start; {UNKNOWN}"
    add_ended("ended", 10)
    start = "it starts in about 8 min, if the run before it takes as long as earlier trainings of its DAG"
    assert stage_of("run 3").words == f"{limit}1 waits for its start; {start}"
    add_run("ours", "run 4", None, state="queued")
    assert (
        stage_of("run 3").words == f"{limit}2 wait for their start; {start.replace('it starts', 'the next one starts')}"
    )
    set_tasks("success", run_id="run 1")  # Its next tasks may end it before the training of run 2 ends.
    assert stage_of("run 3").words == f"{limit}2 wait for their start"
    set_tasks("running", run_id="run 1")
    set_slots(-1)
    assert stage_of("run 3").words == f"{limit}2 wait for their start"


def test_the_runs_of_a_backfill_have_a_limit_of_their_own(waiting: None):
    """As in Airflow's scheduler. Run 1 is no run of the backfill, and has run for 2 of 10 minutes."""
    from airflow.models.backfill import Backfill
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete, update

    from tests.plugins.airflow_runs import add_dag, add_run

    add_dag("ours", "us")
    set_slots(2)
    set_tasks("running", run_id="run 1")
    add_ended("ended", 10)
    for run_id in ("queued", "queued of the backfill"):
        add_run("ours", run_id, None, state="queued")
    with create_session() as session:
        session.execute(update(DagModel).values(max_active_runs=1))
        dates = {"from_date": datetime.now(UTC), "to_date": datetime.now(UTC)}
        backfill = Backfill(dag_id="ours", dag_run_conf={}, max_active_runs=2, **dates)
        session.add(backfill)
        session.flush()
        number = backfill.id
        session.execute(update(DagRun).filter_by(run_id="queued of the backfill").values(backfill_id=number))
    assert stage_of("queued").words.startswith(
        "at most 1 run of ours at the same time: 1 waits for its start; it starts"
    )
    assert stage_of("queued of the backfill").words == "Airflow has not started the run yet"
    for run_id in ("running 1 of 2", "running 2 of 2"):
        add_run("ours", run_id, None, state="running")
    with create_session() as session:
        session.execute(update(DagRun).where(DagRun.run_id.endswith("of 2")).values(backfill_id=number))
    limit = "at most 2 runs of this backfill of ours at the same time: 1 waits for its start"
    assert stage_of("queued of the backfill").words == limit
    set_tasks("scheduled", run_id="running 1 of 2")
    set_tasks("success", run_id="run 1")
    assert stage_of("queued").words == "at most 1 run of ours at the same time: 1 waits for its start"
    with create_session() as session:
        session.execute(update(DagRun).values(backfill_id=None))
        session.execute(delete(Backfill))


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
