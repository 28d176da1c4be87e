"""The DAGs on PostgreSQL, Redis and Celery's workers; needs both servers (`servers.py` says where)."""
