"""What a worker of a test is called."""

import os
import socket


def worker_name() -> str:
    """Airflow's `hostname_callable`: the machine's name would not tell a test's workers apart."""
    return os.environ.get("TENFOLD_TEST_WORKER") or socket.gethostname()
