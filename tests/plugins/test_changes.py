"""A person changes a setting of a training on its tab: who may do it, and what a page of another site cannot do."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from pipeline.config.automatic import training_settings
from pipeline.runs.changes import load_changes
from pipeline.runs.files import OFFERS, RUN_FORMAT
from tests.plugins.test_trainings import Client, client, logged_in
from tests.report.rich import rich_run

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


def with_cookie(role: str, *teams: str) -> dict[str, str]:
    """Return the headers of a browser, which sends the session cookie."""
    return {"Cookie": f"_token={logged_in(role, *teams)['Authorization'].removeprefix('Bearer ')}"}


def shown(client: Client, who: dict[str, str]) -> dict[str, Any]:
    """Return what the tab knows about changes."""
    return client.get(f"/data?{urlencode({'dag_id': 'ours', 'run_id': 'run'})}", who).json()["status"]["changes"]


def requested(client: Client, who: dict[str, str], token: str, **content: str) -> httpx.Response:
    address = f"/change?{urlencode({'dag_id': 'ours', 'run_id': content.pop('run_id', 'run')})}"
    return client.post(address, {**who, "X-Tenfold-Token": token}, json.dumps(content).encode())


def test_a_person_who_may_edit_the_run_changes_a_setting(client: Client, training: Path):
    editor = with_cookie("user", "us")
    before = shown(client, editor)
    assert dict(before["values"])["prefetch_batches"] == 4
    assert before["sentences"] == []
    answer = requested(client, editor, before["token"], field="prefetch_batches", value="16")
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
    answer = requested(client, editor, token, field="prefetch_batches", value="many")
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "prefetch_batches must be a whole number, got 'many'",
    )
    assert load_changes(training) == []


def test_who_may_only_see_the_run_gets_no_token_and_changes_nothing(client: Client, training: Path):
    viewer, editor, stranger = with_cookie("viewer", "us"), with_cookie("user", "us"), with_cookie("user", "them")
    assert shown(client, viewer)["token"] == ""
    token = shown(client, editor)["token"]
    for who in (viewer, stranger):
        assert requested(client, who, token, field="prefetch_batches", value="16").status_code == 403
    assert requested(client, {}, token, field="prefetch_batches", value="16").status_code == 401
    assert load_changes(training) == []


def test_a_page_of_another_site_changes_nothing(client: Client, training: Path):
    """The browser sends the cookie with its request, but the page can read no token."""
    editor, other = with_cookie("user", "us"), with_cookie("admin", "us")
    theirs = shown(client, other)["token"]
    for token in ("", "0" * 64, theirs):
        assert requested(client, editor, token, field="prefetch_batches", value="16").status_code == 403
    assert load_changes(training) == []


def test_the_token_of_a_run_is_good_for_that_run_only(client: Client, training: Path):
    from tests.plugins.airflow_runs import add_run

    editor = with_cookie("user", "us")
    add_run("ours", "other", str(training), state="running")
    token = shown(client, editor)["token"]
    answer = requested(client, editor, token, run_id="other", field="prefetch_batches", value="16")
    assert answer.status_code == 403


def test_a_run_that_has_ended_does_not_change(client: Client, training: Path):
    from tests.plugins.airflow_runs import add_dag, add_run, remove_all

    remove_all()
    add_dag("ours", "us")
    add_run("ours", "run", str(training), state="failed")
    editor = with_cookie("user", "us")
    changes = shown(client, editor)
    assert changes["values"] == []
    answer = requested(client, editor, changes["token"], field="prefetch_batches", value="16")
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "the run has ended, so nothing can change in its training",
    )


def test_the_tab_offers_the_changes_that_the_training_predicts(client: Client, training: Path):
    editor = with_cookie("user", "us")
    offer = {"change": {"prefetch_batches": 16}, "words": "1.6 times faster (1.5 to 1.7)", "promised": [1.6, 1.5, 1.7]}
    other = {"change": {"batch_size": 64}, "words": "2 times", "promised": [2.0, 1.9, 2.1]}
    (training / OFFERS).write_text(json.dumps({"offers": [offer, other]}))
    before = shown(client, editor)
    assert before["offers"] == [[offer["words"], offer["change"]]]
    requested(client, editor, before["token"], field="prefetch_batches", value="16")
    assert shown(client, editor)["offers"] == []
    for damaged in ("[]", '{"offers": [1]}', '{"offers": [{"words": "x", "change": 1}]}', "no json"):
        (training / OFFERS).write_text(damaged)
        assert shown(client, editor)["offers"] == []
