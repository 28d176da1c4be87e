"""Airflow for the tests of the plugin. Some read its database without starting Airflow itself."""

import pytest

from tests.airflow_home import make_database


@pytest.fixture(scope="module")
def airflow_database() -> None:
    """The tables of Airflow without rows of other tests, such as DAGs that ran in this process before."""
    make_database()
    from tests.plugins.airflow_runs import remove_all

    remove_all()
