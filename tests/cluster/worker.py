"""The names of workers in tests."""

import os
import socket


def worker_name() -> str:
    """Return the worker name, as `hostname_callable` of Airflow. The host name is the same for all workers."""
    return os.environ.get("TENFOLD_TEST_WORKER") or socket.gethostname()
