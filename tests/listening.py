"""Where processes take connections."""

from collections.abc import Sequence

import psutil


def addresses(processes: Sequence[psutil.Process]) -> set[str]:
    """The addresses that some processes listen on."""
    return {
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
