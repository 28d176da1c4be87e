"""An ASGI application that is built at its first request.

The scheduler, the workers and the dag-processor import plugins too, and have no use for a web server.
"""

import asyncio
from pkgutil import resolve_name
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Lazy:
    """Passes each request to the application that a function returns. The first request imports and calls it.

    `build` names the function, as `package.module:function`.
    """

    def __init__(self, build: str) -> None:
        self._build = build
        self._app: ASGIApp | None = None
        self._building = Lock()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer a request, after building the application if this is the first one."""
        # In a thread, because importing pandas and Bokeh takes seconds, and Airflow must answer others meanwhile.
        app = await asyncio.to_thread(self._built) if self._app is None else self._app
        await app(scope, receive, send)

    def _built(self) -> "ASGIApp":
        # Several requests can come before the first one has built the application.
        with self._building:
            self._app = self._app or resolve_name(self._build)()
            return self._app
