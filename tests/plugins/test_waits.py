"""The tab of a run while its training waits for the pool."""

from collections.abc import Iterator

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


def waiting_for() -> str:
    from plugins.training_monitor.runs import find_run

    run = find_run("ours", "run 1")
    assert run is not None
    return run.waiting_for


def test_the_tab_names_a_missing_pool_and_the_command_that_creates_it(waiting: None):
    """Airflow leaves the task in the state scheduled, and reports that only in the scheduler's log."""
    from airflow.models.pool import Pool

    message = waiting_for()
    assert "train waits for the pool 'gpu', which does not exist" in message
    assert 'airflow pools set gpu 1 "trainings at once"' in message
    Pool.create_or_update_pool("gpu", slots=1, description="", include_deferred=False)
    assert waiting_for() == ""
    Pool.create_or_update_pool("gpu", slots=0, description="", include_deferred=False)
    assert "needs 1 slot of the pool 'gpu', but the pool has 0" in waiting_for()
