"""A person changes a setting of a training on its tab: who may do it, and what a page of another site cannot do."""

import hmac
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from pipeline.config.automatic import training_settings
from pipeline.config.settings import settings_from
from pipeline.runs.changes import load_changes
from pipeline.runs.files import OFFERS, RUN_FORMAT
from pipeline.runs.launch import prepare_run
from pipeline.storage import place_of
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages
from tests.plugins.test_trainings import Client, client, logged_in, with_cookie
from tests.published import publish
from tests.report.rich import rich_run
from tests.waiting import until

__all__ = ["client"]
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")


@pytest.fixture
def training(airflow_database: None, tmp_path: Path) -> Iterator[Path]:
    """The folder of a training under way, which the run `run` of the DAG `ours` stored."""
    from tests.plugins.airflow_runs import add_dag, add_run, remove_all

    folder = rich_run(tmp_path / "run")
    (folder / "result.json").unlink(missing_ok=True)
    content = {"format": RUN_FORMAT, "settings": training_settings({"epochs": 9}).model_dump(), "steps_per_epoch": 60}
    (folder / "run.json").write_text(json.dumps(content))
    add_dag("ours", "us")
    add_run("ours", "run", str(folder), state="running")
    yield folder
    remove_all()
    shutil.rmtree(folder)


def shown(client: Client, who: dict[str, str]) -> dict[str, Any]:
    """Return what the tab knows about changes."""
    return client.get(f"/data?{urlencode({'dag_id': 'ours', 'run_id': 'run'})}", who).json()["status"]["changes"]


def requested(client: Client, who: dict[str, str], token: str, run_id: str = "run", **changes: str) -> httpx.Response:
    address = f"/change?{urlencode({'dag_id': 'ours', 'run_id': run_id})}"
    return client.post(address, {**who, "X-Tenfold-Token": token}, json.dumps({"values": changes}).encode())


def test_a_person_who_may_edit_the_run_changes_a_setting(client: Client, training: Path):
    editor = with_cookie("user", "us")
    before = shown(client, editor)
    assert dict(before["values"])["prefetch_batches"] == 4
    assert before["sentences"] == []
    answer = requested(client, editor, before["token"], prefetch_batches="16")
    assert (answer.status_code, answer.json()) == (
        200,
        {"words": "from the next epoch on: prefetch_batches=16, requested by somebody"},
    )
    [change] = load_changes(training)
    assert (change.field, change.value, change.by) == ("prefetch_batches", 16, "somebody")
    after = shown(client, editor)
    assert after["sentences"] == [answer.json()["words"]]
    assert dict(after["values"])["prefetch_batches"] == 16


def test_a_value_that_is_not_possible_is_refused_with_a_sentence(client: Client, training: Path):
    editor = with_cookie("user", "us")
    token = shown(client, editor)["token"]
    answer = requested(client, editor, token, prefetch_batches="many")
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "prefetch_batches must be a whole number, got 'many'",
    )
    assert load_changes(training) == []


def test_several_settings_change_with_one_request_or_not_at_all(client: Client, training: Path):
    editor = with_cookie("user", "us")
    token = shown(client, editor)["token"]
    refused = requested(client, editor, token, prefetch_batches="16", cache="auto")
    assert (refused.status_code, load_changes(training)) == (409, [])
    assert "cache must be one of off, memory, disk" in refused.json()["detail"]
    taken = requested(client, editor, token, prefetch_batches="16", checkpoint_steps="50")
    assert taken.json()["words"] == (
        "from the next epoch on: prefetch_batches=16, requested by somebody; "
        "from the next epoch on: checkpoint_steps=50, requested by somebody"
    )
    assert [change.words for change in load_changes(training)] == ["prefetch_batches=16", "checkpoint_steps=50"]
    assert requested(client, editor, token).status_code == 422


def test_who_may_only_see_the_run_gets_no_token_and_changes_nothing(client: Client, training: Path):
    viewer, editor, stranger = with_cookie("viewer", "us"), with_cookie("user", "us"), with_cookie("user", "them")
    assert shown(client, viewer)["token"] == ""
    token = shown(client, editor)["token"]
    for who in (viewer, stranger):
        assert requested(client, who, token, prefetch_batches="16").status_code == 403
    assert requested(client, {}, token, prefetch_batches="16").status_code == 401
    assert load_changes(training) == []


def test_a_page_of_another_site_changes_nothing(client: Client, training: Path):
    """The browser sends the cookie with its request, but the page can read no token."""
    editor, other = with_cookie("user", "us"), with_cookie("admin", "us")
    theirs = shown(client, other)["token"]
    for token in ("", "0" * 64, theirs):
        assert requested(client, editor, token, prefetch_batches="16").status_code == 403
    assert load_changes(training) == []


def test_the_token_of_a_run_is_good_for_that_run_only(client: Client, training: Path):
    from tests.plugins.airflow_runs import add_run

    editor = with_cookie("user", "us")
    add_run("ours", "other", str(training), state="running")
    token = shown(client, editor)["token"]
    answer = requested(client, editor, token, run_id="other", prefetch_batches="16")
    assert answer.status_code == 403


def test_a_run_that_has_ended_does_not_change(client: Client, training: Path):
    from tests.plugins.airflow_runs import add_dag, add_run, remove_all

    remove_all()
    add_dag("ours", "us")
    add_run("ours", "run", str(training), state="failed")
    editor = with_cookie("user", "us")
    changes = shown(client, editor)
    assert changes["values"] == []
    answer = requested(client, editor, changes["token"], prefetch_batches="16")
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "the run has ended, so nothing can change in its training",
    )


def test_the_tab_offers_the_changes_that_the_training_predicts(client: Client, training: Path):
    editor = with_cookie("user", "us")
    offer = {"change": {"prefetch_batches": 16}, "words": "1.6 times faster (1.5 to 1.7)", "promised": [1.6, 1.5, 1.7]}
    (training / OFFERS).write_text(json.dumps({"offers": [offer, {**offer, "change": {"batch_size": 64}}]}))
    before = shown(client, editor)
    assert before["offers"] == [[offer["words"], offer["change"]]]
    requested(client, editor, before["token"], prefetch_batches="16")
    assert shown(client, editor)["offers"] == []
    for damaged in ("[]", '{"offers": [1]}', '{"offers": [{"words": "x", "change": 1}]}', "no json"):
        (training / OFFERS).write_text(damaged)
        assert shown(client, editor)["offers"] == []


@pytest.fixture
def trained(airflow_database: None, make_images: MakeImages, tmp_path: Path) -> Iterator[Path]:
    """The folder of a training under way of the run `run` of `image_training`, with its dataset and its source."""
    from tests.plugins.airflow_runs import add_dag, add_run, remove_all

    source = make_images({"a": 12, "b": 12})
    values = {"workspace": str(tmp_path), "source_uri": str(source), "image_size": 32, "batch_size": 8}
    run = prepare_run(settings_from(values), publish(source, tmp_path), "run", dag="image_training")
    add_dag("image_training", "us")
    add_run("image_training", "run", str(run.folder), state="running")
    yield run.folder
    remove_all()


def asked(client: Client, who: dict[str, str], token: str, run_id: str = "run", **values: str) -> httpx.Response:
    """Ask for the run that continues a training on a new dataset."""
    address = f"/continuation?{urlencode({'dag_id': 'image_training', 'run_id': run_id})}"
    return client.post(address, {**who, "X-Tenfold-Token": token}, json.dumps({"values": values}).encode())


def token_for(client: Client, who: dict[str, str], run_id: str = "run") -> str:
    address = f"/data?{urlencode({'dag_id': 'image_training', 'run_id': run_id})}"
    changes = client.get(address, who).json()["status"]["changes"]
    assert changes["need_dataset"] == ["prepare", "prepare_size", "compression"]
    assert dict(changes["values"])["prepare"] == "keep"
    return str(changes["token"])


def test_the_run_that_continues_a_training_has_its_settings_and_always_the_same_id(client: Client, trained: Path):
    editor = with_cookie("user", "us")
    token = token_for(client, editor)
    answer = asked(client, editor, token, prepare="resize", prepare_size="36")
    assert answer.status_code == 200
    run = answer.json()["run"]
    assert run == asked(client, editor, token, prepare_size="36", prepare="resize").json()["run"]
    assert run["dag_run_id"] != asked(client, editor, token, prepare="raw").json()["run"]["dag_run_id"]
    # The size is the same without a word.
    of_itself = asked(client, editor, token, prepare="resize").json()["run"]
    stated = asked(client, editor, token, prepare="resize", prepare_size=str(of_itself["conf"]["prepare_size"])).json()
    assert stated["run"] == of_itself
    conf = run["conf"]
    assert (conf["prepare"], conf["prepare_size"], conf["continues"]) == ("resize", 36, str(trained))
    assert (conf["image_size"], conf["batch_size"], conf["epochs"]) == (32, 8, 10)
    assert settings_from({**conf, "example_kind": "images"}).source_uri.endswith("source")
    # Nothing is requested before the dataset is complete.
    assert load_changes(trained) == []


@pytest.mark.parametrize("run_id", ["scheduled__2026-01-01", "backfill__2026-01-01", "manual__2026-01-01", "run"])
def test_airflow_takes_the_id_of_the_run_that_continues_another_one(client: Client, trained: Path, run_id: str):
    """It refuses an id that looks like that of a scheduled run."""
    from airflow.utils.types import DagRunType

    from tests.plugins.airflow_runs import add_run

    if run_id != "run":
        add_run("image_training", run_id, str(trained), state="running")
    editor = with_cookie("user", "us")
    answer = asked(client, editor, token_for(client, editor, run_id), run_id, prepare="resize")
    later = answer.json()["run"]["dag_run_id"]
    assert DagRunType.from_run_id(later) == DagRunType.MANUAL
    assert run_id in later
    assert later.count("manual__") == 1


def test_who_may_not_edit_the_run_learns_nothing_of_a_run_that_continues_it(client: Client, trained: Path):
    viewer, editor, other = with_cookie("viewer", "us"), with_cookie("user", "us"), with_cookie("admin", "us")
    token = token_for(client, editor)
    for who, theirs in ((viewer, token), (editor, ""), (editor, "0" * 64), (editor, token_for(client, other))):
        assert asked(client, who, theirs, prepare="resize").status_code == 403


def test_a_run_that_cannot_continue_a_training_is_refused_with_a_sentence(client: Client, trained: Path):
    editor = with_cookie("user", "us")
    token = token_for(client, editor)
    for values, words in (
        ({"epochs": "9"}, "epochs cannot change in a training"),
        ({"prepare": "shrink"}, "prepare must be"),
        ({"prepare": "keep"}, "nothing changes"),
    ):
        answer = asked(client, editor, token, **values)
        assert (answer.status_code, words in answer.json()["detail"]) == (409, True)
    (trained / "result.json").write_text('{"run": "x"}')
    answer = asked(client, editor, token, prepare="resize")
    assert (answer.status_code, "is complete" in answer.json()["detail"]) == (409, True)


@pytest.mark.parametrize(("name", "value"), [("callbacks", "mine:make"), ("dataset", "/w/datasets/n/windows/1")])
def test_the_tab_offers_no_new_dataset_for_a_training_that_cannot_be_continued(
    client: Client, trained: Path, name: str, value: str
):
    content = json.loads((trained / "run.json").read_text())
    (content if name == "dataset" else content["settings"])[name] = value
    (trained / "run.json").write_text(json.dumps(content))
    query = urlencode({"dag_id": "image_training", "run_id": "run"})
    changes = client.get(f"/data?{query}", with_cookie("user", "us")).json()["status"]["changes"]
    assert (changes["need_dataset"], "prepare" in dict(changes["values"])) == ([], False)
    assert "prefetch_batches" in dict(changes["values"])


def test_a_dag_that_builds_no_dataset_starts_no_run_that_continues(client: Client, training: Path):
    editor = with_cookie("user", "us")
    changes = shown(client, editor)
    assert changes["need_dataset"] == []
    token = changes["token"]
    address = f"/continuation?{urlencode({'dag_id': 'ours', 'run_id': 'run'})}"
    answer = client.post(address, {**editor, "X-Tenfold-Token": token}, b'{"values": {"prepare": "resize"}}')
    assert (answer.status_code, "a run of ours builds no dataset" in answer.json()["detail"]) == (409, True)


def test_a_dag_with_a_zero_byte_in_its_id_is_unknown(client: Client, training: Path):
    editor = with_cookie("user", "us")
    query = urlencode({"dag_id": "ours\0", "run_id": "run"})
    body = json.dumps({"values": {"prefetch_batches": "16"}}).encode()
    assert client.post(f"/change?{query}", {**editor, "X-Tenfold-Token": "0"}, body).status_code == 403


def test_airflow_is_never_asked_about_an_id_with_a_zero_byte():
    """PostgreSQL takes none, and the check would end in an error."""
    from fastapi import Request

    from plugins.training_monitor.changes import without_zero_byte

    def asked(query: bytes) -> dict[str, str]:
        return dict(without_zero_byte(Request({"type": "http", "query_string": query})).query_params)

    assert asked(b"dag_id=a%00b&run_id=1") == {}
    assert asked(b"dag_id=ab&run_id=1") == {"dag_id": "ab", "run_id": "1"}


def test_without_a_session_cookie_there_is_no_token(client: Client, training: Path):
    who = logged_in("user", "us")
    assert shown(client, who)["token"] == ""
    guessed = hmac.new(b"", b"ours\nrun", "sha256").hexdigest()
    for token in ("", guessed):
        assert requested(client, who, token, prefetch_batches="16").status_code == 403
    assert load_changes(training) == []


def test_a_silent_bucket_does_not_hold_a_change(
    client: Client, training: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
):
    from tests.plugins.airflow_runs import add_run

    gcs.put_folder("bucket", "runs/far/", training)
    add_run("ours", "far", "gs://bucket/runs/far", state="running")
    editor = with_cookie("user", "us")
    query = urlencode({"dag_id": "ours", "run_id": "far"})
    token = client.get(f"/data?{query}", editor).json()["status"]["changes"]["token"]
    stall = gcs.fail("stall", times=None)
    monkeypatch.setattr("pipeline.watch.questions.PATIENCE_S", 0.2)
    try:
        answer = requested(client, editor, token, run_id="far", prefetch_batches="16")
        assert answer.status_code == 503
        assert "gs://bucket has not answered" in answer.json()["detail"]
        assert "may still be stored" in answer.json()["detail"]
    finally:
        stall.release()
    place = place_of("gs://bucket/runs/far")
    until(lambda: [each.value for each in load_changes(place)] == [16])


def test_a_silent_bucket_does_not_hold_the_run_that_continues_a_training(
    client: Client, trained: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
):
    from tests.plugins.airflow_runs import add_run

    gcs.put_folder("bucket", "w/runs/far/x/", trained)
    add_run("image_training", "far", "gs://bucket/w/runs/far/x", state="running")
    editor = with_cookie("user", "us")
    token = token_for(client, editor, "far")
    stall = gcs.fail("stall", times=None)
    monkeypatch.setattr("pipeline.watch.questions.PATIENCE_S", 0.2)
    try:
        answer = asked(client, editor, token, "far", prepare="resize")
        assert answer.status_code == 503
        assert answer.json()["detail"].endswith(". Nothing has changed: try again later")
    finally:
        stall.release()
