"""Passes rows from any thread to all sinks: a bounded queue and one writer thread keep the order, and nobody waits."""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

from pipeline.monitor.row import Row, Sink, steady_clock

GATHER_S = 1.0
"""Rows that come within this time are written together.

Waking up for each step took three times as much as writing it, and waking up for each of five samples a second took
three times as much as for all of a second. SIGKILL loses no more than this, and a power loss not much more, because
`sync` follows at once.
"""
_log = logging.getLogger(__name__)


class _Closable(Protocol):
    def close(self) -> None: ...


_Sink = TypeVar("_Sink", bound=_Closable)


@contextmanager
def closing_sink(sink: _Sink) -> Iterator[_Sink]:
    """Close a sink after the block. If the disk is full then, its last rows are lost, with a warning.

    The training must not fail for its last rows.
    """
    try:
        yield sink
    finally:
        try:
            sink.close()
        except OSError as error:
            _log.warning("monitor: %s could not write its last rows: %s", type(sink).__name__, error)


class Reporter:
    """Passes rows to `sinks` in the order in which they came.

    `dropped` counts the rows that found the queue full. `errors` has the first error of each sink that raised, by the
    name of its class. That error is logged at once, and the other sinks go on. At the end, the number of rows that
    the sink refused is logged.

    Args:
        sinks: Get every row.
        capacity: Maximum number of rows in the queue.
        clock: The time of a row, in Unix seconds.
        sync: Brings all written rows to the disk. Called when no row is left in the queue.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        capacity: int = 10_000,
        clock: Callable[[], float] | None = None,
        sync: Callable[[], None] = lambda: None,
    ) -> None:
        self.dropped = 0
        self.errors: dict[str, str] = {}
        self._refused: Counter[str] = Counter()
        self._sinks = tuple(sinks)
        self._sync = sync
        self._clock = clock or steady_clock()
        self._rows: queue.Queue[Row | None] = queue.Queue(capacity)
        self._counting = threading.Lock()
        self._queued = self._wanted = self._synced = 0
        """Rows in the order of the queue: those that came, those that a flush waits for, and those on the disk."""
        self._reached_disk = threading.Condition(self._counting)
        self._hurry = threading.Event()
        # A daemon: a sink that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._write_all, name="monitor-writer", daemon=True)
        self._thread.start()

    def report(self, kind: str, step: int, values: Mapping[str, float], ago_s: float = 0.0) -> None:
        """Queue a row whose values were taken `ago_s` seconds ago.

        Never blocks and never raises: a full queue drops the row.
        """
        try:
            # A copy of the values, which the caller may change before the row is written.
            row = Row(kind, self._clock() - ago_s, step, dict(values))
            with self._counting:  # The sampler and the training loop may both be here.
                self._rows.put_nowait(row)
                self._queued += 1
        except queue.Full:
            with self._counting:
                self.dropped += 1

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until all rows that are queued now are on the disk, and return whether they are.

        It waits for at most `timeout` seconds, and for no row that comes later: short steps report rows faster than a
        disk syncs them, so a checkpoint would wait until the steps pause.
        """
        with self._reached_disk:
            wanted = self._wanted = self._queued
            self._hurry.set()
            return self._reached_disk.wait_for(lambda: self._synced >= wanted, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write the queued rows, for at most `timeout` seconds. The number of rows that are left then is logged."""
        deadline = time.monotonic() + timeout
        self._hurry.set()
        with suppress(queue.Full):  # It was full for this long, so a sink must hang.
            self._rows.put(None, timeout=timeout)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        # None, which ends the thread, is no row.
        left = sum(row is not None for row in tuple(self._rows.queue))
        if self.dropped or left:
            _log.warning("monitor: %d rows were not written, because the sinks were too slow", self.dropped + left)
        for sink, count in self._refused.items():
            _log.warning("monitor: %s did not take %d rows. The first reason: %s", sink, count, self.errors[sink])

    def _write_all(self) -> None:
        written = 0
        # A row wakes this thread. Looking for rows at intervals would cost as much as writing them.
        while (row := self._rows.get()) is not None:
            self._write(row)
            written += 1
            if self._rows.empty() or self._synced < self._wanted <= written:
                self._bring_to_disk()
                with self._reached_disk:
                    self._synced = written
                    self._reached_disk.notify_all()
            if self._rows.empty():
                self._hurry.wait(GATHER_S)
                self._hurry.clear()

    def _write(self, row: Row) -> None:
        for sink in self._sinks:
            try:
                sink.write(row)
            except Exception as error:  # noqa: BLE001 - a sink may be the code of a user, and raise anything
                name = type(sink).__name__
                self._refused[name] += 1
                if name not in self.errors:
                    self.errors[name] = f"{type(error).__name__}: {error}"
                    _log.warning("monitor: %s failed, and the other sinks continue: %s", name, self.errors[name])

    def _bring_to_disk(self) -> None:
        try:
            self._sync()
        except OSError as error:
            if "sync" not in self.errors:
                self.errors["sync"] = f"{type(error).__name__}: {error}"
                _log.warning("monitor: the record cannot be synced, so a power loss could lose rows: %s", error)
