"""A deadline for a whole request, with everything that is sent and received.

The timeouts of `requests` limit each wait for bytes: a server that sends one byte every two seconds holds a read
forever. One thread watches all current requests, and shuts down the connection of a request that is over its deadline.
The client then fails as if the server had hung up.
"""

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from urllib3.connection import HTTPConnection

from pipeline.storage.urllib3_internals import shut_down

TICK_S = 1.0
"""The thread checks the current requests at this interval in seconds."""
IDLE_S = 5.0
"""The thread ends after this many seconds without a request. The next request starts another thread."""
_log = logging.getLogger(__name__)


class TooSlow(TimeoutError):
    """A request was not done by its deadline, although bytes moved."""


# With `eq`, a mutable dataclass could not be an element of a set.
@dataclass(eq=False)
class _Work:
    """The work of one thread, which may take `seconds`, until a deadline by the monotonic clock in seconds."""

    seconds: float
    deadline: float
    is_over: bool = False
    connection: HTTPConnection | None = None
    """The connection on which the thread sent its last request."""


class RequestWatch:
    """Watches the requests of any number of threads."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._changed = threading.Condition()
        self._under_way: set[_Work] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give all requests that this thread sends in the block a deadline, in seconds. Raises TooSlow after it.

        Blocks may be nested. An inner block ends with the outer block at the latest.
        """
        work, before = _Work(seconds, time.monotonic() + seconds), self._current_work()
        if before and before.deadline < work.deadline:
            work.seconds, work.deadline = before.seconds, before.deadline
        with self._changed:
            self._under_way.add(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            self._changed.notify()
        self._of_thread.work = work
        try:
            yield
        # Only an error can become TooSlow. Work that ends without one is done, even if it is late.
        except Exception as error:
            if work.is_over:
                raise TooSlow(f"no answer within {work.seconds:.1f} s") from error
            raise
        finally:
            with self._changed:
                self._under_way.discard(work)
            # The outer block goes on with its own deadline.
            self._of_thread.work = before

    def is_over(self) -> bool:
        """Whether the deadline of this thread's requests has passed, so that no request should be sent again."""
        work = self._current_work()
        return work is not None and work.is_over

    def limit_s(self) -> float:
        """Return how many seconds the requests of this thread may take in all; infinity without a deadline."""
        work = self._current_work()
        return work.seconds if work else math.inf

    def seconds_left(self) -> float:
        """Return how many of these seconds are left, at least 0."""
        work = self._current_work()
        return max(0.0, work.deadline - time.monotonic()) if work else math.inf

    def set_connection(self, connection: HTTPConnection) -> None:
        """Set the connection that this thread uses from now on."""
        work = self._current_work()
        # `_hang_up` reads this to tell whether another thread has the connection by now.
        connection.user = work  # type: ignore[attr-defined]
        if work:
            work.connection = connection

    def _current_work(self) -> _Work | None:
        return getattr(self._of_thread, "work", None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._under_way, IDLE_S):
                    # Without this end, the thread of every client that was ever made would stay.
                    self._thread = None
                    return
                now = time.monotonic()
                # Under the lock, no request in the set is done. A late request stays in the set, because the client may
                # continue on another connection, which must be shut down too.
                for work in self._under_way:
                    if work.deadline <= now:
                        _hang_up(work)
            # The thread sleeps outside of the lock: with it, each request would wait up to a second to begin or end.
            time.sleep(TICK_S)


def _hang_up(work: _Work) -> None:
    work.is_over = True
    connection = work.connection
    # A connection returns to its pool after an answer, and another thread may use it by now.
    if connection is None or getattr(connection, "user", None) is not work:
        return
    try:
        shut_down(connection)
    except OSError:
        pass  # The server was quicker.
    except Exception:  # noqa: BLE001 - an error here would end the thread that watches all requests
        _log.exception("a request over its deadline cannot be stopped")
