"""The DAGs on PostgreSQL, Redis and Celery workers. The tests need both servers; `servers.py` has their addresses."""
