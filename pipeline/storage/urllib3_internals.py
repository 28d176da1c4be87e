"""What `pipeline/` uses of urllib3, and of the adapters of `requests` above it, beyond their documented interface.

Seen in urllib3 2.8.0 and requests 2.34.2. `tests/storage/test_urllib3_internals.py` fails if an upgrade changes any of
it. Nothing else in `pipeline/` may touch undocumented parts of these libraries.
"""

import socket
from collections.abc import Callable
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import PoolManager


class ReportingAdapter(HTTPAdapter):
    """An adapter of `requests` that reports the connection of each request, in the thread that sends the request.

    A pool manager makes its pools from its attribute `pool_classes_by_scheme`, and a pool makes its connections from
    its attribute `ConnectionCls`. Neither `requests` nor urllib3 has an argument for these.

    `report` is called with a connection before it sends a request. `options` are those of `HTTPAdapter`.
    """

    def __init__(self, report: Callable[[HTTPConnection], None], **options: Any) -> None:
        self._pool_classes = _reporting_pools(report)
        super().__init__(**options)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Make the manager of the connections without a proxy."""
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = self._pool_classes

    def proxy_manager_for(self, proxy: Any, **options: Any) -> PoolManager:
        """Return the manager of the connections through a proxy."""
        manager: PoolManager = super().proxy_manager_for(proxy, **options)
        manager.pool_classes_by_scheme = self._pool_classes
        return manager


def _reporting_pools(report: Callable[[HTTPConnection], None]) -> dict[str, type[HTTPConnectionPool]]:
    class Connection(HTTPConnection):
        def request(self, *arguments: Any, **options: Any) -> None:
            report(self)
            super().request(*arguments, **options)

    class SecureConnection(HTTPSConnection):
        def request(self, *arguments: Any, **options: Any) -> None:
            report(self)
            super().request(*arguments, **options)

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": Pool, "https": SecurePool}


def shut_down(connection: HTTPConnection) -> None:
    """End the request on a connection from another thread, as if the server had hung up.

    A connection has its socket in `sock`, and None there if it is closed. TLS to a server through TLS to a proxy is an
    `SSLTransport`, which is no socket and has the inner one in its attribute `socket`.

    Raises:
        OSError: The connection has ended already.
    """
    sock: Any = connection.sock
    while sock is not None and not isinstance(sock, socket.socket):
        sock = getattr(sock, "socket", None)
    if sock is not None:
        # Not the method of a TLS socket: it would take the encryption away below the thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
