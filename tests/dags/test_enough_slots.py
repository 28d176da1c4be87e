"""A run whose servers could never all start is refused by the api-server, by whatever way it is asked for."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

with warnings.catch_warnings(action="ignore"):  # of another HTTP client that it would rather have
    from starlette.testclient import TestClient

pytestmark = pytest.mark.filterwarnings("default")  # Airflow warns itself of much
RUNS, BACKFILLS = "/api/v2/dags/image_training/dagRuns", "/api/v2/backfills"


@pytest.fixture(scope="module")
def server(airflow_database: None) -> Iterator[TestClient]:
    """Airflow's own api-server, with the plugin, and a pool of one slot."""
    from airflow.api_fastapi.app import create_app, purge_cached_app
    from airflow.models.pool import Pool

    Pool.create_or_update_pool("gpu", slots=1, description="", include_deferred=False)
    with TestClient(create_app(apps="core")) as client:
        yield client
    purge_cached_app()


@pytest.fixture
def log_in(server: TestClient) -> dict[str, str]:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="admin", role="admin"))
    return {"Authorization": f"Bearer {token}"}


def trigger(servers: Any) -> dict[str, Any]:
    return {"logical_date": None, "conf": {"num_training_servers": servers}}


@pytest.mark.parametrize(
    ("address", "body"),
    [
        (RUNS, trigger(2)),
        ("/api/v2/dags/retrain/dagRuns", trigger("3")),
        (BACKFILLS, {"dag_id": "image_training", "dag_run_conf": {"num_training_servers": 2}}),
    ],
)
def test_more_servers_than_slots_are_refused(
    server: TestClient, log_in: dict[str, str], address: str, body: dict[str, Any]
):
    answer = server.post(address, json=body, headers=log_in)
    assert answer.status_code == 400
    assert "slots of the pool 'gpu', which has 1: give it more under Admin, Pools" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("address", "body"),
    [
        (RUNS, trigger(1)),
        (RUNS, {"logical_date": None, "conf": {}}),
        (RUNS, trigger("many")),  # the form itself says what is wrong with that
        ("/api/v2/dags/image_dataset/dagRuns", trigger(2)),
        (RUNS, []),
        (BACKFILLS, {"dag_id": "other", "dag_run_conf": {"num_training_servers": 2}}),
    ],
)
def test_all_else_is_left_to_airflow(
    server: TestClient, log_in: dict[str, str], address: str, body: dict[str, Any] | list[Any]
):
    answer = server.post(address, json=body, headers=log_in)
    assert "slots" not in answer.text
    assert answer.status_code in (404, 422)  # no DAG was parsed here; it got the body whole


def test_whoever_is_not_logged_in_learns_nothing(server: TestClient):
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = server.post(RUNS, json=trigger(2), headers=headers)
        assert answer.status_code in (401, 403)
        assert "slots" not in answer.text


@pytest.mark.parametrize("slots", [-1, 2])
def test_a_pool_that_has_enough_lets_it_pass(server: TestClient, log_in: dict[str, str], slots: int):
    from airflow.models.pool import Pool

    Pool.create_or_update_pool("gpu", slots=slots, description="", include_deferred=False)
    assert server.post(RUNS, json=trigger(2), headers=log_in).status_code == 404
    Pool.create_or_update_pool("gpu", slots=1, description="", include_deferred=False)
