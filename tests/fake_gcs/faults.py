"""Faults on request. Each counts how often it fired, for a fault that never fired proves nothing."""

import re
import threading
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["status", "reset", "stall", "lost", "broken", "corrupt"]
"""status: answers `code` instead, nothing is carried out. reset: the connection is reset, nothing is carried out.
stall: carried out, but the answer waits `seconds` (None: until released). lost: carried out, then reset instead of an
answer. broken: a download ends in the middle. corrupt: one bit of a download's body is flipped, its headers sound."""

BEFORE: tuple[Kind, ...] = ("status", "reset")
AFTER: tuple[Kind, ...] = ("stall", "lost")
OF_A_BODY: tuple[Kind, ...] = ("stall", "lost", "broken", "corrupt")


@dataclass
class Fault:
    """What is to go wrong, in which calls, how often."""

    kind: Kind
    on: str = ".*"  # regular expression of the whole operation: "insert", "resumable-.*", "get|download"
    matches: str = ""  # regular expression found in the object's name; for a list, in its prefix
    times: int | None = 1  # None: for ever
    code: int = 503
    seconds: float | None = None
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

    def take(self, kinds: tuple[Kind, ...], operation: str, name: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
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
