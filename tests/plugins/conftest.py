"""Fixtures for tests of the plugin in a real Airflow."""

from tests.airflow_home import airflow_database

__all__ = ["airflow_database"]
