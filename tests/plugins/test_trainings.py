"""The list of trainings: the summary of each training in any state, and permissions."""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call
from urllib.parse import urlencode

import httpx
import pytest

from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.runs.decision import Decision
from pipeline.runs.files import RUN_FORMAT
from pipeline.storage import place_of, write_json
from pipeline.system.parallel import start_in_thread
from pipeline.watch.summary import (
    GONE,
    LATER,
    MIN_READ,
    READERS,
    UNANSWERED,
    Summaries,
    Summary,
    Training,
    _Budget,
    summary,
)
from standins.fake_gcs import FakeGcs, Fault
from tests.report.rich import rich_run
from tests.tuning.compared import compared
from tests.waiting import until

# Airflow imports Starlette's test client, which warns that it prefers another HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
RESULT = {
    "metrics": {"best_epoch": 6, "val_accuracy": 0.54},
    "baselines": {"val_accuracy": 0.25},
    "limit": "decoding",
    "wait_fraction": 0.2345,
}
MARKUP = "<script>document.title = 'broken'</script>"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete training with 360 steps, 60 per epoch."""
    folder = rich_run(tmp_path_factory.mktemp("trained") / "run")
    about = json.loads((folder / "run.json").read_text())
    about |= {"steps_per_epoch": 60, "settings": {"epochs": 8, "model": "small_cnn", "dataset_name": "shapes"}}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "result.json").write_text(json.dumps(RESULT))
    return folder


@pytest.fixture
def training(trained: Path, tmp_path: Path) -> Path:
    """A copy of that training that is still running."""
    folder = tmp_path / "training"
    shutil.copytree(trained, folder)
    (folder / "result.json").unlink()
    return folder


def now(folder: Path, step: int = 361, skew: float = 0.0) -> None:
    """Add a step to a training now. Its clock differs by `skew` seconds."""
    sink = RecordSink(folder / "record")
    sink.write(Row("samples", time.time() + skew, step, {"sys/cpu_pct": 50.0}))
    times = {"step/time_ms": 80.0, "input/wait_ms": 8.0, "input/examples": 8}
    sink.write(Row("batches", time.time() + skew, step, times))
    sink.close()


def test_a_complete_training_is_summarized_from_its_result(trained: Path) -> None:
    assert summary(Training(trained, is_over=True)) == Summary(
        "trained",
        "",
        "shapes",
        "small_cnn",
        progress=1.0,
        accuracy=0.54,
        wait=0.2345,
        limit="decoding",
        validation="54.0% (baseline 25.0%)",
    )


def test_a_complete_training_is_read_again_only_if_its_result_changes(training: Path) -> None:
    (training / "result.json").write_text(json.dumps(RESULT))
    before = summary(Training(training, is_over=True))
    shutil.rmtree(training / "record")
    (training / "run.json").unlink()
    assert summary(Training(training, is_over=True)) == before
    (training / "run.json").write_text(json.dumps({"format": RUN_FORMAT, "settings": {"model": "another"}}))
    os.utime(training / "result.json", (2e9, 2e9))
    assert summary(Training(training, is_over=True)).model == "another"
    (training / "run.json").unlink()
    (training / "result.json").unlink()
    assert summary(Training(training, is_over=True)) == GONE


def test_a_promotion_changes_the_summary_of_a_complete_training(training: Path) -> None:
    """It is decided after the result is written, and a person may decide differently later."""
    (training / "result.json").write_text(json.dumps(RESULT))
    before = summary(Training(training, is_over=True))
    assert (before.promotion, before.why) == (None, "")
    for decision in (Decision("asked", "no better than the baseline"), Decision("promoted", "by hand")):
        write_json(training / "promotion.json", decision.to_json())
        found = summary(Training(training, is_over=True))
        assert found == replace(before, promotion=decision.outcome, why=decision.reason)
    from plugins.training_monitor.rows import Row
    from plugins.training_monitor.runs import AirflowRun
    from plugins.training_monitor.search import parse

    row = Row(AirflowRun(1, "d", "r", "success", start=None, training=training, dataset=None, failure=None), found, UTC)
    shown = row.to_json()
    assert (shown["promotion"], shown["badge"], shown["why"]) == ("promoted", "Promoted", "by hand")
    assert shown["cells"]["promotion"] == "Promoted: by hand"
    assert parse("promoted hand promotion:promoted", ()).finds(row)


def test_a_stopped_training_is_read_again_only_if_it_changes(training: Path) -> None:
    """A search reads thousands of trainings, so unchanged ones must not be read again."""
    before = summary(Training(training, is_over=True))
    assert (before.state, before.progress) == ("stopped", pytest.approx(360 / 480))
    for file in (training / "record").iterdir():
        file.unlink()
    assert summary(Training(training, is_over=True)) == before
    assert summary(Training(training, is_over=False)) != before
    now(training, step=480)
    os.utime(training, (2e9, 2e9))
    assert summary(Training(training, is_over=True)).progress == 1


def test_a_running_training_is_summarized_from_its_last_rows(training: Path) -> None:
    assert summary(Training(training, is_over=False)).state == "silent"
    now(training)
    found = summary(Training(training, is_over=False))
    assert (found.state, found.accuracy, found.limit) == ("training", None, "")
    assert found.progress == pytest.approx(361 / 480)
    assert found.wait is not None
    assert 0.1 < found.wait < 0.35  # 20 of 84 ms, before the first verdict
    now(training, step=480)
    assert summary(Training(training, is_over=False)).state == "evaluating"
    assert summary(Training(training, is_over=True)).state == "stopped"


def test_a_running_training_shows_its_verdict_and_best_epoch(training: Path) -> None:
    (training / "verdict.json").write_text('{"limit": "compute", "wait_fraction": 0.012, "sentence": "-"}')
    bests = [{"epoch": epoch, "model": "m", "metrics": {"val_accuracy": 0.1 * epoch}} for epoch in (1, 5)]
    (training / "best.json").write_text(json.dumps(bests))
    found = summary(Training(training, is_over=False))
    assert (found.limit, found.wait, found.accuracy, found.validation) == ("compute", 0.012, 0.5, "50.0%")


@pytest.mark.parametrize(
    ("metrics", "accuracy", "text"),
    [
        ({"val_accuracy": 0.54, "test_accuracy": 0.5}, 0.5, "test 50.0%"),
        ({"val_mae": 1000.0, "test_mae": 1234.5}, None, "test MAE 1,234"),
    ],
)
def test_a_complete_training_shows_its_figure_on_the_test_split(
    training: Path, metrics: dict[str, float], accuracy: float | None, text: str
) -> None:
    (training / "result.json").write_text(json.dumps({**RESULT, "split": "test", "metrics": metrics}))
    found = summary(Training(training, is_over=True))
    assert (found.accuracy, found.validation) == (accuracy, text)


def test_a_regression_shows_its_error_and_is_sorted_after_accuracies(training: Path) -> None:
    (training / "best.json").write_text(json.dumps([{"epoch": 1, "model": "m", "metrics": {"val_mae": 1234.5}}]))
    found = summary(Training(training, is_over=False))
    assert (found.accuracy, found.error, found.validation) == (None, 1234.5, "MAE 1,234")
    # Airflow reads its configuration when it is imported.
    from plugins.training_monitor.listing import ListQuery, _sorted
    from plugins.training_monitor.rows import Row
    from plugins.training_monitor.runs import AirflowRun

    rows = []
    classified, better = replace(found, accuracy=0.5, validation="50.0%"), replace(found, error=900.0)
    for number, each in enumerate((found, classified, GONE, better)):
        run = AirflowRun(number, "d", f"r{number}", "running", start=None, training=None, dataset=None, failure=None)
        rows.append(Row(run, each, UTC))
    assert [row.cells()["accuracy"] for row in rows[:3]] == ["MAE 1,234", "50.0%", ""]
    for ascending, expected in ((False, [1, 3, 0, 2]), (True, [1, 0, 3, 2])):
        by_accuracy = ListQuery(10, 0, "", "accuracy", ascending=ascending, zone=UTC)
        assert [row.run.number for row in _sorted(rows, by_accuracy)] == expected


def test_a_training_on_a_simulated_accelerator_has_no_accuracy(training: Path) -> None:
    about = json.loads((training / "run.json").read_text())
    (training / "run.json").write_text(
        json.dumps({**about, "settings": {**about["settings"], "simulated_step_ms": 2.0}})
    )
    (training / "result.json").write_text(json.dumps({**RESULT, "metrics": {}}))
    found = summary(Training(training, is_over=True))
    assert (found.accuracy, found.validation, found.limit) == (None, "simulated", "decoding")


def test_a_training_without_steps_is_starting(training: Path) -> None:
    shutil.rmtree(training / "record")
    shutil.rmtree(training / "overview")
    found = summary(Training(training, is_over=False))
    assert (found.state, found.progress, found.wait) == ("starting", None, None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", "{", "it cannot be read: run.json is not valid JSON"),
        ("run.json", "[1]", "it cannot be read"),
        ("run.json", json.dumps({"format": RUN_FORMAT, "settings": 7}), "it cannot be read"),
        ("run.json", '{"settings": {}}', "it cannot be read"),
        ("best.json", '{"a": 1}', "it cannot be read"),
    ],
)
def test_a_training_with_damaged_files_is_listed_with_an_error(
    training: Path, name: str, content: str, message: str
) -> None:
    (training / name).write_text(content)
    found = summary(Training(training, is_over=False))
    assert found.state == "unknown"
    assert found.words.startswith(message)


@pytest.mark.parametrize("ended_as", ["trained", "stopped"])
def test_a_training_of_another_version_is_read_once(gcs: FakeGcs, ended_as: str) -> None:
    gcs.put("bucket", f"runs/{ended_as}/run.json", b'{"format": 0}')
    if ended_as == "trained":
        gcs.put("bucket", f"runs/{ended_as}/result.json", json.dumps(RESULT).encode())
    ended = Training(place_of(f"gs://bucket/runs/{ended_as}"), is_over=True)
    before = summary(ended)
    assert before.state == "unknown"
    assert before.words.endswith("was written by an older version of Tenfold: train again")
    requests = gcs.requests.total()
    assert summary(ended) == before
    # The checks for a result, and of a complete training for a promotion.
    assert gcs.requests.total() == requests + (2 if ended_as == "trained" else 1)


def test_invalid_values_are_left_out_of_a_summary(training: Path) -> None:
    settings = {"epochs": 8, "model": "\ud800" + 400 * "m", "dataset_name": MARKUP}
    about = {"format": RUN_FORMAT, "settings": settings, "steps_per_epoch": 60}
    (training / "run.json").write_text(json.dumps(about))
    (training / "result.json").write_text('{"metrics": {"val_accuracy": NaN}, "limit": 3, "wait_fraction": "much"}')
    found = summary(Training(training, is_over=True))
    assert found == Summary("trained", "", MARKUP, "?" + 299 * "m", 1.0, None, None, "3")


def test_only_json_files_are_read_from_a_bucket(trained: Path, gcs: FakeGcs) -> None:
    for name in ("run.json", "result.json"):
        gcs.put("bucket", f"runs/1/{name}", (trained / name).read_bytes())
    gcs.put("bucket", "runs/2/run.json", (trained / "run.json").read_bytes())
    places = [place_of(f"gs://bucket/runs/{run}") for run in (1, 2, 3)]
    complete, going_on, gone = Summaries().of([Training(place, is_over=False) for place in places], patience_s=60)
    assert complete == summary(Training(trained, is_over=True))
    assert (going_on.state, going_on.dataset, going_on.progress) == ("training", "shapes", None)
    assert gone == GONE


def test_a_silent_bucket_does_not_block_other_summaries(trained: Path, gcs: FakeGcs) -> None:
    gcs.put("bucket", "runs/1/run.json", (trained / "run.json").read_bytes())
    stall = Fault("stall", matches="runs/1", times=None)
    gcs.faults.add(stall)
    summaries = Summaries()
    listed = [Training(place_of("gs://bucket/runs/1"), False), Training(trained, True)]
    assert [each.state for each in summaries.of(listed, patience_s=0.2)] == ["unknown", "trained"]
    assert summaries.of(listed[:1], patience_s=0.2) == [UNANSWERED]
    stall.release()
    assert [each.state for each in summaries.of(listed, patience_s=20)] == ["training", "trained"]
    assert stall.fired == 1  # the pending request was not sent twice


def test_a_bucket_with_many_silent_trainings_does_not_block_another_bucket(trained: Path, gcs: FakeGcs) -> None:
    gcs.create_bucket("silent")
    for number in range(READERS + 1):
        gcs.put("silent", f"runs/{number}/run.json", (trained / "run.json").read_bytes())
    gcs.put("bucket", "of/another/run.json", (trained / "run.json").read_bytes())
    stall = Fault("stall", matches="runs/[0-9]", times=None)
    gcs.faults.add(stall)
    summaries = Summaries()
    places = [*(f"gs://silent/runs/{number}" for number in range(READERS + 1)), "gs://bucket/of/another"]
    listed = [Training(place_of(place), False) for place in places]
    assert summaries.of(listed, patience_s=0.2)[:-1] == [UNANSWERED] * (READERS + 1)
    assert [each.state for each in summaries.of(listed[-1:], patience_s=20)] == ["training"]
    assert stall.fired == READERS
    stall.release()
    assert [each.state for each in summaries.of(listed, patience_s=20)] == ["training"] * len(listed)


def test_a_search_of_a_bucket_is_bounded_and_continues(
    trained: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.watch.summary.MAX_GOING", 2)
    places = [place_of(f"gs://bucket/many/{number}") for number in range(5)]
    for number in range(5):
        gcs.put("bucket", f"many/{number}/run.json", (trained / "run.json").read_bytes())
    listed = [Training(place, is_over=True) for place in places]
    summaries = Summaries(kept_s=3600)
    stall = gcs.fail("stall", matches="many", times=None)
    try:
        assert summaries.of(listed, budget_s=0) == [LATER] * 5
        assert len(summaries._readings) == 2
        # The bucket takes longer than a page waits, so it would be no use to ask again at once.
        assert summaries.of(listed, patience_s=0, budget_s=0) == [UNANSWERED] * 5
    finally:
        stall.release()
    until(
        lambda: {each.state for each in summaries.of(listed, budget_s=0)},
        is_expected=lambda states: states == {"stopped"},
    )


def test_a_stopped_training_in_a_bucket_is_read_once(trained: Path, gcs: FakeGcs) -> None:
    gcs.put("bucket", "runs/ended/run.json", (trained / "run.json").read_bytes())
    ended = Training(place_of("gs://bucket/runs/ended"), is_over=True)
    assert summary(ended).state == "stopped"
    requests = gcs.requests.total()
    assert summary(ended).state == "stopped"
    assert gcs.requests.total() == requests + 1  # the check for a result
    gcs.put("bucket", "runs/ended/result.json", json.dumps(RESULT).encode())
    assert summary(ended).state == "trained"


@pytest.fixture
def runs(airflow_database: None, trained: Path) -> Iterator[None]:
    """Two DAGs of two teams. One has five runs, of which one has no training. The other has one run."""
    from tests.plugins.airflow_runs import add_dag, add_run, remove_all

    add_dag("ours", "us")
    add_dag("theirs", "them")
    add_run("ours", "run 1", str(trained))
    add_run("ours", "run 2", None)
    add_run("ours", MARKUP, str(trained.with_name("gone")))
    add_run("theirs", "run 1", str(trained))
    add_run("ours", "run 4", "gs://")
    add_run("ours", "run 5", str(trained), state="running")
    yield
    remove_all()


class Client:
    """An HTTP client of an application in this process."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def get(self, address: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return asyncio.run(self._send("GET", address, headers or {}, None))

    def post(self, address: str, headers: dict[str, str], content: bytes) -> httpx.Response:
        return asyncio.run(self._send("POST", address, {"Content-Type": "application/json", **headers}, content))

    async def _send(self, method: str, address: str, headers: dict[str, str], content: bytes | None) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://airflow") as client:
            return await client.request(method, address, headers=headers, content=content)


@pytest.fixture(autouse=True)
def _time_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each search read all trainings, on any machine."""
    monkeypatch.setattr("plugins.training_monitor.listing.BUDGET_S", 3600)


@pytest.fixture(scope="module")
def client() -> Client:
    """A client of the pages as Airflow mounts them, with the login of Airflow."""
    from airflow.api_fastapi.app import init_auth_manager

    from plugins.training_monitor.app import build

    init_auth_manager()
    return Client(build())


def logged_in(role: str | None, *teams: str) -> dict[str, str]:
    """Return the request headers of a logged-in user."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = SimpleAuthManagerUser(username="somebody", role=role, teams=list(teams))
    return {"Authorization": f"Bearer {get_auth_manager().generate_jwt(user)}"}


def with_cookie(role: str, *teams: str) -> dict[str, str]:
    """Return the request headers of a browser, which sends the session cookie."""
    return {"Cookie": f"_token={logged_in(role, *teams)['Authorization'].removeprefix('Bearer ')}"}


def listed(client: Client, who: dict[str, str], query: str = "") -> Any:
    answer = client.get(f"/trainings.json{query}", headers=who)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.long
def test_a_search_in_a_silent_bucket_does_not_block_the_list(
    client: Client, runs: None, trained: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.plugins.airflow_runs import add_run

    for number in range(READERS + 1):
        add_run("ours", f"silent {number}", f"gs://bucket/silent/{number}")
    gcs.put("bucket", "runs/1/run.json", (trained / "run.json").read_bytes())
    add_run("ours", "newest", "gs://bucket/runs/1")
    stall = gcs.fail("stall", matches="silent", times=None)
    who = logged_in("viewer", "us")
    try:
        assert listed(client, who, "?search=nothing")["unread"] > READERS
        # A busy machine may take longer to read it than the page waits.
        [row] = until(
            lambda: listed(client, who, "?limit=1")["rows"], is_expected=lambda rows: rows[0]["dataset"] == "shapes"
        )
        assert row["run_id"] == "newest"
    finally:
        stall.release()
        until(lambda: listed(client, who, "?search=nothing")["unread"] == 0)  # all threads have ended


def test_the_list_requires_a_login(client: Client, runs: None) -> None:
    assert client.get("/trainings").status_code == 401
    assert client.get("/trainings.json").status_code == 401
    forged = {"Authorization": "Bearer e30.e30.e30"}
    assert client.get("/trainings.json", headers=forged).status_code == 403


def test_the_list_requires_permission_to_read_runs(client: Client, runs: None) -> None:
    assert client.get("/trainings.json", headers=logged_in(None)).status_code == 403
    assert client.get("/trainings.json?dag_id=ours", headers=logged_in(None)).status_code == 403


def test_an_invalid_dag_id_gives_no_rows(client: Client, runs: None) -> None:
    assert client.get("/trainings.json?dag_id=%00", headers=logged_in(None)).status_code == 403
    assert listed(client, logged_in("viewer", "us"), "?dag_id=%00")["rows"] == []


@pytest.mark.parametrize("skew", [-600, 0, 600])
def test_a_training_with_a_skewed_clock_is_alive_in_the_list_and_on_the_tab(
    client: Client, runs: None, training: Path, skew: float
) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", str(training), state="running")
    now(training, skew=skew)
    who = logged_in("viewer", "us")
    for _ in range(2):
        status = client.get("/data?dag_id=ours&run_id=run+6", headers=who).json()["status"]
        assert (status["state"], status["name"]) == ("training", "Training")
        assert [row["state"] for row in listed(client, who)["rows"] if row["run_id"] == "run 6"] == ["training"]


def test_the_list_can_be_limited_to_one_dag(client: Client, runs: None) -> None:
    rows = listed(client, logged_in("viewer", "us", "them"), "?dag_id=theirs")["rows"]
    assert [(row["dag_id"], row["run_id"]) for row in rows] == [("theirs", "run 1")]


def test_a_linked_document_is_refused(client: Client, runs: None, trained: Path) -> None:
    (trained / "secret").write_text("only the api-server may read it")
    who = logged_in("viewer", "us")
    document = trained / "report.html"
    document.write_text("a report")
    assert client.get("/report?dag_id=ours&run_id=run+1", headers=who).text == "a report"
    document.unlink()
    document.symlink_to(trained / "secret")
    assert client.get("/report?dag_id=ours&run_id=run+1", headers=who).status_code == 404


def test_a_folder_or_a_huge_file_is_refused_as_a_document(
    client: Client, runs: None, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    document = trained / "report.html"
    document.unlink(missing_ok=True)
    document.mkdir()
    for _ in range(5):
        assert client.get("/report?dag_id=ours&run_id=run+1", headers=logged_in("viewer", "us")).status_code == 404
    assert len(list(Path("/proc/self/fd").iterdir())) < open_files + 5
    document.rmdir()
    document.write_text("x" * 100)
    monkeypatch.setattr("plugins.training_monitor.app.MAX_DOCUMENT_BYTES", 99)
    answer = client.get("/report?dag_id=ours&run_id=run+1", headers=logged_in("viewer", "us"))
    assert (answer.status_code, "more than the 0 MB" in answer.text) == (413, True)


def test_a_huge_document_in_a_bucket_is_not_fetched(
    client: Client, runs: None, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", "gs://bucket/runs/6")
    gcs.put("bucket", "runs/6/report.html", b"x" * 100)
    address, who = "/report?dag_id=ours&run_id=run+6", logged_in("viewer", "us")
    assert client.get(address, headers=who).text == "x" * 100
    monkeypatch.setattr("plugins.training_monitor.app.MAX_DOCUMENT_BYTES", 99)
    downloads = gcs.requests["download"]
    answer = client.get(address, headers=who)
    assert (answer.status_code, "gs://bucket/runs/6/report.html has" in answer.text) == (413, True)
    assert gcs.requests["download"] == downloads


def test_a_huge_file_of_a_training_in_a_bucket_is_not_fetched(
    client: Client, runs: None, trained: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", "gs://bucket/huge/6", state="running")
    gcs.put("bucket", "huge/6/run.json", (trained / "run.json").read_bytes())
    monkeypatch.setattr("pipeline.watch.copies.MAX_FILE_BYTES", 99)
    monkeypatch.setattr("pipeline.runs.files.MAX_JSON_BYTES", 99)
    who = logged_in("viewer", "us")
    tab = client.get("/data?dag_id=ours&run_id=run+6", headers=who).json()["status"]["words"]
    [row] = [row for row in listed(client, who)["rows"] if row["run_id"] == "run 6"]
    assert all("run.json has 0 MB, more than the 0 MB" in words for words in (tab, row["words"]))
    assert gcs.requests["download"] == 0


def test_a_huge_segment_of_a_local_record_is_not_read(
    client: Client, runs: None, training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", str(training), state="running")
    monkeypatch.setattr("pipeline.watch.tables.MAX_FILE_BYTES", 99)
    words = client.get("/data?dag_id=ours&run_id=run+6", headers=logged_in("viewer", "us")).json()["status"]["words"]
    assert "more than the 0 MB that Tenfold reads of such a file" in words


@pytest.fixture
def allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the administrator of the API server allow some places."""

    def allow(*places: object) -> None:
        for name in ("TENFOLD_WORKSPACE", "TENFOLD_LOCAL_FOLDER"):
            monkeypatch.setenv(name, str(tmp_path / "workspace"))
        for name in ("TENFOLD_ALLOWED_WORKSPACES", "TENFOLD_ALLOWED_PUBLISH"):
            monkeypatch.setenv(name, ",".join(map(str, places)))

    return allow


def test_a_place_in_an_xcom_is_opened_only_if_the_administrator_allows_it(
    client: Client, runs: None, trained: Path, gcs: FakeGcs, allow: Callable[..., None]
) -> None:
    from tests.plugins.airflow_runs import add_run

    (trained / "report.html").unlink(missing_ok=True)
    (trained / "report.html").write_text("a report")
    gcs.put("bucket", "others/report.html", b"a report")
    add_run("ours", "run 6", "gs://bucket/others")
    add_run("ours", "run 7", None, comparison=str(trained))
    add_run("ours", "run 8", f"{trained.parent / 'run'}/../run")
    who = logged_in("viewer", "us")
    allow(trained.parent)
    assert client.get("/report?dag_id=ours&run_id=run+8", headers=who).text == "a report"
    allow(trained.parent / "ru", "gs://bucket/other")
    refusal = "is outside what TENFOLD_ALLOWED_WORKSPACES allows ("
    for number in (1, 6, 7, 8):
        address = f"dag_id=ours&run_id=run+{number}"
        status = client.get(f"/data?{address}", headers=who).json()["status"]
        assert (refusal in status["words"], status["links"]) == (True, [])
        for page in ("report", "card", "inputs"):
            answer = client.get(f"/{page}?{address}", headers=who)
            assert (answer.status_code, refusal in answer.text) == (403, True)
    words = {row["run_id"]: row["words"] for row in listed(client, who)["rows"]}
    assert all(refusal in words[run] for run in ("run 1", "run 6", "run 8"))
    assert gcs.requests.total() == 0


def test_a_link_in_a_training_is_not_followed_out_of_the_allowed_places(
    client: Client, runs: None, training: Path, tmp_path: Path, allow: Callable[..., None]
) -> None:
    from tests.plugins.airflow_runs import add_run

    (tmp_path / "secret.json").write_text('{"sentence": "only the API server may read it"}')
    add_run("ours", "run 6", str(training), state="running")
    (training / "verdict.json").unlink(missing_ok=True)
    (training / "verdict.json").symlink_to(tmp_path / "secret.json")
    who = logged_in("viewer", "us")
    allow(tmp_path)
    assert "only the API server may read it" in client.get("/data?dag_id=ours&run_id=run+6", headers=who).text
    allow(training)
    tab = client.get("/data?dag_id=ours&run_id=run+6", headers=who)
    [row] = [row for row in listed(client, who)["rows"] if row["run_id"] == "run 6"]
    assert "only the API server may read it" not in tab.text + str(row)
    assert all("verdict.json' is outside what" in words for words in (tab.json()["status"]["words"], row["words"]))


def test_users_see_only_trainings_of_dags_that_they_can_read(client: Client, runs: None) -> None:
    def seen(*teams: str) -> list[tuple[str, str]]:
        rows = listed(client, logged_in("viewer", *teams))["rows"]
        return [(row["dag_id"], row["run_id"]) for row in rows]

    ours = [("ours", run_id) for run_id in ("run 5", "run 4", MARKUP, "run 1")]
    assert seen("us") == ours
    assert seen("them") == [("theirs", "run 1")]
    assert seen("us", "them") == [*ours[:2], ("theirs", "run 1"), *ours[2:]]
    assert seen() == []


def test_each_request_checks_the_permission_for_its_dag(client: Client, runs: None) -> None:
    def status(dag_id: str) -> int:
        return client.get(f"/data?dag_id={dag_id}&run_id=run+2", headers=logged_in("viewer", "us")).status_code

    assert (status("ours"), status("theirs")) == (200, 403)


@pytest.mark.parametrize(
    ("pool", "state", "expected", "text"),
    [
        ("default_pool", "running", "none", "No task of this DAG trains a model."),
        (
            *("gpu", "running", "waiting"),
            "The training has not started: Airflow has not started its next task yet. Done: 0 of 1 task.",
        ),
        ("gpu", "failed", "none", "This run has no training, or its files were removed."),
    ],
)
def test_a_run_without_a_training_shows_the_reason(
    client: Client, runs: None, pool: str, state: str, expected: str, text: str
) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", None, state=state, pool=pool)
    answer = client.get("/data?dag_id=ours&run_id=run+6", headers=logged_in("viewer", "us")).json()
    assert answer["status"] == {"state": expected, "words": text, "links": []}


def test_a_comparison_of_inputs_shows_its_progress_and_its_page(client: Client, runs: None, tmp_path: Path) -> None:
    from tests.plugins.airflow_runs import add_run

    folder = compared(tmp_path / "comparison", contenders="files,shards", rounds=2)
    [*_, last] = sorted(folder.glob("measurements/*/measurement.json"))
    last.unlink()
    add_run("ours", "run 6", None, state="running", comparison=str(folder))
    who, query = logged_in("viewer", "us"), "dag_id=ours&run_id=run+6"
    status = client.get(f"/data?{query}", headers=who).json()["status"]
    assert status["words"] == "3 of 4 measurements of the comparison of inputs are complete."
    assert status["links"] == []
    assert client.get(f"/inputs?{query}", headers=who).status_code == 404
    (folder / "inputs.html").write_text("the page")
    (folder / "result.json").write_text('{"verdict": "Use shards."}')
    status = client.get(f"/data?{query}", headers=who).json()["status"]
    assert status["words"] == "Use shards."
    assert status["links"] == [["Comparison of inputs", f"inputs?{query}"]]
    assert client.get(f"/inputs?{query}", headers=who).text == "the page"


def test_a_comparison_of_another_version_shows_what_to_do(client: Client, runs: None, tmp_path: Path) -> None:
    from tests.plugins.airflow_runs import add_run

    folder = compared(tmp_path / "comparison", contenders="files,shards", rounds=2)
    content = json.loads((folder / "comparison.json").read_text())
    (folder / "comparison.json").write_text(json.dumps({**content, "format": 0}))
    add_run("ours", "run 6", None, state="running", comparison=str(folder))
    answer = client.get("/data?dag_id=ours&run_id=run+6", headers=logged_in("viewer", "us"))
    assert answer.status_code == 200
    assert f"older version of Tenfold: remove {folder} and compare" in answer.json()["status"]["words"]


@pytest.mark.parametrize(
    "content", ['{"format": 0}', json.dumps({"format": RUN_FORMAT, "settings": {"epochs": "many"}})]
)
def test_a_training_that_cannot_be_read_keeps_its_links(
    client: Client, runs: None, training: Path, content: str
) -> None:
    from tests.plugins.airflow_runs import add_run

    (training / "run.json").write_text(content)
    (training / "report.html").write_text("the page")
    add_run("ours", "run 6", str(training), state="failed", failed={"train": 1})
    status = client.get("/data?dag_id=ours&run_id=run+6", headers=logged_in("viewer", "us")).json()["status"]
    assert status["state"] == "unknown"
    assert status["words"].startswith("the training cannot be read: ")
    assert [name for name, _ in status["links"]] == ["Report", "Log of train"]


@pytest.mark.parametrize(("slots", "says"), [(2, True), (3, False), (-1, False)])
def test_a_training_with_more_servers_than_slots_shows_a_message(
    client: Client, runs: None, slots: int, says: bool
) -> None:
    """Without the message, the servers would wait for each other silently until they give up."""
    from airflow.models.pool import Pool
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import insert, update

    from tests.plugins.airflow_runs import add_run

    Pool.create_or_update_pool("gpu", slots=slots, description="", include_deferred=False)
    add_run("ours", "run 7", None, state="running")
    task = {"dag_id": "ours", "run_id": "run 7", "task_id": "train"}
    with create_session() as session:
        session.execute(update(TaskInstance).filter_by(**task).values(map_index=0, state="running"))
        for index in (1, 2):
            session.execute(insert(TaskInstance).values(**task, map_index=index, pool="gpu", state="scheduled"))
    text = client.get("/data?dag_id=ours&run_id=run+7", headers=logged_in("viewer", "us")).json()["status"]["words"]
    refusal = "train needs 3 slots of the pool 'gpu' at the same time, but the pool has 2: add slots under Admin, Pools"
    assert (refusal in text) is says


def test_a_run_that_failed_before_its_training_links_to_the_log_of_the_first_failure(
    client: Client, runs: None
) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6+", None, state="failed", failed={"extract": 2, "shard.write": 1})
    answer = client.get("/data?dag_id=ours&run_id=run+6%2B", headers=logged_in("viewer", "us")).json()
    assert answer["status"] == {
        "state": "failed",
        "words": "The training never started. Task shard.write failed. Its log says why.",
        "links": [["Log of shard.write", "../dags/ours/runs/run%206%2B/tasks/shard.write"]],
    }


def test_a_failed_run_shows_its_error_message(client: Client, runs: None) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", None, state="failed", failed={"extract": 1}, error="source_uri '/nowhere' is no folder")
    answer = client.get("/data?dag_id=ours&run_id=run+6", headers=logged_in("viewer", "us")).json()
    text = "The training never started. Task extract failed: source_uri '/nowhere' is no folder"
    assert (answer["status"]["state"], answer["status"]["words"]) == ("failed", text)


def test_a_failed_training_shows_its_position_its_error_and_its_log(client: Client, runs: None, training: Path) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", str(training), state="failed", failed={"train": 1}, error="the loss is no number")
    status = client.get("/data?dag_id=ours&run_id=run+6", headers=logged_in("viewer", "us")).json()["status"]
    assert status["state"] == "failed"
    assert status["words"] == (
        "the run ended in epoch 6 of 8, step 360 of 480, without a model. Task train failed: the loss is no number"
    )
    assert ["Log of train", "../dags/ours/runs/run%206/tasks/train"] in status["links"]


def test_runs_that_failed_before_their_training_are_listed_with_error_and_log(client: Client, runs: None) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", None, state="failed", failed={"extract": 1}, error="source_uri '/nowhere' is no folder")
    add_run("ours", "run 7", None, state="failed", pool="default_pool", failed={"extract": 1})  # without a training
    add_run("ours", "run 8", None, state="failed")
    first, second, *others = listed(client, logged_in("viewer", "us"))["rows"]
    assert (first["run_id"], first["state"], first["words"]) == (
        "run 8", "failed", "The run ended before its training began.",
    )  # fmt: skip
    assert (second["run_id"], second["state"]) == ("run 6", "failed")
    assert second["words"] == "Task extract failed: source_uri '/nowhere' is no folder"
    assert second["links"] == [["Log of extract", "../dags/ours/runs/run%206/tasks/extract"]]
    assert [row["run_id"] for row in others] == ["run 5", "run 4", MARKUP, "run 1"]


def test_the_list_shows_the_error_of_a_failed_training(client: Client, runs: None, training: Path) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", str(training), state="failed", failed={"train": 1}, error="the loss is no number")
    row = listed(client, logged_in("viewer", "us"))["rows"][0]
    assert (row["state"], row["words"], row["cells"]["state"]) == (
        "failed", "Task train failed: the loss is no number",
        "Failed: Task train failed: the loss is no number",
    )  # fmt: skip
    assert row["links"] == [["Log of train", "../dags/ours/runs/run%206/tasks/train"]]


def test_the_list_shows_which_task_failed_after_a_complete_training(client: Client, runs: None, trained: Path) -> None:
    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", str(trained), state="failed", failed={"report": 1}, error="the disk is full")
    row = listed(client, logged_in("viewer", "us"))["rows"][0]
    assert (row["state"], row["words"]) == ("trained", "Task report failed: the disk is full")


def test_an_error_message_is_hidden_from_users_who_cannot_read_logs(
    client: Client, runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other auth managers may have roles that can read runs but not logs."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

    from tests.plugins.airflow_runs import add_run

    add_run("ours", "run 6", None, state="failed", failed={"extract": 1}, error="the reason")
    may = type(get_auth_manager()).is_authorized_dag

    def no_logs(self: Any, *, access_entity: Any = None, **others: Any) -> bool:
        return access_entity is not DagAccessEntity.TASK_LOGS and may(self, access_entity=access_entity, **others)

    monkeypatch.setattr(type(get_auth_manager()), "is_authorized_dag", no_logs)
    who = logged_in("viewer", "us")
    assert listed(client, who)["rows"][0]["words"] == "Task extract failed."
    status = client.get("/data?dag_id=ours&run_id=run+6", headers=who).json()["status"]
    assert status["words"] == "The training never started. Task extract failed. Its log says why."
    assert listed(client, who, "?search=reason")["found"] == 0


@pytest.fixture
def many(runs: None, trained: Path) -> None:
    """130 more runs. The oldest of them has another model and the highest accuracy."""
    from tests.plugins.airflow_runs import add_run

    other = trained.with_name("other")
    if not other.exists():
        shutil.copytree(trained, other)
        about = json.loads((other / "run.json").read_text())
        about["settings"]["model"] = "resnet50"
        (other / "run.json").write_text(json.dumps(about))
        (other / "result.json").write_text(json.dumps({**RESULT, "metrics": {"val_accuracy": 0.99}}))
    add_run("ours", "many 0", str(other))
    for number in range(1, 130):
        add_run("ours", f"many {number}", str(trained))


def test_a_search_covers_all_trainings(client: Client, many: None) -> None:
    who = logged_in("viewer", "us")
    found = listed(client, who, "?limit=100&search=RESNET50")
    assert [row["run_id"] for row in found["rows"]] == ["many 0"]
    assert (found["found"], found["total"], found["searched"], found["more"]) == (1, 134, 134, False)
    assert listed(client, who, "?search=many+small_cnn")["found"] == 129
    assert listed(client, who, "?search=23%25+Trained")["found"] == 132  # shown texts of the data wait and of the state
    assert listed(client, who, "?search=nothing+has+this")["rows"] == []


def test_sorting_covers_all_trainings_and_is_paged(client: Client, many: None) -> None:
    who = logged_in("viewer", "us")
    best = listed(client, who, "?limit=100&sort=accuracy")
    assert [row["accuracy"] for row in best["rows"][:2]] == [0.99, 0.54]
    assert (len(best["rows"]), best["more"]) == (100, True)
    last = listed(client, who, "?limit=100&offset=100&sort=accuracy")
    assert (len(last["rows"]), last["more"]) == (34, False)
    assert [row["accuracy"] for row in last["rows"][-2:]] == [None, None]  # missing values come last in both directions
    worst = listed(client, who, "?limit=100&offset=100&sort=accuracy&up=true")
    assert [row["accuracy"] for row in worst["rows"][-3:]] == [0.99, None, None]
    by_model = listed(client, who, "?limit=3&sort=model&up=false")
    assert [row["model"] for row in by_model["rows"]] == ["small_cnn"] * 3
    oldest = listed(client, who, "?limit=2&sort=started&up=true")
    assert [row["run_id"] for row in oldest["rows"]] == ["run 1", MARKUP]
    newest = listed(client, who, "?limit=2&offset=1")
    assert [row["run_id"] for row in newest["rows"]] == ["many 128", "many 127"]


def test_a_search_takes_filters_on_columns_and_settings(client: Client, many: None) -> None:
    who = logged_in("viewer", "us")

    def found(search: str) -> Any:
        return listed(client, who, f"?{urlencode({'search': search})}")

    assert [row["run_id"] for row in found("model=resnet50 accuracy>0.6 epochs>=8")["rows"]] == ["many 0"]
    assert found("accuracy>0.5 wait<25")["found"] == 132
    assert found("accuracy>0.5 wait<25")["filters"] == ["accuracy > 50%", "wait < 25%"]
    assert found("dataset:shape epochs=8 many")["found"] == 130
    assert found("dataset:birds")["found"] == found("epochs>8")["found"] == found("user:anybody")["found"] == 0
    refused = found("epoch>=8")
    assert (refused["rows"], refused["found"], refused["total"]) == ([], 0, 134)
    assert refused["problem"].startswith("No column and no setting is named epoch. Did you mean epochs?")


def test_trainings_are_sorted_within_each_dataset(client: Client, runs: None, trained: Path) -> None:
    from tests.plugins.airflow_runs import add_run

    for name, dataset, accuracy in (("b low", "birds", 0.1), ("a low", "apples", 0.2), ("b high", "birds", 0.9)):
        folder = trained.with_name(name)
        shutil.copytree(trained, folder, dirs_exist_ok=True)
        about = json.loads((folder / "run.json").read_text())
        about["settings"]["dataset_name"] = dataset
        (folder / "run.json").write_text(json.dumps(about))
        (folder / "result.json").write_text(json.dumps({**RESULT, "metrics": {"val_accuracy": accuracy}}))
        add_run("ours", name, str(folder))
    rows = listed(client, logged_in("viewer", "us"), "?sort=accuracy&within=true")["rows"]
    assert [row["run_id"] for row in rows[:4]] == ["a low", "b high", "b low", "run 5"]
    assert [row["dataset"] for row in rows] == ["apples", "birds", "birds", "shapes", "shapes", "", ""]


def test_a_run_has_the_user_who_triggered_it_and_its_note_as_the_name(client: Client, runs: None) -> None:
    from airflow.models.dagrun import DagRun, DagRunNote
    from airflow.utils.session import create_session
    from sqlalchemy import select, update

    with create_session() as session:
        number = session.scalar(select(DagRun.id).filter_by(run_id="run 5"))
        session.execute(update(DagRun).where(DagRun.id == number).values(triggering_user_name="ada"))
        note = DagRunNote(content="larger images\nsecond line", user_id="1")
        note.dag_run_id = number
        session.add(note)
    who = logged_in("viewer", "us")
    [row] = listed(client, who, "?search=user=ada")["rows"]
    assert (row["run_id"], row["note"], row["cells"]["user"]) == ("run 5", "larger images\nsecond line", "ada")
    assert row["cells"]["run"] == "larger images\nsecond line run 5"
    assert listed(client, who, "?search=run:larger")["found"] == 1


def test_a_limited_search_reports_how_many_trainings_it_covers(
    client: Client, many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugins.training_monitor.listing.MAX_SEARCHED", 100)
    found = listed(client, logged_in("viewer", "us"), "?search=resnet50")
    assert (found["found"], found["searched"], found["total"]) == (0, 100, 134)


def add_unread(client: Client, trained: Path, name: str) -> None:
    """Add copies of a training, which are the only ones that no search has read."""
    from tests.plugins.airflow_runs import add_run

    listed(client, logged_in("viewer", "us"), "?search=other")  # It reads all others.
    for index in range(MIN_READ + 5):
        folder = trained.with_name(f"{name} {index}")
        shutil.copytree(trained, folder, dirs_exist_ok=True)
        os.utime(folder / "result.json", (2e9 + index, 2e9))
        add_run("ours", f"{name} {index}", str(folder))


def test_the_time_to_read_trainings_begins_with_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, *[100.0] * MIN_READ, 109.0, 111.0])
    monkeypatch.setattr("pipeline.watch.summary.time", SimpleNamespace(monotonic=lambda: next(clock)))
    budget = _Budget(10.0)
    assert [budget.allows_one_more() for _ in range(MIN_READ + 2)] == [True] * (MIN_READ + 1) + [False]


def test_a_search_reads_trainings_even_if_it_took_all_of_its_time_to_find_the_runs(
    client: Client, many: None, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_unread(client, trained, "unseen")
    clock = iter([0.0, 1e6])
    monkeypatch.setattr("plugins.training_monitor.listing.time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr("plugins.training_monitor.listing.BUDGET_S", 3600)
    assert listed(client, logged_in("viewer", "us"), "?search=unseen")["later"] == 0


def test_a_search_without_time_continues_with_the_next_request(
    client: Client, many: None, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is short, also after a start of the API server, when no training is in memory."""
    add_unread(client, trained, "unread")
    who = logged_in("viewer", "us")
    monkeypatch.setattr("plugins.training_monitor.listing.BUDGET_S", 0)
    first, second, third = (listed(client, who, "?search=model:small+unread") for _ in range(3))
    assert (first["found"], second["found"] + second["later"], third["later"]) == (MIN_READ, MIN_READ + 5, 0)
    assert (first["later"], third["found"]) == (5, MIN_READ + 5)
    assert first["searched"] == first["total"] - 5


def test_a_search_loads_an_ended_run_once(
    client: Client, runs: None, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    import plugins.training_monitor.runs as module

    loaded: list[str] = []
    load_runs = module.load_runs

    def load_and_count(*arguments: Any) -> Iterator[Any]:
        for run in load_runs(*arguments):
            loaded.append(run.run_id)
            yield run

    monkeypatch.setattr(module, "load_runs", load_and_count)
    who = logged_in("viewer", "us")
    listed(client, who, "?search=run")
    loaded.clear()
    assert listed(client, who, "?search=run")["found"] == 3
    assert loaded == ["run 5"]  # It has not ended.
    with create_session() as session:
        session.execute(update(DagRun).filter_by(run_id="run 1", dag_id="ours").values(state="failed"))
    loaded.clear()
    listed(client, who, "?search=run")
    assert sorted(loaded) == ["run 1", "run 5"]


def test_ended_runs_in_memory_are_bounded(runs: None) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from plugins.training_monitor.runs import EndedRuns

    ended = EndedRuns(max_kept=2)
    with create_session() as session:
        for _ in range(2):
            found, later = ended.load_runs(session, select(DagRun).order_by(DagRun.id.desc()))
            assert later == 0
            assert [run.run_id for run in found] == ["run 5", "run 4", "run 1", MARKUP, "run 2", "run 1"]
    assert len(ended._kept) == 2


def test_objects_are_frozen_in_the_part_of_a_search_that_loads_many_runs(
    client: Client, many: None, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To visit all objects of the api-server, a collection of garbage takes most of a second."""
    who = logged_in("viewer", "us")
    listed(client, who, "?search=small")
    collector = Mock()
    monkeypatch.setattr("plugins.training_monitor.runs.gc", collector)
    monkeypatch.setattr("plugins.training_monitor.runs.FREEZE_FROM", sys.maxsize)
    monkeypatch.setattr("plugins.training_monitor.listing.BUDGET_S", 0)
    add_unread(client, trained, "frozen")
    assert listed(client, who, "?search=small")["later"]
    assert collector.mock_calls == []
    monkeypatch.setattr("plugins.training_monitor.runs.FREEZE_FROM", 1)
    for _ in range(3):
        listed(client, who, "?search=small")
        assert collector.mock_calls == [call.collect(1), call.freeze()]


def test_a_search_without_time_gets_past_trainings_that_have_not_ended(
    client: Client, runs: None, training: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They change, so each search reads them again."""
    from tests.plugins.airflow_runs import add_run

    folder = shutil.copytree(trained, tmp_path / "oldest")
    add_run("ours", "oldest", str(folder))
    for number in range(MIN_READ + 5):
        add_run("ours", f"going {number}", str(training), state="running")
    monkeypatch.setattr("plugins.training_monitor.listing.BUDGET_S", 0)
    monkeypatch.setattr("plugins.training_monitor.runs._AT_ONCE", 10)
    who = logged_in("viewer", "us")
    found = [listed(client, who, "?search=oldest+small_cnn") for _ in range(3)]
    assert (found[-1]["found"], found[-1]["later"]) == (1, 0)


def test_searches_at_the_same_time_share_the_runs_in_memory(runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks for the list and the trend at the same time."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    import plugins.training_monitor.runs as module

    ended, load_runs, query = module.EndedRuns(), module.load_runs, select(DagRun)
    loaded: list[list[str]] = []

    def load_and_search(session: Any, runs: Any) -> Iterator[Any]:
        found = [*load_runs(session, runs)]
        loaded.append([run.run_id for run in found])
        if len(loaded) == 3:
            ended.load_runs(session, query)  # Another search, while this one loads.
        yield from found

    monkeypatch.setattr(module, "load_runs", load_and_search)
    with create_session() as session:
        for _ in range(2):
            ended.load_runs(session, query)
    # Each search loads the one that has not ended, and the first one also the other five.
    assert [len(each) for each in loaded] == [1, 5, 1, 1]


def test_the_trend_of_a_dataset_name_has_its_last_trainings(
    client: Client, runs: None, trained: Path, tmp_path: Path
) -> None:
    from airflow.utils.session import create_session

    from dags.xcom_keys import DATASET_PLACE
    from tests.plugins.airflow_runs import add_run, store

    for number in range(35):
        folder = tmp_path / str(number)
        shutil.copytree(trained, folder)
        about = json.loads((folder / "run.json").read_text())
        about["settings"]["dataset_name"] = "birds"
        (folder / "run.json").write_text(json.dumps(about))
        speed = 500.0 if number == 34 else 800.0 + number % 3
        result = {**RESULT, "wait_ms": 1.0, "step_ms": 9.0, "examples_per_s": speed}
        (folder / "result.json").write_text(json.dumps(result))
        add_run("ours", f"birds {number}", str(folder))
        with create_session() as session:
            task = {"dag_id": "ours", "run_id": f"birds {number}", "task_id": "train"}
            store(session, task, DATASET_PLACE, str(trained / "dataset"))
    who = logged_in("viewer", "us")
    answer = client.get("/trend.json?dataset_name=birds", headers=who).json()
    assert (answer["names"], answer["shown"], answer["later"]) == (["birds", "shapes"], "birds", 0)
    assert [each["run_id"] for each in answer["trainings"]] == [f"birds {number}" for number in range(5, 35)]
    last = answer["trainings"][-1]
    assert {name: last[name] for name in ("images", "rejected", "accuracy", "error", "wait", "speed")} == {
        "images": 50, "rejected": 3, "accuracy": 0.54, "error": None, "wait": 0.2345, "speed": 500.0,
    }  # fmt: skip
    assert last["worse"] == {"speed": "It takes 500 examples a second; the 10 trainings before took 800 to 802."}
    assert not any(each["worse"] for each in answer["trainings"][:-1])
    assert answer["promises"] == ""
    shapes = client.get("/trend.json?dataset_name=shapes", headers=who).json()
    assert (shapes["shown"], [each["run_id"] for each in shapes["trainings"]]) == ("shapes", ["run 1", "run 5"])
    assert client.get("/trend.json", headers=who).json()["shown"] == "birds"


def test_the_trend_of_a_regression_has_its_error(client: Client, runs: None, trained: Path, tmp_path: Path) -> None:
    from tests.plugins.airflow_runs import add_run

    for number, mae in enumerate((1234.5, 900.0)):
        folder = shutil.copytree(trained, tmp_path / str(number))
        about = json.loads((folder / "run.json").read_text())
        about["settings"]["dataset_name"] = "prices"
        (folder / "run.json").write_text(json.dumps(about))
        (folder / "result.json").write_text(json.dumps({**RESULT, "metrics": {"val_mae": mae}}))
        add_run("ours", f"prices {number}", str(folder))
    answer = client.get("/trend.json?dataset_name=prices", headers=logged_in("viewer", "us")).json()
    assert [(each["accuracy"], each["error"]) for each in answer["trainings"]] == [(None, 1234.0), (None, 900.0)]


def test_the_trend_is_of_dags_that_the_user_can_read(client: Client, runs: None) -> None:
    assert client.get("/trend.json").status_code == 401
    assert client.get("/trend.json", headers=logged_in(None)).status_code == 403
    answer = client.get("/trend.json", headers=logged_in("viewer", "them")).json()
    assert [(each["dag_id"], each["run_id"]) for each in answer["trainings"]] == [("theirs", "run 1")]
    assert client.get("/trend.json", headers=logged_in("viewer")).json()["trainings"] == []


def test_a_search_for_a_day_uses_the_time_zone_of_the_browser(client: Client, runs: None) -> None:
    who = logged_in("viewer", "us")
    assert listed(client, who, "?search=2026-01-01")["found"] == 4
    assert listed(client, who, "?search=2026-01-01&zone=America/New_York")["found"] == 0
    shown = listed(client, who, "?search=2025-12-31&zone=America/New_York")["rows"][0]["cells"]["started"]
    assert shown.startswith("2025-12-31 19:")
    assert listed(client, who, "?search=2026-01-01&zone=../etc")["found"] == 4  # UTC, because the zone is invalid


@pytest.mark.long
def test_a_training_in_a_silent_bucket_counts_as_unread(
    client: Client, runs: None, gcs: FakeGcs, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.plugins.airflow_runs import add_run

    gcs.put("bucket", "runs/9/run.json", (trained / "run.json").read_bytes())
    stall = Fault("stall", matches="runs/9", times=None)
    gcs.faults.add(stall)
    monkeypatch.setattr("pipeline.watch.summary.PATIENCE_S", 0.2)
    add_run("ours", "run 9", "gs://bucket/runs/9", state="running")
    found = listed(client, logged_in("viewer", "us"), "?search=resnet50")
    assert (found["found"], found["unread"]) == (0, 1)
    stall.release()
    until(lambda: not listed(client, logged_in("viewer", "us"), "?search=resnet50")["unread"], pause=0.2)


def test_a_row_has_all_shown_values(client: Client, runs: None) -> None:
    running, nowhere, gone, first = listed(client, logged_in("viewer", "us"))["rows"]
    minute = first["start"][14:16]  # A run starts one minute after the previous one.
    assert first == {
        "dag_id": "ours",
        "run_id": "run 1",
        "start": f"2026-01-01T00:{minute}:00+00:00",
        "note": "",
        "state": "trained",
        "words": "",
        "dataset": "shapes",
        "model": "small_cnn",
        "progress": 1.0,
        "accuracy": 0.54,
        "wait": 0.2345,
        "limit": "decoding",
        "promotion": None,
        "why": "",
        "speed": None,
        "name": "Trained",
        "badge": "",
        "links": [["Report", "report?dag_id=ours&run_id=run+1"]],
        "cells": {
            "run": "run 1",
            "user": "",
            "dag": "ours",
            "state": "Trained",
            "started": f"2026-01-01 00:{minute}:00",
            "dataset": "shapes",
            "model": "small_cnn",
            "progress": "100%",
            "accuracy": "54.0% (baseline 25.0%)",
            "promotion": "",
            "wait": "23%",
            "limit": "decoding",
        },
    }
    assert (gone["state"], gone["words"]) == (nowhere["state"], nowhere["words"]) == (GONE.state, GONE.words)
    assert running["state"] == "trained"  # its report is not written yet


def test_older_trainings_are_listed_page_by_page(client: Client, runs: None) -> None:
    who = logged_in("viewer", "us")
    newest = listed(client, who, "?limit=3")
    assert ([row["run_id"] for row in newest["rows"]], newest["more"]) == (["run 5", "run 4", MARKUP], True)
    older = listed(client, who, "?limit=3&offset=3")
    assert ([row["run_id"] for row in older["rows"]], older["more"]) == (["run 1"], False)
    assert not listed(client, who, "?limit=4")["more"]
    assert (listed(client, who, "?offset=4")["rows"], listed(client, who, "?offset=4")["total"]) == ([], 4)


@pytest.mark.parametrize("search", ["", "?search=dag:ours"])
def test_a_run_that_was_started_again_is_the_newest(client: Client, runs: None, search: str) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        begin = datetime(2026, 1, 2, tzinfo=UTC)
        again = {"run 1": (begin, "success"), "run 4": (None, "queued"), "run 5": (None, "failed")}
        for run_id, (start, state) in again.items():
            changed = {"start_date": start, "state": state}
            session.execute(update(DagRun).where(DagRun.run_id == run_id).values(**changed))
    rows = listed(client, logged_in("viewer", "us"), search)["rows"]
    assert [row["run_id"] for row in rows] == ["run 4", "run 1", MARKUP, "run 5"]


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=100000", "limit=x", "offset=-1", f"offset={2**63}", "offset=../"),
        *("sort=size", "up=x", f"search={201 * 'x'}"),
    ],
)
def test_an_invalid_query_is_refused(client: Client, runs: None, query: str) -> None:
    assert client.get(f"/trainings.json?{query}", headers=logged_in("viewer", "us")).status_code == 422


def test_the_page_and_its_files_have_a_strict_content_security_policy(client: Client) -> None:
    for name in ("trainings", "assets/trainings.js", "assets/icon.svg", "assets/icon-dark.svg"):
        answer = client.get(f"/{name}", headers=logged_in("viewer"))
        assert answer.status_code == 200, name
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    page = client.get("/trainings", headers=logged_in("viewer")).text
    assert "<script src=" in page
    assert "onclick" not in page
    assert "<style" not in page


def test_the_page_of_a_run_preloads_its_first_request(client: Client, runs: None) -> None:
    """The browser preloads the data. With another address, it would send a second request."""
    who, query = logged_in("viewer", "us"), "dag_id=ours&run_id=a%20%3E%2B"
    link = client.get(f"/run?{query}", headers=who).headers["Link"]
    assert link == f"<data?{query}>; rel=preload; as=fetch; crossorigin"


INVALID = [
    json.dumps({"format": RUN_FORMAT, "settings": {"model": "\ud800"}}),
    json.dumps({"format": RUN_FORMAT, "settings": {"epochs": float("nan")}}),
    "[]",
    "{",
    "{}",
]


@pytest.mark.long
@pytest.mark.parametrize("text", INVALID)
def test_invalid_content_of_run_json_does_not_break_the_tab(
    client: Client, runs: None, training: Path, text: str
) -> None:
    from tests.plugins.airflow_runs import add_run

    (training / "result.json").write_text(json.dumps(RESULT))
    (training / "run.json").write_text(text)
    add_run("ours", "run 8", str(training))
    answer = client.get("/data?dag_id=ours&run_id=run+8", headers=logged_in("viewer", "us"))
    assert (answer.status_code, answer.json()["status"]["state"] in ("trained", "unknown")) == (200, True)


# --- the comparison of trainings --------------------------------------------------------------------------------------


def asked(*runs: tuple[str, str]) -> str:
    """Return the address of the comparison of some runs, by their DAGs and ids."""
    return f"/compare?{urlencode([pair for ids in runs for pair in zip(('dag_id', 'run_id'), ids, strict=True)])}"


@pytest.fixture
def second(runs: None, tmp_path: Path) -> Path:
    """The folder of another training, of the run 8 of the DAG `ours`."""
    from tests.plugins.airflow_runs import add_run

    folder = rich_run(tmp_path / "second", seed=2, epochs=1, steps=20)
    add_run("ours", "run 8", str(folder))
    return folder


def test_trainings_of_a_page_are_compared(client: Client, second: Path) -> None:
    answer = client.get(asked(("ours", "run 1"), ("ours", "run 8")), headers=logged_in("viewer", "us"))
    assert (answer.status_code, answer.text.count("<h1>Comparison of 2 runs</h1>")) == (200, 1)
    assert "sandbox allow-scripts" in answer.headers["Content-Security-Policy"]
    assert "../dags/ours/runs/run%208/plugin/training" in answer.text


def test_a_comparison_is_loaded_again_while_one_of_its_runs_goes_on(client: Client, second: Path) -> None:
    who, ended = logged_in("viewer", "us"), [("ours", "run 1"), ("ours", "run 8")]
    assert 'id="live"' not in client.get(asked(*ended), headers=who).text
    assert 'id="live"' in client.get(asked(*ended, ("ours", "run 5")), headers=who).text


def test_a_run_that_cannot_be_read_is_named_and_left_out(client: Client, second: Path) -> None:
    lost = [("ours", "run 2"), ("ours", MARKUP), ("ours", "nothing"), ("theirs", "run 1"), ("ours", "run 4")]
    address = asked(("ours", "run 1"), *lost, ("ours", "run 8"))
    answer = client.get(address, headers=logged_in("viewer", "us"))
    assert answer.status_code == 200
    assert "<h1>Comparison of 2 runs</h1>" in answer.text
    for sentence in (
        "run 2 of ours is left out: it has no training yet, or never had one.",
        "nothing of ours is left out: there is no run with this id.",
        "run 1 of theirs is left out: you do not have permission to see the runs of this DAG.",
    ):
        assert sentence in answer.text, sentence
    assert MARKUP not in answer.text
    assert f"{escape(MARKUP)} of ours is left out: its files were removed." in answer.text.replace("&#39;", "&#x27;")


def test_one_run_is_no_comparison(client: Client, second: Path) -> None:
    who = logged_in("viewer", "us")
    for runs in ([("ours", "run 1")], [("ours", "run 1")] * 2, [("ours", "run 1"), ("ours", "nothing")]):
        answer = client.get(asked(*runs), headers=who)
        assert answer.status_code == 404, runs
        assert "Two runs are needed for a comparison" in answer.text
        assert '<a href="">Try again</a>' in answer.text
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_a_comparison_requires_permission_for_each_dag(client: Client, second: Path) -> None:
    theirs = [("theirs", "run 1"), ("theirs", "run 2")]
    assert client.get(asked(*theirs)).status_code == 401
    assert client.get(asked(*theirs), headers=logged_in("viewer", "us")).status_code == 403
    assert client.get(asked(("ours", "run 1"), ("ours", "run 8")), headers=logged_in(None)).status_code == 403
    # The last DAG of an address may be one that the user may see.
    answer = client.get(asked(*theirs, ("ours", "run 1")), headers=logged_in("viewer", "us"))
    assert answer.status_code == 404
    assert answer.text.count("you do not have permission") == 2


def test_a_page_without_a_comparison_escapes_names(client: Client, second: Path) -> None:
    answer = client.get(asked(("ours", "run 1"), ("ours", "<b>")), headers=logged_in("viewer", "us"))
    assert answer.status_code == 404
    assert "&lt;b&gt; of ours is left out" in answer.text


def test_too_many_runs_are_refused_before_any_is_read(client: Client, runs: None) -> None:
    who = logged_in("viewer", "us")
    assert client.get(asked(*(("ours", f"{number}") for number in range(21))), headers=who).status_code == 422
    assert client.get("/compare?dag_id=ours&run_id=1&run_id=2", headers=who).status_code == 422
    assert client.get("/compare", headers=who).status_code == 422


def test_a_run_whose_files_are_too_large_is_left_out_of_a_comparison(
    client: Client, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, address = logged_in("viewer", "us"), asked(("ours", "run 1"), ("ours", "run 8"))
    for name in ("MAX_RECORD_BYTES", "MAX_FILE_BYTES"):
        with monkeypatch.context() as patched:
            patched.setattr(f"pipeline.watch.records.{name}", 100)
            answer = client.get(address, headers=who)
            assert answer.status_code == 404
            assert answer.text.count("it cannot be read") == 2


def test_the_records_of_all_runs_of_a_comparison_have_a_limit(
    client: Client, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.watch.records import size_of

    monkeypatch.setattr("pipeline.watch.records.MAX_TOTAL_BYTES", size_of(second) + 100)
    answer = client.get(asked(("ours", "run 8"), ("ours", "run 1")), headers=logged_in("viewer", "us"))
    assert answer.status_code == 404
    assert answer.text.count("is left out: it cannot be read: the record of ") == 1
    assert "compare fewer runs" in answer.text


def test_runs_whose_answers_are_too_large_are_compared_without_them(
    client: Client, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugins.training_monitor.app.MAX_ANSWERS_BYTES", 100)
    answer = client.get(asked(("ours", "run 1"), ("ours", "run 8")), headers=logged_in("viewer", "us"))
    assert answer.status_code == 200
    assert "has predictions that are too large for a page" in answer.text


def test_a_damaged_run_is_left_out_of_a_comparison(client: Client, second: Path) -> None:
    who, address = logged_in("viewer", "us"), asked(("ours", "run 1"), ("ours", "run 8"))
    described, evaluated = (json.loads((second / name).read_text()) for name in ("run.json", "evaluation.json"))
    accuracy = {**evaluated["figures"]["accuracy"], "value": "high"}
    damaged: list[tuple[str, dict[str, Any]]] = [
        ("evaluation.json", {**evaluated, "figures": [1]}),
        ("evaluation.json", {**evaluated, "figures": {"accuracy": accuracy}}),
        ("run.json", {**described, "settings": [1]}),
        ("run.json", {**described, "host": {"cores": "many"}}),
    ]
    for name, content in damaged:
        before = (second / name).read_text()
        (second / name).write_text(json.dumps(content))
        answer = client.get(address, headers=who)
        assert (answer.status_code, "run 8 of ours is left out: it cannot be read" in answer.text) == (404, True), name
        (second / name).write_text(before)


@pytest.mark.long
def test_runs_of_a_silent_bucket_are_asked_for_together(
    client: Client, second: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after another, twenty of them would take longer than any browser waits."""
    from tests.plugins.airflow_runs import add_run

    monkeypatch.setattr("pipeline.watch.questions.PATIENCE_S", 3600)
    silent = [f"silent {number}" for number in range(3)]
    for number, run_id in enumerate(silent):
        gcs.put_folder("bucket", f"silent/{number}/", second)
        add_run("ours", run_id, f"gs://bucket/silent/{number}")
    address = asked(("ours", "run 1"), *(("ours", run_id) for run_id in silent))
    stall = gcs.fail("stall", matches="silent", times=None)
    try:
        answer = start_in_thread(lambda: client.get(address, headers=logged_in("viewer", "us")), "comparison")
        until(lambda: stall.fired >= len(silent))
    finally:
        stall.release()
    assert "<h1>Comparison of 4 runs</h1>" in answer.result().text


@pytest.mark.long
def test_trainings_in_a_bucket_are_compared(client: Client, second: Path, gcs: FakeGcs) -> None:
    from tests.plugins.airflow_runs import add_run

    gcs.put_folder("bucket", "runs/9/", second)
    add_run("ours", "run 9", "gs://bucket/runs/9")
    who = logged_in("viewer", "us")
    address = asked(("ours", "run 1"), ("ours", "run 9"))
    # A busy machine may take longer to copy it than the page waits.
    answer = until(lambda: client.get(address, headers=who), is_expected=lambda each: each.status_code == 200)
    assert "is left out" not in answer.text
