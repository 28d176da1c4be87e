"""A request to stop. The training obeys it in time, even while its main thread is within TensorFlow."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import NoReturn

from pipeline.errors import Preempted
from pipeline.runs.run import EXIT_PREEMPTED
from pipeline.training.tensorflow_start import remove_generated_files

NOTICE_S = 12.0
"""The main thread has this many seconds to notice the request. A compilation or an export can take longer."""
REPORT_S = 3.0
"""Time limit in seconds for telling the other servers. A shared folder may hang."""
_log = logging.getLogger(__name__)


class Stage(Enum):
    """What is lost if the process ends now."""

    STARTING = auto()
    """Nothing, because this attempt has taken no step: it ends at once."""
    WORKING = auto()
    """The steps since the last checkpoint: the main thread gets NOTICE_S to stop by itself."""
    SAVING = auto()
    """A checkpoint. It may take as long as it needs. The process that sent the signal limits this time."""


class Stop:
    """A request to stop: the event `requested`. After `obey_sigterm`, that signal sets it."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._changed, self._stage = threading.Condition(), Stage.WORKING
        self.before_the_end: Callable[[Preempted], object] = lambda reason: None
        """Called before a thread ends the process, for at most REPORT_S."""

    def obey_sigterm(self) -> None:
        """From now on, a thread ends this process with EXIT_PREEMPTED if its main thread does not stop in time.

        Only the main thread can call this.
        """
        # Python calls no handler while the main thread is within TensorFlow, but it writes the number of the signal.
        signal.signal(signal.SIGTERM, lambda *_: None)
        reader, writer = os.pipe()
        # Python requires a wakeup file that does not block.
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for work in (partial(self._read_signals, reader), self._end_in_time):
            threading.Thread(target=work, name="stop", daemon=True).start()

    def enter(self, stage: Stage) -> None:
        """Note what would be lost from now on. Blocks if the process is already ending, so that no save begins."""
        with self._changed:
            self._stage = stage
            self._changed.notify_all()

    def _read_signals(self, reader: int) -> None:
        # Python writes the numbers of all signals that have a handler, such as SIGINT.
        while os.read(reader, 1)[0] != signal.SIGTERM:
            pass
        self.requested.set()

    def _wait_for_main_thread(self) -> None:
        """Return if nothing would be lost, or if the main thread neither stops nor saves for NOTICE_S."""
        while self._changed.wait_for(lambda: self._stage is not Stage.WORKING, NOTICE_S):
            if self._stage is Stage.STARTING:
                return
            self._changed.wait_for(lambda: self._stage is not Stage.SAVING)

    def _end_in_time(self) -> None:
        self.requested.wait()
        # The lock is held to the end, so that the main thread cannot begin to save.
        with self._changed:
            self._wait_for_main_thread()
            doing = "before its first step" if self._stage is Stage.STARTING else "during work that takes long"
            reason = Preempted(f"the training was asked to stop {doing}")
            # Before the log line, which could wait for a main thread that is stuck in one.
            timer = threading.Timer(REPORT_S, os._exit, [EXIT_PREEMPTED])
            timer.daemon = True
            timer.start()
            _log.warning("%s: run again to continue from the last checkpoint", reason)
            try:
                self.before_the_end(reason)
            finally:
                end_process(EXIT_PREEMPTED)


def end_process(code: int) -> NoReturn:
    """End this process without waiting for its threads: one of them may wait for a stalled bucket."""
    remove_generated_files()
    logging.shutdown()
    os._exit(code)
