"""Addresses on which processes accept connections."""

from collections.abc import Sequence
from contextlib import suppress

import psutil


def addresses(processes: Sequence[psutil.Process]) -> set[str]:
    """Return the addresses that some processes listen on."""
    listening = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # A task may end in the meantime.
            connections = process.net_connections()
            listening |= {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    return listening
