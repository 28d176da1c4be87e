"""An Airflow as a team has it, as processes of this machine, for tests and benchmarks. It stands for Compose.

Tasks run on Celery workers. The database is PostgreSQL, and the broker is Redis. `servers.py` has their addresses.
"""
