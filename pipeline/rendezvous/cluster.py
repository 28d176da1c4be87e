"""The processes that train together, and why one of them is gone."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.errors import BadInput, Preempted, ServerLost, TenfoldError, error_from_json, error_to_json
from pipeline.rendezvous.presence import SILENT_S, Lookout, Member, Presence
from pipeline.rendezvous.servers import Server

WAITING_FOR_GPUS = "while it waited for GPUs"


class Cluster:
    """The processes that train together: one for each server, in the order of the servers.

    Methods that wait raise the reason why a server is gone (a TenfoldError), or Preempted if a stop is requested.
    """

    def __init__(self, server: Server, presence: Presence, lookout: Lookout, members: Sequence[Member]) -> None:
        self.server = server
        self._presence, self._lookout, self._members = presence, lookout, list(members)
        # Processes that are seen later belong to another attempt: see `_losses`.
        self._known = set(lookout.look())
        self._lost: TenfoldError | None = None
        self._changed = threading.Condition()

    @property
    def addresses(self) -> list[str]:
        """`host:port` of each server; on loopback if all are on one machine."""
        share_machine = len({member.host for member in self._members}) == 1
        addresses = [member.address for member in self._members]
        return [f"127.0.0.1:{address.rpartition(':')[2]}" for address in addresses] if share_machine else addresses

    @property
    def shares_machine(self) -> bool:
        """Whether another server of this training runs on the machine of this process."""
        hosts = [member.host for member in self._members]
        return hosts.count(hosts[self.server.index]) > 1

    @property
    def samples(self) -> list[Mapping[str, float]]:
        """The last sample that each server reported."""
        return [member.sample for member in self._members]

    def take_gpus(self, take: Callable[[int], list[str]], should_stop: Callable[[], bool]) -> list[str]:
        """Return the GPUs of this server, once they are taken.

        `take` takes the GPUs of some servers, and returns them. The first of the servers that see the same GPUs calls
        it for all of them. Otherwise, two trainings could wait for each other, each with a part of the GPUs. Its errors
        are raised on that server.
        """
        all_gpus = [member.gpus for member in self._members]
        gpus = all_gpus[self.server.index]
        sharing = [server for server, seen in enumerate(all_gpus) if seen == gpus]
        first = sharing[0]
        if self.server.index == first:
            # For the same reason, all trainings take the GPUs of several machines in the same order.
            before = [all_gpus.index(seen) for seen in all_gpus if seen < gpus]
            self._wait_until(lambda: all(self._members[index].taken for index in before), should_stop, WAITING_FOR_GPUS)
            taken = take(len(sharing))
            self._presence.report(taken=taken)
        else:
            self._wait_until(lambda: bool(self._members[first].taken), should_stop, WAITING_FOR_GPUS)
            taken = list(self._members[first].taken)
        return taken[sharing.index(self.server.index) :: len(sharing)]

    def wait_until_loaded(self, should_stop: Callable[[], bool]) -> None:
        """Wait until all servers have loaded TensorFlow.

        While TensorFlow connects to the other servers, no other thread of this process runs, and a signal to stop is
        lost. Without this wait, a server that is slow to load would extend that time.
        """
        self._presence.report(is_loaded=True)
        self._wait_until(lambda: all(member.is_loaded for member in self._members), should_stop, "before it began")

    def report_sample(self, sample: Mapping[str, float]) -> None:
        """Report a sample of this machine to the other servers. They get it with the next count."""
        self._presence.report(sample=dict(sample))

    def report_end(self, reason: TenfoldError) -> None:
        """Report how this process ends to the other servers, at once: it ends without leaving its block."""
        self._presence.report(ended=error_to_json(reason))
        self._presence.count()

    def loss(self, within_s: float = 0.0) -> TenfoldError | None:
        """Return why a server is gone, or None if all are there. Wait up to `within_s` seconds for it to be known."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, within_s)
            return self._lost

    def wait_for_chief(self, should_stop: Callable[[], bool]) -> None:
        """Wait until server 0 has written the result of the training."""
        self._wait_until(lambda: self._members[0].is_done, should_stop, "while server 0 was writing the result")

    def watch(self) -> None:
        """Read the files of all processes once."""
        members = self._lookout.look()
        with self._changed:
            self._members = [members[member.nonce] for member in self._members]
            # The first reason stays. The losses that follow are its consequences.
            self._lost = self._lost or next(self._losses(), None)
            self._changed.notify_all()

    def _wait_until(self, is_true: Callable[[], bool], should_stop: Callable[[], bool], doing: str) -> None:
        while not is_true():
            if error := self.loss(0.2):
                raise error
            if should_stop():
                raise Preempted(f"the training was asked to stop {doing}")

    def _losses(self) -> Iterator[TenfoldError]:
        for member in self._members:
            if member.ended and not member.is_done:
                error = error_from_json(
                    member.ended["kind"], f"{self._name_of(member)} ended: {member.ended['message']}"
                )
                # An error that no retry solves is the error of all. For any other, this server is gone.
                yield error if isinstance(error, BadInput | Preempted) else ServerLost(str(error))
            elif not member.ended and self._lookout.is_silent(member.nonce):
                yield ServerLost(f"{self._name_of(member)} has given no sign of life for {SILENT_S:.0f} s: run again")
        for nonce, other in self._lookout.alive().items():
            if nonce not in self._known:  # Another attempt has started: it cannot join this training.
                yield ServerLost(
                    f"{self._name_of(other)} was started again: run again, so that all servers continue together"
                )

    def _name_of(self, member: Member) -> str:
        return f"{Server(member.server, self.server.count)} on {member.name}"
