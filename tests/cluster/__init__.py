"""The DAGs on PostgreSQL, Redis and Celery workers. The tests need both servers.

`standins/cluster/servers.py` has their addresses.
"""
