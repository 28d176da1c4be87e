"""DAGs under a real scheduler: approvals, notifications and cleared tasks."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from dags.small import BETWEEN
from pipeline.dataset.manifest import COMMIT
from scripts.airflow.client import Client, Json, Login
from scripts.airflow.embedded import Embedded
from scripts.airflow.patience import PATIENT
from scripts.airflow.results import error_text
from tests.conftest import MakeImages, jpeg
from tests.dags.embedded import client_of, embedded_airflow, ended, wait
from tests.waiting import until
from tests.writes import writes

pytestmark = pytest.mark.long
TASK = "upload.approve"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    folder = tmp_path_factory.mktemp("airflow")
    settings = {
        "TENFOLD_NOTIFIERS": "tests.dags.notifier.ToFile",
        "TENFOLD_TEST_NOTES": str(folder / "notes"),
        "TENFOLD_DEADLINE_HOURS": "0.001",
        "TENFOLD_RANGE_IMAGES": "300",
    }
    with embedded_airflow(folder, settings) as embedded:
        yield embedded


@pytest.fixture
def client(airflow: Embedded) -> Iterator[Client]:
    with closing(client_of(airflow)) as client:
        yield client


@pytest.fixture
def notes(airflow: Embedded) -> Path:
    """The file that the notifier of the administrator writes."""
    return airflow.layout.home.parent / "notes"


@pytest.fixture
def leaking(make_images: MakeImages, tmp_path: Path) -> Json:
    """Settings of a run with a validation image that is also in training."""
    source = make_images({"train/a": 6, "train/b": 6, "val/a": 2, "val/b": 1})
    shutil.copy(source / "train/a/000.jpg", source / "val/b/copied.jpg")
    return {"source_uri": str(source), "workspace": str(tmp_path / "workspace"), "on_leak": "ask"}


def _http(airflow: Embedded) -> httpx.Client:
    login = Login(airflow.url, airflow.password)
    # Longer than a writer waits for SQLite, so that a failure shows the error of the server.
    return httpx.Client(base_url=airflow.url, auth=login, timeout=180, trust_env=False)


def _ask(airflow: Embedded, method: str, run_id: str, body: Json | None = None) -> Json:
    """Send the request of the page *Required Actions* of Airflow, and return the answer."""
    path = f"/api/v2/dags/image_dataset/dagRuns/{run_id}/taskInstances/{TASK}/-1/hitlDetails"

    def ask() -> Json:
        with _http(airflow) as http:
            answer = http.request(method, path, json=body)
        # A repeated answer to the question finds that the first one has arrived.
        if answer.status_code != httpx.codes.CONFLICT:
            answer.raise_for_status()
        asked: Json = answer.json()
        return asked

    return PATIENT.until_answered(ask)


def _task(client: Client, run_id: str) -> Json:
    return next(each for each in client.task_instances(run_id) if each["task_id"] == TASK)


def _wait_for_question(airflow: Embedded, client: Client, run_id: str) -> None:
    """Wait until a program can answer the question.

    If the answer comes before the scheduler knows that the task has left its worker, Airflow treats it as a failure and
    asks again.
    """

    def is_waiting() -> bool:
        key = f"TaskInstanceKey(dag_id='image_dataset', task_id='{TASK}', run_id='{run_id}'"
        lines = airflow.log("scheduler").read_text(errors="replace").splitlines()
        # Airflow 3.4 writes the id of the task instance between the two.
        task_has_ended = any("state success for task instance" in line and key in line for line in lines)
        return task_has_ended and bool(_task(client, run_id)["state"] == "awaiting_input")

    wait(is_waiting)


def _clear(airflow: Embedded, run_id: str, task_id: str) -> None:
    """Clear a task and all following tasks, as a person does in the UI."""
    body = {
        "dag_run_id": run_id,
        "task_ids": [task_id],
        "include_downstream": True,
        "only_failed": False,
        "dry_run": False,
    }

    def clear() -> bool:
        with _http(airflow) as http:
            cleared = http.post("/api/v2/dags/image_dataset/clearTaskInstances", json=body).raise_for_status().json()
        return bool(cleared["total_entries"] > 0)

    wait(clear)


def _committed(conf: Json) -> list[Path]:
    return list(Path(conf["workspace"]).glob(f"datasets/*/*/{COMMIT}"))


def test_a_run_waits_for_an_approval_and_continues(airflow: Embedded, client: Client, leaking: Json, notes: Path):
    run_id = client.trigger(leaking)
    _wait_for_question(airflow, client, run_id)
    question = _ask(airflow, "GET", run_id)
    assert "1 of 4 (25%) validation and test images are in training too" in question["body"]
    assert "max_leaked_fraction=0.01" in question["body"]
    assert question["options"] == ["Approve", "Reject"]
    assert _committed(leaking) == []
    assert question["subject"] == "Publish this dataset of 'source'?"
    assert leaking["source_uri"] in question["body"]
    assert f"notify {run_id}\n" in notes.read_text()  # notification about the question
    until(lambda: f"async_notify {run_id}\n" in notes.read_text())  # notification that the run is late

    _ask(airflow, "PATCH", run_id, {"chosen_options": ["Approve"], "params_input": {}})
    assert ended(client, run_id) == "success"
    assert len(_committed(leaking)) == 1

    again = client.trigger(leaking)  # for the same images, one answer is enough
    assert ended(client, again) == "success"


@pytest.mark.parametrize(
    ("answer", "hours", "message"),
    [("Reject", 24.0, "a person answered 'Reject'"), (None, 0.001, "nobody answered within ask_hours=0.001")],
)
def test_nothing_is_published_without_an_approval(
    airflow: Embedded, client: Client, leaking: Json, notes: Path, answer: str | None, hours: float, message: str
):
    run_id = client.trigger({**leaking, "ask_hours": hours})
    if answer:
        _wait_for_question(airflow, client, run_id)
        _ask(airflow, "PATCH", run_id, {"chosen_options": [answer], "params_input": {}})
    assert ended(client, run_id) == "failed"
    error: Any = error_text(client.log(run_id, _task(client, run_id)))
    assert message in error
    assert "1 of 4 (25%) validation and test images are in training too" in error
    assert _task(client, run_id)["try_number"] == 1  # a retry would only ask again
    assert _committed(leaking) == []
    until(lambda: notes.read_text().splitlines().count(f"notify {run_id}") == 2)  # about the question and the failure


@pytest.mark.parametrize("shards_per_task", [4, None], ids=["a task for each range", "one task for a small dataset"])
def test_any_task_can_be_cleared(
    airflow: Embedded, client: Client, make_images: MakeImages, tmp_path: Path, shards_per_task: int | None
):
    source = make_images({"cats": 12, "dogs": 12})
    conf = {"source_uri": str(source), "workspace": str(tmp_path / "workspace"), "shards_per_task": shards_per_task}
    run_id = client.trigger(conf)
    assert ended(client, run_id) == "success"
    folder = Path(conf["workspace"]) / "datasets"
    published = writes(folder.rglob("*"))
    assert len(published) > 13

    for task_id in ("upload.commit", "upload.copy", "upload.approve", "shard.write", "shard.plan", "extract"):
        _clear(airflow, run_id, task_id)
        assert ended(client, run_id) == "success", task_id
        assert writes(folder.rglob("*")) == published, task_id

    (source / "cats" / "one-more.jpg").write_bytes(jpeg(999))  # the cleared run finds an additional image
    _clear(airflow, run_id, "extract")
    assert ended(client, run_id) == "success"
    assert len(_committed(conf)) == 2


def test_a_cleared_run_can_find_its_source_small_or_large(
    airflow: Embedded, client: Client, make_images: MakeImages, tmp_path: Path
):
    """Airflow keeps the mapped tasks of the first try, which a small dataset leaves out."""
    source = make_images({"cats": 520, "dogs": 520})
    conf = {"source_uri": str(source), "workspace": str(tmp_path / "workspace")}
    run_id = client.trigger(conf)
    assert ended(client, run_id) == "success"
    states = _states(client, run_id)
    assert len(states["extract_range"]) > 1
    assert all(set(states[task_id]) == {"success"} for task_id in BETWEEN), states

    (kept := tmp_path / "kept").mkdir()
    for image in sorted(source.glob("*/*.jpg")):
        if int(image.stem) >= 12:
            image.rename(kept / f"{image.parent.name}-{image.name}")
    _clear(airflow, run_id, "extract")
    assert ended(client, run_id) == "success"
    states = _states(client, run_id)
    assert all(set(states[task_id]) <= {"skipped", "removed"} for task_id in BETWEEN), states
    assert sum(client.xcom(run_id, "upload.commit")["examples"].values()) == 24

    for image in kept.iterdir():
        image.rename(source / image.name.replace("-", "/"))
    _clear(airflow, run_id, "extract")
    assert ended(client, run_id) == "success"
    states = _states(client, run_id)
    assert all("success" in states[task_id] for task_id in ("extract_range", "shard.plan", "upload.approve")), states
    assert client.xcom(run_id, "upload.commit")["already_complete"]
    assert len(_committed(conf)) == 2


def _states(client: Client, run_id: str) -> dict[str, list[str]]:
    """Return the states of all instances of each task of a run."""
    states: dict[str, list[str]] = {}
    for each in client.task_instances(run_id):
        states.setdefault(each["task_id"], []).append(each["state"])
    return states
