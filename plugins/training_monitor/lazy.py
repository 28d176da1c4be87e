"""An ASGI application that is built when it is first asked for something.

The scheduler, the workers and the dag-processor import plugins too, and have no use for a web server.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from threading import Lock
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Lazy:
    """Hands all calls on to what `build` made at the first one."""

    def __init__(self, build: Callable[[], App]) -> None:
        self._build = build
        self._app: App | None = None
        self._building = Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # In a thread: pandas and Bokeh take seconds to import, in which Airflow answers others.
        app = self._app or await asyncio.to_thread(self._built)
        await app(scope, receive, send)

    def _built(self) -> App:
        with self._building:
            self._app = self._app or self._build()
            return self._app


def monitor() -> App:
    """The pages, built."""
    from plugins.training_monitor.app import build

    return build()
