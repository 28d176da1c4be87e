"""The names of workers on one machine."""

import os
import socket

VARIABLE = "TENFOLD_TEST_WORKER"


def worker_name() -> str:
    """Return the worker name, as `hostname_callable` of Airflow. The host name is the same for all workers."""
    return os.environ.get(VARIABLE) or socket.gethostname()
