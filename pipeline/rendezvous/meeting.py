"""All servers of a training come together, or a clear word on who is missing."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pipeline.errors import Preempted, StorageError, TenfoldError, TrainingError, error_to_json
from pipeline.rendezvous.gang import Gang
from pipeline.rendezvous.presence import DONE, SILENT_S, Lookout, Member, Presence, beat_of, present
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place

LEAVE_S = 20.0
"""Seconds that a training has to end by itself, once one of its servers is gone."""
_SAY_S = 30.0
_Found = TypeVar("_Found")
_log = logging.getLogger(__name__)


@contextmanager
def joined(
    folder: Place,
    server: Server,
    wait_s: float,
    stopping: Callable[[], bool],
    leave: Callable[[TenfoldError], None],
) -> Iterator[Gang]:
    """Be one of the servers that meet in `folder`, until the block ends; how it ends is told to the others.

    :param wait_s: seconds that the others may take to come
    :param leave: called in a thread with what became of a server, where the block does not end by itself soon after:
        a process that waits for a dead one within TensorFlow hears nothing else

    Raises TrainingError, naming who is missing, where not all have come, and Preempted where `stopping` says so.
    """
    lookout = Lookout(folder)
    with present(folder, server) as presence, _end_told(presence):
        members = _Meeting(lookout, presence, server, stopping).wait(wait_s)
        gang, ended = Gang(server, presence, lookout, members), threading.Event()
        told = gang, ended, beat_of(folder), leave
        threading.Thread(target=_guard, args=told, name="guard", daemon=True).start()
        try:
            yield gang
        finally:
            ended.set()


@contextmanager
def _end_told(presence: Presence) -> Iterator[None]:
    """Have the last count say how the block ended."""
    try:
        yield
    except BaseException as error:
        presence.end(error_to_json(error if isinstance(error, TenfoldError) else TrainingError(repr(error))))
        raise
    presence.end({"kind": DONE, "message": ""})


def _guard(gang: Gang, ended: threading.Event, every_s: float, leave: Callable[[TenfoldError], None]) -> None:
    while not ended.wait(every_s):
        try:
            gang.watch()
        except (TenfoldError, OSError) as error:
            _log.warning("the other servers cannot be seen for now: %s", error)
        lost = gang.loss()
        if lost and not ended.wait(LEAVE_S):
            leave(lost)


class _Meeting:
    """The way of one process into a gang."""

    def __init__(self, lookout: Lookout, presence: Presence, server: Server, stopping: Callable[[], bool]) -> None:
        self._lookout, self._presence, self._server, self._stopping = lookout, presence, server, stopping

    def wait(self, wait_s: float) -> list[Member]:
        """All members, in the order of the servers, once they are there."""
        _log.info("%s waits for the others, %.0f minutes at most", self._server, wait_s / 60)
        chief = self._until(self._named if self._server.is_chief else self._found, wait_s)
        self._presence.follow(chief)
        members = self._until(lambda: self._followers(chief), SILENT_S)
        _log.info("all %d servers are there: %s", len(members), ", ".join(member.name for member in members))
        return members

    def _named(self) -> str | None:
        """As server 0: name who trains together, once all are there."""
        there = self._free()
        if len(there) < self._server.count:
            return None
        self._lookout.name_gang(self._presence.nonce, [there[index] for index in range(self._server.count)])
        return self._presence.nonce

    def _found(self) -> str | None:
        """As another one: the server 0 that has named this process."""
        self._lookout.look()
        chiefs = (nonce for nonce, member in self._lookout.alive().items() if member.server == 0)
        return next((nonce for nonce in chiefs if self._presence.nonce in (self._lookout.gang(nonce) or ())), None)

    def _followers(self, chief: str) -> list[Member] | None:
        """All members, once they know that they are."""
        there = self._lookout.look()
        members = [there[nonce] for nonce in self._lookout.gang(chief) or () if nonce in there]
        ready = len(members) == self._server.count and all(member.follows == chief for member in members)
        return members if ready else None

    def _free(self) -> dict[int, str]:
        """The process of each server that is there and trains with nobody; where there are two, who came last."""
        self._lookout.look()
        found = {member.server: nonce for nonce, member in self._lookout.alive().items() if not member.follows}
        return {**found, self._server.index: self._presence.nonce}

    def _until(self, found: Callable[[], _Found | None], wait_s: float) -> _Found:
        start = said = time.monotonic()
        while (value := self._seen(found)) is None:
            if self._stopping():
                raise Preempted("asked to stop before the training began")
            now = time.monotonic()
            if now > start + wait_s:
                raise TrainingError(f"{self._missing()} after {wait_s:.0f} s: {_WHAT_TO_DO}")
            if now > said + _SAY_S:
                said = now
                _log.info("%s", self._missing())
            time.sleep(beat_of(self._presence.folder) / 2)
        return value

    def _seen(self, found: Callable[[], _Found | None]) -> _Found | None:
        """What was found; None while the folder cannot be read, which may pass."""
        try:
            return found()
        except (StorageError, OSError) as error:
            _log.warning("the other servers cannot be seen for now: %s", error)
            return None

    def _missing(self) -> str:
        there = self._seen(self._free)
        if there is None:
            return f"the {self._server.count} training servers cannot be seen"
        missing = [str(index) for index in range(self._server.count) if index not in there]
        who = f"without a sign of {', '.join(missing)}" if missing else "and not all know yet that they train together"
        return f"{len(there)} of {self._server.count} training servers are there, {who}"


_WHAT_TO_DO = (
    "each needs a slot of the pool gpu and a worker at the same time, and must see this workspace; run again when they "
    "can, or train with fewer (num_training_servers)"
)
