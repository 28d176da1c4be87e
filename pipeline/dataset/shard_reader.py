"""Shards of a bucket as local copies for the training. Some threads fetch them ahead.

The reader knows the order in which the training needs the shards, and the training takes them in that order. Shards
that are fetched and not yet read to the end stay in the cache. Shards that were read make room.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.dataset.shard_cache import PinnedShard, RemoteShard, ShardCache
from pipeline.errors import Preempted, TenfoldError
from pipeline.storage import crc32c_of
from pipeline.system.os_errors import unless_missing

FETCH_THREADS = 4
MAX_COPIES = 64
"""At most this many copies are in use at once. Each has an open lock, and a process may open 1,024 files."""
POLL_S = 0.2
"""While the training waits for a shard, it checks for a requested stop at this interval in seconds."""
CLOSING_S = 5.0
"""The end of the reader waits at most this many seconds for all threads together."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Need:
    number: int
    """Position in the order of need, from 0."""
    name: str
    size: int
    """In bytes."""
    pinned: PinnedShard | None = None


class _Closed(Exception):
    """The reader was closed, so that nobody waits for the shard."""


class ShardReader:
    """Gives the copies of `shards` in `order`. As a context manager, it starts the threads and ends them.

    Args:
        cache: The copies on this host.
        shards: The shards by name.
        order: The names of the shards, in the order in which `take` is called.
        open_at_once: Number of shards that are read at once. These are fetched even if there is no room.
        room_bytes: Maximum bytes of the cache for the shards that are fetched ahead.
        stopping: Called while the training waits for a shard. Returns whether to stop.
    """

    def __init__(
        self,
        cache: ShardCache,
        shards: Mapping[str, RemoteShard],
        order: Iterator[str],
        open_at_once: int,
        room_bytes: int,
        stopping: Callable[[], bool],
    ) -> None:
        self._cache, self._shards, self._order = cache, shards, order
        self._open_at_once, self._room_bytes, self._stopping = open_at_once, room_bytes, stopping
        self._changed = threading.Condition()
        self._released = 0
        self._wanted_bytes = 0
        """Bytes of the shards that are being fetched, wait to be read, or are being read."""
        self._next: _Need | None = None
        self._planned: deque[_Need] = deque()
        self._in_use: dict[str, tuple[_Need | None, PinnedShard]] = {}
        self._closed = False
        self.failure: TenfoldError | None = None
        """The error after which no shard is given. TensorFlow would wrap it in an error of its own."""
        # Daemon threads: a thread that waits for a bucket must not delay the end of the process.
        self._threads = [
            threading.Thread(target=self._fetch_ahead, name=f"fill-{n}", daemon=True) for n in range(FETCH_THREADS)
        ]

    def __enter__(self) -> "ShardReader":
        self._next = self._need(0)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(CLOSING_S / FETCH_THREADS)
        with self._changed:
            # A thread that is still fetching releases its copy itself: see `_keep`.
            for pinned in (*(pinned for _, pinned in self._in_use.values()), *(need.pinned for need in self._planned)):
                if pinned:
                    pinned.release()
            self._in_use.clear()
            self._planned.clear()

    def take(self, name: str) -> Path:
        """Return the local copy of the next shard in the order, as soon as it exists. It stays until it is released.

        Raises the error of a thread that fetches, and Preempted if a stop is requested meanwhile.
        """
        with self._changed:
            while (pinned := self._next_pinned()) is None:
                # The wait has a time limit, because no thread signals that a stop is requested.
                self._changed.wait(POLL_S)
                if self._stopping():
                    self._fail(Preempted(f"the training was asked to stop while it waited for {name}"))
            need = self._planned.popleft()
            if need.name != name:
                raise ValueError(f"shards must be read in the planned order: {need.name} comes next, got {name}")
            self._in_use[name] = need, pinned
            return pinned.path

    def take_again(self, name: str) -> Path:
        """Return the local copy of a shard out of order. It is fetched again if it was removed."""
        try:
            pinned = self._cache.pin(self._shards[name], self._may_not_wait)
        except TenfoldError as error:
            self._fail(error)
            raise
        with self._changed:
            self._in_use[name] = None, pinned
        return pinned.path

    def release(self, name: str) -> None:
        """Report that a shard was read to its end."""
        with self._changed:
            self._release(name)
            self._changed.notify_all()

    def close_rest(self) -> None:
        """Report that no shard is being read at the moment. The balance of the classes may leave an end unread."""
        with self._changed:
            for name in list(self._in_use):
                self._release(name)
            self._changed.notify_all()

    def _release(self, name: str) -> None:
        need, pinned = self._in_use.pop(name)
        pinned.release()
        if need:
            self._released += 1
            self._wanted_bytes -= need.size

    def damaged_copy(self) -> str:
        """Return a text that names the first copy whose content differs from its shard; empty if there is none.

        All copies are read: TensorFlow continues to read after an error, and may have released the damaged copy.
        """
        with self._changed:
            taken = set(self._in_use)
        for name, shard in self._shards.items():
            path = self._cache.folder / shard.copy
            crc32c = unless_missing(partial(crc32c_of, path))
            if (crc32c is not None or name in taken) and crc32c != shard.stat.crc32c:
                return f"{path}, the copy of {shard.object},"
        return ""

    def _next_pinned(self) -> PinnedShard | None:
        if self.failure:
            raise self.failure
        if self._closed:
            raise _Closed
        return self._planned[0].pinned if self._planned else None

    def _fetch_ahead(self) -> None:
        try:
            while need := self._next_need():
                waiting = partial(self._may_wait, need)
                self._keep(need, self._cache.pin(self._shards[need.name], waiting))
        except _Closed:
            pass
        except TenfoldError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - after any error in this thread, the training would wait forever
            _log.exception("the shard cache failed")
            self._fail(TenfoldError(f"the shard cache failed: {error!r}"))

    def _next_need(self) -> _Need | None:
        with self._changed:
            self._changed.wait_for(self._may_begin)
            need = self._next
            if self._ended or need is None:
                return None
            self._planned.append(need)
            self._wanted_bytes += need.size
            self._next = self._need(need.number + 1)
            return need

    def _need(self, number: int) -> _Need | None:
        name = next(self._order, None)
        return None if name is None else _Need(number, name, self._shards[name].stat.st_size)

    def _may_begin(self) -> bool:
        """Whether to fetch the next shard now, in the order of need: none may take the room of an earlier one."""
        need = self._next
        # A shard that the training needs now is fetched even without room: otherwise, the training would wait forever.
        if self._ended or need is None or not self._can_do_without(need):
            return True
        fits = self._wanted_bytes + need.size <= self._room_bytes
        return fits and need.number - self._released < MAX_COPIES

    def _can_do_without(self, need: _Need) -> bool:
        """Whether the training can continue without this shard, because it reads only earlier shards at the moment."""
        return need.number - self._released >= self._open_at_once

    def _keep(self, need: _Need, pinned: PinnedShard) -> None:
        with self._changed:
            if self._closed:
                pinned.release()
                return
            need.pinned = pinned
            self._changed.notify_all()

    def _may_wait(self, need: _Need) -> bool:
        if self._ended:
            raise _Closed
        return self._can_do_without(need)

    def _may_not_wait(self) -> bool:
        if self._ended:
            raise _Closed
        if self._stopping():
            raise Preempted("the training was asked to stop while it waited for a shard")
        return False

    @property
    def _ended(self) -> bool:
        return self._closed or self.failure is not None

    def _fail(self, error: TenfoldError) -> None:
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
