"""A training under way in Airflow is continued on a new dataset, by the request of the button on its tab."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import BadInput, SettingsError
from pipeline.runs.changes import BUILD, load_changes, replace_changes
from pipeline.runs.continuation import continued_settings
from pipeline.runs.files import RESULT
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import checkpoint_name, load_result, load_run
from scripts.airflow.client import Client, Json
from scripts.airflow.embedded import Embedded
from tests.conftest import MakeImages
from tests.dags.embedded import client_of, embedded_airflow, ended, wait
from tests.published import publish
from tests.training.test_continuation import large_images

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings
DAG = "image_training"


def test_the_servers_wait_until_the_other_training_has_ended(
    make_images: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from dags import tasks

    monkeypatch.setattr(tasks, "get_current_context", lambda: {"dag_run": _Started()})
    source = make_images({"a": 12, "b": 12})
    places = {"workspace": str(tmp_path), "source_uri": str(source)}
    run = prepare_run(settings_from({**places, "epochs": 5}), publish(source, tmp_path), "run")
    settings = continued_settings(run.folder, {"compression": "gzip"})
    dataset = publish(source, tmp_path, compression="gzip")

    def poked() -> Any:
        answer = tasks.servers.function(settings.model_dump(), str(dataset))
        return answer.is_done, answer.xcom_value

    assert poked() == poked() == (False, None)
    [request] = load_changes(run.folder)
    assert str(request) == "from the next epoch on: compression=gzip on a new dataset, requested by ada"
    replace_changes(run.folder, {request: request.__class__(**{**request.__dict__, "epoch": 2})})
    checkpoint = run.folder / "checkpoints" / checkpoint_name(1, run.steps_per_epoch)
    checkpoint.parent.mkdir()
    checkpoint.touch()
    assert poked() == (False, None)
    (run.folder / RESULT).write_text('{"run": "x"}')
    assert poked() == (True, [0])
    (run.folder / "changes.jsonl").unlink()
    with pytest.raises(BadInput, match="is complete, so nothing can change in it"):
        poked()
    # With a checkpoint of its own, it does not need the other training any more.
    own = prepare_run(settings, dataset, "later").folder / "checkpoints" / "checkpoint-000002-0000000004.npz"
    own.parent.mkdir()
    own.touch()
    assert poked() == (True, [0])


def test_a_run_announces_its_dataset_before_it_is_built(
    make_images: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The build may slow down the other training, which has promised something before."""
    from dags import defaults, tasks

    source = make_images({"a": 12, "b": 12})
    values = {"workspace": str(tmp_path), "source_uri": str(source)}
    run = prepare_run(settings_from(values), publish(source, tmp_path), "run")
    settings = continued_settings(run.folder, {"compression": "gzip"})

    def divide(_: Settings) -> None:
        assert [(change.field, change.by) for change in load_changes(run.folder)] == [(BUILD, "ada")]
        raise BadInput("no build")

    started = SimpleNamespace(
        run_type="manual", logical_date=None, run_after=datetime.now(UTC), run_id="later", triggering_user_name="ada"
    )
    pushed: dict[str, Any] = {}
    instance = SimpleNamespace(
        xcom_push=lambda key, value: pushed.update({key: value}), xcom_pull=lambda task_ids, key: pushed.get(key)
    )
    context = {"dag_run": started, "dag": SimpleNamespace(timetable=None), "ti": instance}
    monkeypatch.setattr(tasks, "get_current_context", lambda: context)
    monkeypatch.setattr(tasks, "settings_of_run", lambda _: settings)
    monkeypatch.setattr(tasks, "require_zone", lambda *_: None)
    monkeypatch.setattr("pipeline.stages.extract.divide", divide)
    with pytest.raises(BadInput, match="no build"):
        tasks.extract.function(for_training=True)
    assert not load_changes(run.folder)[0].refused  # Airflow may try the task again.

    callbacks = defaults.dag_defaults("image_training", (), 1.0)["default_args"]["on_failure_callback"]
    for failed in ({"ti": instance}, {"ti": instance, "exception": BadInput("no build")}):
        is_in_task = "exception" in failed
        for callback in callbacks:
            callback(failed)
        [build] = load_changes(run.folder)
        assert bool(build.refused) == is_in_task
    assert build.refused == "the build of its dataset has failed"
    pushed.clear()
    defaults.withdraw_announcement({"ti": instance, "exception": BadInput("no announcement")})


@pytest.mark.parametrize("run_type", ["scheduled", "backfill", "asset_triggered"])
def test_a_run_that_repeats_continues_no_training(run_type: str):
    from dags.tasks import _require_continued_once

    _require_continued_once(settings_from({}), run_type)
    _require_continued_once(settings_from({"continues": "/w/runs/r/t"}), "manual")
    with pytest.raises(SettingsError, match=f"continues must be empty in a run of the type {run_type}"):
        _require_continued_once(settings_from({"continues": "/w/runs/r/t"}), run_type)


class _Started:
    run_type, run_id, triggering_user_name = "manual", "later", "ada"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with embedded_airflow(tmp_path_factory.mktemp("airflow"), {}) as embedded:
        yield embedded


@pytest.fixture
def client(airflow: Embedded) -> Iterator[Client]:
    with closing(client_of(airflow)) as client:
        training = client.of(DAG)
        training.unpause()
        yield training


def _asked(airflow: Embedded, run_id: str, values: dict[str, str]) -> Json:
    """Send the request of the button, as the page does with the session of a person, and return the answer."""
    body = {"username": "admin", "password": airflow.password}
    query = {"dag_id": DAG, "run_id": run_id}
    with httpx.Client(base_url=airflow.url, timeout=180, trust_env=False) as http:
        http.cookies.set("_token", http.post("/auth/token", json=body).raise_for_status().json()["access_token"])
        data = http.get("/tenfold/data", params=query).raise_for_status().json()
        token = {"X-Tenfold-Token": data["status"]["changes"]["token"]}
        sent = http.post("/tenfold/continuation", params=query, json={"values": values}, headers=token)
        answer: Json = sent.raise_for_status().json()
    return answer


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_with_advice_apply_the_task_starts_the_run_that_continues(airflow: Embedded, client: Client, tmp_path: Path):
    conf = {"source_uri": str(large_images(tmp_path / "source")), "workspace": str(tmp_path / "workspace")}
    conf |= {"image_size": 32, "batch_size": 8, "epochs": 600, "simulated_step_ms": 1.0, "crop": "random_resized"}
    run_id = client.trigger({**conf, "advice": "apply"})
    assert ended(client, run_id) == "success"
    [later_id] = [each["dag_run_id"] for each in client.runs({}) if each["dag_run_id"].startswith(f"{run_id}__")]
    assert ended(client, later_id) == "success"
    earlier, later = (load_run(Path(client.xcom(each, "train", "training_place", 0))) for each in (run_id, later_id))
    [end], [begin] = load_changes(earlier.folder), load_changes(later.folder)
    assert later.settings.continues == str(earlier.folder)
    assert end.epoch == begin.epoch > 1
    assert end.by == later_id
    assert begin.promised[1] > 1
    assert begin.measured > 1


def test_a_run_that_airflow_refuses_costs_a_warning(
    make_images: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The supervisor of a task is replaced, because it refuses a run only if Airflow has been changed meanwhile."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, OKResponse

    from dags.continuation import start_from_task

    source = make_images({"a": 12, "b": 12})
    values = {"workspace": str(tmp_path), "source_uri": str(source)}
    run = prepare_run(settings_from(values), publish(source, tmp_path), "run")
    sent: list[Any] = []

    def send(request: Any) -> Any:
        sent.append(request)
        if len(sent) > 1:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.PERMISSION_DENIED))
        return OKResponse(ok=True)

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)
    for _ in range(2):
        start_from_task(DAG, "manual__1", run, {"prepare": "resize", "prepare_size": 36})
    assert "the run that continues this training on a new dataset cannot be started" in caplog.text
    first, second = sent
    assert first.run_id == second.run_id
    assert first.run_id.startswith("manual__1__")
    assert (first.conf["prepare"], first.conf["continues"]) == ("resize", str(run.folder))


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_training_continues_on_a_new_dataset(
    airflow: Embedded, client: Client, make_images: MakeImages, tmp_path: Path
):
    source = make_images({"a": 60, "b": 60})
    workspace = tmp_path / "workspace"
    conf = {"source_uri": str(source), "workspace": str(workspace), "image_size": 32, "batch_size": 8}
    run_id = client.trigger({**conf, "epochs": 100, "simulated_step_ms": 100.0})
    wait(lambda: [*workspace.glob("runs/*/*/checkpoints/checkpoint-000001-*")])
    answer = _asked(airflow, run_id, {"prepare": "resize", "prepare_size": "36"})
    assert answer["dag_id"] == DAG
    later_id = client.trigger(answer["run"]["conf"], answer["run"]["dag_run_id"])
    assert ended(client, run_id) == "success"
    assert ended(client, later_id) == "success"

    earlier, later = (load_run(Path(client.xcom(each, "train", "training_place", 0))) for each in (run_id, later_id))
    [request], [change] = load_changes(earlier.folder), load_changes(later.folder)
    assert 0 < request.begun < request.at  # The run announced the dataset before it was built.
    assert 1 < change.epoch == request.epoch <= 100
    assert str(change) == f"from epoch {change.epoch} on: prepare=resize, prepare_size=36 on a new dataset, by admin"
    results = [load_result(each.folder) for each in (earlier, later)]
    assert [result and result["epochs"] for result in results] == [change.epoch - 1, 100]
    assert load(Path(later.dataset)).settings["prepare"] == "resize"
    assert later.settings.continues == str(earlier.folder)
