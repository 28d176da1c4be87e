"""From any thread to all sinks: a bounded queue and one writer thread, so that order is kept and nobody waits."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from pipeline.monitor.row import Row, Sink, steady_clock

log = logging.getLogger(__name__)


class Reporter:
    """Hands rows to ``sinks`` in the order they came.

    ``dropped`` counts rows that found the queue full. ``errors`` holds the first error of each sink that raised,
    by the name of its class; it is logged when it comes, and the other sinks go on.
    """

    def __init__(self, sinks: Sequence[Sink], capacity: int = 10_000, clock: Callable[[], float] | None = None) -> None:
        self.dropped = 0
        self.errors: dict[str, str] = {}
        self._sinks = tuple(sinks)
        self._clock = clock or steady_clock()
        self._rows: queue.Queue[Row] = queue.Queue(capacity)
        self._counting = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="monitor-writer", daemon=True)
        self._thread.start()

    def report(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Queue a row with the time of now. Never blocks and never raises: a full queue costs the row, counted."""
        try:
            self._rows.put_nowait(Row(kind, self._clock(), step, dict(values)))
        except queue.Full:
            with self._counting:  # sampler and training loop may both be here
                self.dropped += 1

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until all that is queued is written, for at most ``timeout`` seconds, and return whether it is."""
        with self._rows.all_tasks_done:
            return self._rows.all_tasks_done.wait_for(lambda: not self._rows.unfinished_tasks, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write what is queued, for at most ``timeout`` seconds; what is left then is counted and said."""
        self._closing.set()
        self._thread.join(timeout)
        left = self._rows.qsize()
        if self.dropped or left:
            log.warning("monitor: %d rows were not written: the sinks were too slow", self.dropped + left)

    def _write_all(self) -> None:
        while not (self._closing.is_set() and self._rows.empty()):
            try:
                row = self._rows.get(timeout=0.1)
            except queue.Empty:
                continue
            self._write(row)
            self._rows.task_done()

    def _write(self, row: Row) -> None:
        for sink in self._sinks:
            try:
                sink.write(row)
            except Exception as error:  # noqa: BLE001 - a sink is another's code: full disk, service away, defect
                self._note(type(sink).__name__, error)

    def _note(self, sink: str, error: Exception) -> None:
        if sink not in self.errors:
            self.errors[sink] = f"{type(error).__name__}: {error}"
            log.warning("monitor: %s failed, the others go on: %s", sink, self.errors[sink])
