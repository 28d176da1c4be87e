"""The plugin does not change triggers of other DAGs. The first task logs the slots that training servers need."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

with warnings.catch_warnings(action="ignore"):  # It recommends another HTTP client.
    from starlette.testclient import TestClient

from pipeline.config.allowed import ALL, SOURCES
from tests.conftest import MakeImages
from tests.dags.conftest import RunDag

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings
OTHER_DAG, BACKFILLS = "/api/v2/dags/other/dagRuns", "/api/v2/backfills"
NESTED = b"[" * 100_000
DATES = b'"from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-02T00:00:00Z"'


@pytest.fixture(scope="module")
def server(airflow_database: None) -> Iterator[TestClient]:
    """The API server of Airflow with the plugin. TENFOLD_SETTINGS names a file that does not exist."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENFOLD_SETTINGS", "/not/there.toml")
        with TestClient(create_app(apps="core"), raise_server_exceptions=False) as client:
            yield client
    purge_cached_app()


@pytest.mark.long
@pytest.mark.parametrize(
    ("servers", "slots", "message"),
    [
        (
            3,
            "2",
            (
                "num_training_servers=3 needs 3 slots of the pool 'gpu' at the same time, but the pool was created "
                "with TENFOLD_TRAININGS_AT_ONCE=2"
            ),
        ),
        (2, "2", ""),
        (3, "", "num_training_servers=3 needs 3 slots of the pool 'gpu' at the same time"),
        (1, "", ""),
    ],
)
def test_the_first_task_logs_the_number_of_servers_and_slots(
    run_dag: RunDag,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    servers: int,
    slots: str,
    message: str,
):
    """The warning comes before an image is listed. The run ends there, because there are no images."""
    monkeypatch.setenv("TENFOLD_TRAININGS_AT_ONCE", slots)
    conf = {"source_uri": "/not/there", "num_training_servers": servers, "batch_size": 8 * servers}
    with caplog.at_level(logging.WARNING, "dags.tasks"):
        ran = run_dag("image_training", conf)
    assert ran.tasks["extract"] == "failed"
    messages = [record.getMessage() for record in caplog.records if record.name == "dags.tasks"]
    assert [each[: len(message)] for each in messages] == ([message] if message else [])


@pytest.mark.long
def test_runs_are_refused_until_the_administrator_allows_their_source(
    run_dag: RunDag,
    make_images: MakeImages,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    for setting in ALL:
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv("TENFOLD_WORKSPACE", str(tmp_path / "workspace"))
    source = make_images({"cats": 4, "dogs": 4})
    ran = run_dag("image_dataset", {"source_uri": str(source)})
    assert (ran.state, ran.tasks["extract"], ran.tries["extract"]) == ("failed", "failed", 1)
    assert f"source_uri '{source}' is outside what {SOURCES} allows (nothing)" in capsys.readouterr().out
    monkeypatch.setenv(SOURCES, str(source))
    assert run_dag("image_dataset", {"source_uri": str(source)}).state == "success"


def test_the_plugin_adds_no_middleware_to_airflow():
    from plugins.tenfold import TenfoldPlugin

    assert not TenfoldPlugin.fastapi_root_middlewares


@pytest.mark.core
@pytest.mark.parametrize(
    ("address", "body"),
    [
        (OTHER_DAG, b'{"logical_date": null, "conf": {}}'),
        (OTHER_DAG, b'{"logical_date": null, "conf": {"num_training_servers": Infinity}}'),
        (OTHER_DAG, NESTED),
        (BACKFILLS, b'{"dag_id": "other", "dag_run_conf": {"num_training_servers": Infinity}, ' + DATES + b"}"),
        (BACKFILLS, NESTED),
    ],
    ids=["run", "infinity", "nested", "backfill", "nested backfill"],
)
def test_invalid_triggers_of_other_dags_get_a_client_error(server: TestClient, address: str, body: bytes):
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="admin", role="admin"))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    assert server.post(address, content=body, headers=headers).status_code in (400, 404, 422)
