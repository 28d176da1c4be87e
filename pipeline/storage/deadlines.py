"""A deadline for a request as a whole, with all that is sent and received.

The timeouts of `requests` hold for each wait for bytes: a server that sends one every two seconds holds a read forever.
One thread watches all requests under way, and shuts down the connection of one that is over its deadline. The client
then fails as if the server had hung up.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

from pipeline.storage.urllib3_internals import ReportingAdapter, shut_down

TICK_S = 1.0
"""How often the requests under way are looked at."""
IDLE_S = 5.0
"""How long the thread waits for a request before it ends. The next request starts another one."""
_log = logging.getLogger(__name__)


class TooSlow(TimeoutError):
    """A request was not done by its deadline, although bytes moved."""


@dataclass(eq=False)
class _Work:
    """The work of one thread until a deadline, by the monotonic clock in seconds."""

    deadline: float
    is_over: bool = False
    connection: HTTPConnection | None = None
    """What the thread sent its last request on."""


class RequestWatch:
    """Watches the requests of any number of threads."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._changed = threading.Condition()
        self._under_way: set[_Work] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give all requests that this thread sends in the block a deadline, in seconds. Raises TooSlow after it."""
        work, before = _Work(time.monotonic() + seconds), self._current_work()
        self._add(work)
        self._of_thread.work = work
        try:
            yield
        except Exception as error:
            if work.is_over:
                raise TooSlow(f"no answer within {seconds:.1f} s") from error
            raise
        finally:
            with self._changed:
                self._under_way.discard(work)
            self._of_thread.work = before

    def is_over(self) -> bool:
        """Whether the deadline of this thread's requests has passed: then it is of no use to send one again."""
        work = self._current_work()
        return work is not None and work.is_over

    def adapter(self, **options: Any) -> HTTPAdapter:
        """Return an adapter of `requests` whose connections are watched; `options` are those of HTTPAdapter."""
        return ReportingAdapter(self.set_connection, **options)

    def set_connection(self, connection: HTTPConnection) -> None:
        """Set the connection that this thread uses from now on."""
        work = self._current_work()
        connection.user = work  # type: ignore[attr-defined]
        if work:
            work.connection = connection

    def _current_work(self) -> _Work | None:
        return getattr(self._of_thread, "work", None)

    def _add(self, work: _Work) -> None:
        with self._changed:
            self._under_way.add(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._under_way, IDLE_S):
                    self._thread = None  # else a thread of each client that there ever was would stay
                    return
                now = time.monotonic()
                # Under the lock: a request that is done is not in the set. A late one stays there, because the client
                # may go on with a request on another connection.
                for work in self._under_way:
                    if work.deadline <= now:
                        _hang_up(work)
            time.sleep(TICK_S)


def _hang_up(work: _Work) -> None:
    work.is_over = True
    connection = work.connection
    # A connection goes back to its pool after an answer, and another thread may use it since then.
    if connection is None or getattr(connection, "user", None) is not work:
        return
    try:
        shut_down(connection)
    except OSError:
        pass  # The server was quicker.
    except Exception:  # noqa: BLE001 - an error here would end the thread that watches all requests
        _log.exception("a request over its deadline cannot be stopped")
