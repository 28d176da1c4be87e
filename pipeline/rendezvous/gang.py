"""The processes that train together, and what becomes of them."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from pipeline.errors import BadInput, Preempted, ServerLost, TenfoldError, error_from_json
from pipeline.rendezvous.presence import SILENT_S, Lookout, Member, Presence
from pipeline.rendezvous.servers import Server

_Device = TypeVar("_Device")


class Gang:
    """One process a server, in the order of the servers."""

    def __init__(self, server: Server, presence: Presence, lookout: Lookout, members: Sequence[Member]) -> None:
        self.server = server
        self._presence, self._lookout, self._members = presence, lookout, list(members)
        self._known = set(lookout.look())
        self._lost: TenfoldError | None = None
        self._changed = threading.Condition()

    @property
    def addresses(self) -> list[str]:
        """`host:port` of each server; on loopback where all are on one machine."""
        together = len({member.host for member in self._members}) == 1
        return [_on_loopback(member.address) if together else member.address for member in self._members]

    @property
    def samples(self) -> list[Mapping[str, float]]:
        """What each server told last."""
        return [member.sample for member in self._members]

    def own_part(self, devices: Sequence[_Device]) -> list[_Device]:
        """Those of a machine's devices that are this server's, where several of the servers are on it."""
        own = self._members[self.server.index]
        beside = [member for member in self._members if member.host == own.host]
        return list(devices[beside.index(own) :: len(beside)])

    def tell(self, sample: Mapping[str, float]) -> None:
        """Have the other servers know what this machine does; they learn it with the next count."""
        self._presence.tell(sample)

    def loss(self, within_s: float = 0.0) -> TenfoldError | None:
        """Why not all servers are there any more, waiting so long for it to become known; None where they are."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, within_s)
            return self._lost

    def wait_for_chief(self, stopping: Callable[[], bool]) -> None:
        """Wait until server 0 has written all that comes of the training.

        Raises what became of it where it fails, Preempted where `stopping` says so.
        """
        while not self._members[0].is_done:
            if error := self.loss(0.2):
                raise error
            if stopping():
                raise Preempted("asked to stop while server 0 writes the result")

    def watch(self) -> None:
        """Look at all once."""
        there = self._lookout.look()
        with self._changed:
            self._members = [there[member.nonce] for member in self._members]
            self._lost = self._lost or next(self._losses(), None)
            self._changed.notify_all()

    def _losses(self) -> Iterator[TenfoldError]:
        for member in self._members:
            if member.ended and not member.is_done:
                told = error_from_json(member.ended["kind"], f"{self._named(member)} ended: {member.ended['message']}")
                # What no retry mends ends all; of anything else the others only know that this server is gone.
                yield told if isinstance(told, BadInput | Preempted) else ServerLost(str(told))
            elif not member.ended and self._lookout.is_silent(member.nonce):
                yield ServerLost(f"{self._named(member)} has not been heard of for {SILENT_S:.0f} s: run again")
        for nonce, other in self._lookout.alive().items():
            if nonce not in self._known:  # another try: what we train is of no use to it
                yield ServerLost(f"{self._named(other)} was started anew: run again, so that all go on together")

    def _named(self, member: Member) -> str:
        return f"{Server(member.server, self.server.count)} on {member.name}"


def _on_loopback(address: str) -> str:
    return f"127.0.0.1:{address.rpartition(':')[2]}"
