"""Faults on request. Each counts how often it fired, for a fault that never fired proves nothing."""

import re
import threading
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["status", "reset", "stall", "lost", "broken", "corrupt", "drip", "damaged", "pause", "short"]
"""status: answers `code` instead, nothing is carried out. reset: the connection is reset, nothing is carried out.
stall: carried out, but the answer waits `seconds` (None: until released). lost: carried out, then reset instead of an
answer. broken: the connection ends in the middle of an answer. corrupt: one bit of a download's body is flipped, its
headers sound. damaged: something between cuts a download in the middle, as if that were all, after a flipped bit.
drip: carried out, but the answer comes byte by byte, with `seconds` between them.
pause: for `seconds`, no more is read of an upload; it is not carried out before.
short: carried out, but the answer ends after `after_bytes`, and its headers say that this is all.

With `after_bytes`, a chunk is kept up to there, in whole pieces of 256 KiB, before a status or a reset; an answer is
sent up to there before it is broken, lost or stalls; and so much of an upload is read before a pause."""

READING: tuple[Kind, ...] = ("pause",)
BEFORE: tuple[Kind, ...] = ("status", "reset")
AFTER: tuple[Kind, ...] = ("stall", "lost", "drip")
OF_A_BODY: tuple[Kind, ...] = (*AFTER, "broken", "short")
OF_A_DOWNLOAD: tuple[Kind, ...] = (*OF_A_BODY, "corrupt", "damaged")


@dataclass
class Fault:
    """What is to go wrong, in which calls, how often."""

    kind: Kind
    on: str = ".*"  # regular expression of the whole operation: "insert", "resumable-.*", "get|download"
    matches: str = ""  # regular expression found in the object's name; for a list, in its prefix; no pause of "insert"
    times: int | None = 1  # None: for ever
    code: int = 503
    message: str = ""  # of a status; else one that names the code
    seconds: float | None = None
    after_bytes: int | None = None
    fired: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Lets every stalled answer go, and fires no more."""
        self.times = self.fired
        self.released.set()

    def meets(self, operation: str, name: str) -> bool:
        left = self.times is None or self.fired < self.times
        return left and bool(re.fullmatch(self.on, operation)) and bool(re.search(self.matches, name))


class Faults:
    """All that is to go wrong; the first that meets a call fires."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def take(self, kinds: tuple[Kind, ...], operation: str, name: str, size: int | None = None) -> Fault | None:
        """`size`: of an answer. One that ends before a fault begins would not differ from a sound one."""
        with self._lock:
            for fault in self._faults:
                if size is not None and fault.after_bytes is not None and fault.after_bytes >= size:
                    continue
                if fault.kind in kinds and fault.meets(operation, name):
                    fault.fired += 1
                    return fault
        return None

    def clear(self) -> None:
        """Nothing goes wrong any more; stalled answers go."""
        with self._lock:
            for fault in self._faults:
                fault.release()
            self._faults.clear()
