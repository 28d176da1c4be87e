"""Ports of this machine. Uses only the standard library, because hosts of Compose need not have an environment."""

import errno
import socket

HOST = "127.0.0.1"
HIGHEST = 65_535


def is_taken(port: int) -> bool:
    """Whether another program listens on a port of the loopback interface."""
    return _error_of(port) == errno.EADDRINUSE


def is_forbidden(port: int) -> bool:
    """Whether this user may not open a port. Docker may: it opens its ports itself."""
    return _error_of(port) == errno.EACCES


def _error_of(port: int) -> int | None:
    """Return the error number of an attempt to open a port; 0 if it can be opened."""
    with socket.socket() as probe:
        # Servers set this, too: a port that a program has just left counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.errno
    return 0


def port_of(text: str) -> int:
    """Return the port that a text names. Raises ValueError if it names none."""
    if not text.isdecimal() or not 1 <= int(text) <= HIGHEST:
        raise ValueError(f"TENFOLD_PORT must be a port from 1 to {HIGHEST}, got {text!r}")
    return int(text)
