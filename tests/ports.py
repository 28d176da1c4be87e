"""A port that no other test has."""

import fcntl
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scripts.ports import HOST, is_taken

PORTS = range(20_000, 30_000)
"""Below the ports that the kernel gives to programs that do not choose one."""
LOCKS = Path(tempfile.gettempdir()) / f"tenfold-test-ports-{os.getuid()}"
_locked: list[int] = []
"""Descriptor of a locked file for each port of this process. The end of the process unlocks it."""


def own_port(ports: Iterable[int] = PORTS, folder: Path = LOCKS) -> int:
    """Return a free port of the loopback interface. No other process of tests gets it while this one runs.

    Args:
        ports: Ports to choose from.
        folder: Has a locked file for each port of a process. All processes must give the same folder.
    """
    folder.mkdir(exist_ok=True)
    for port in ports:
        file = os.open(folder / str(port), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        _locked.append(file)
        if not is_taken(port):
            return port
    raise RuntimeError(f"{HOST} has no free port in {ports}")
