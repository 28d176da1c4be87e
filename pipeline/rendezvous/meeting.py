"""How all servers of a training meet, or fail with an error that names the missing servers."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pipeline.errors import Preempted, StorageError, TenfoldError, TrainingError, error_to_json
from pipeline.rendezvous.cluster import Cluster
from pipeline.rendezvous.gpu_shares import require_equal_shares
from pipeline.rendezvous.presence import DONE, SILENT_S, Lookout, Member, Presence, heartbeat_s, present
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place

LEAVE_S = 20.0
"""A training has this many seconds to end by itself, once one of its servers is gone."""
_LOG_EVERY_S = 30.0
"""The log names the missing servers at this interval in seconds."""
_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)


@contextmanager
def join_cluster(
    folder: Place,
    server: Server,
    wait_s: float,
    should_stop: Callable[[], bool],
    leave: Callable[[TenfoldError], None],
    gpus: Sequence[str] = (),
    gpus_per_server: int = 0,
) -> Iterator[Cluster]:
    """Meet the other servers in `folder`, and be one of them until the block ends. Report to them how it ends.

    Waits at most `wait_s` seconds for the others. If a server is gone and the block does not end by itself soon after,
    a thread calls `leave` with the reason, because a process that waits for a dead one within TensorFlow does not
    notice it. If the other server was asked to stop, the thread calls it at once, and repeatedly.

    `gpus` are the GPUs that this process sees, by UUID, and `gpus_per_server` is the setting.

    Raises:
        BadInput: If the servers would get different numbers of GPUs.
        TrainingError: If not all servers have come. It names the missing ones.
        Preempted: If a stop is requested.
    """
    has_ended = threading.Event()
    with present(folder, server, gpus) as presence:
        lookout = Lookout(folder, presence.nonce)
        try:
            members = _Meeting(lookout, presence, server, should_stop).wait(wait_s)
            require_equal_shares([member.gpus for member in members], gpus_per_server)
            cluster = Cluster(server, presence, lookout, members)

            # A thread, because the main thread may wait within TensorFlow for a server that is gone.
            def guard() -> None:
                while not has_ended.wait(heartbeat_s(folder)):
                    try:
                        cluster.watch()
                    except (TenfoldError, OSError) as error:
                        _log.warning("the other servers cannot be seen for now: %s", error)
                    lost = cluster.loss()
                    if lost and not has_ended.wait(0 if isinstance(lost, Preempted) else LEAVE_S):
                        leave(lost)

            threading.Thread(target=guard, name="guard", daemon=True).start()
            yield cluster
            presence.report(ended={"kind": DONE, "message": ""})
        except BaseException as error:
            reason = error if isinstance(error, TenfoldError) else TrainingError(repr(error))
            presence.report(ended=error_to_json(reason))
            raise
        finally:
            has_ended.set()


class _Meeting:
    """The steps by which one process joins a cluster."""

    def __init__(self, lookout: Lookout, presence: Presence, server: Server, should_stop: Callable[[], bool]) -> None:
        self._lookout, self._presence, self._server, self._should_stop = lookout, presence, server, should_stop

    def wait(self, wait_s: float) -> list[Member]:
        """Wait for all servers, and return their processes in the order of the servers."""
        _log.info("%s waits for the other servers, for at most %.0f minutes", self._server, wait_s / 60)
        chief = self._until(self._name_cluster if self._server.is_chief else self._find_chief, wait_s)
        self._presence.report(follows=chief)
        # A process may have ended since it was named. Without this wait for all to join, the others would start a
        # training that hangs.
        members = self._until(lambda: self._followers(chief), SILENT_S)
        _log.info("all %d servers are present: %s", len(members), ", ".join(member.name for member in members))
        return members

    def _name_cluster(self) -> str | None:
        """Name the processes that train together, once all are there, and return the own nonce. For server 0."""
        free = self._free()
        if len(free) < self._server.count:
            return None
        self._lookout.name_cluster(self._presence.nonce, [free[index] for index in range(self._server.count)])
        return self._presence.nonce

    def _find_chief(self) -> str | None:
        """Return the nonce of the server 0 that has named this process, once there is one. For the other servers."""
        self._lookout.look()
        chiefs = (nonce for nonce, member in self._lookout.alive().items() if member.server == 0)
        return next((nonce for nonce in chiefs if self._presence.nonce in (self._lookout.cluster(nonce) or ())), None)

    def _followers(self, chief: str) -> list[Member] | None:
        """Return all processes of the cluster, once each of them knows that it belongs to it."""
        processes = self._lookout.look()
        members = [processes[nonce] for nonce in self._lookout.cluster(chief) or () if nonce in processes]
        is_ready = len(members) == self._server.count and all(member.follows == chief for member in members)
        return members if is_ready else None

    def _free(self) -> dict[int, str]:
        """Return the nonces of live processes that are in no cluster, by server. The later of two processes counts."""
        self._lookout.look()
        # Processes come in the order in which they were first seen, so a later one replaces an earlier one.
        free = {member.server: nonce for nonce, member in self._lookout.alive().items() if not member.follows}
        # This process does not count as alive to its own lookout before its second count.
        return {**free, self._server.index: self._presence.nonce}

    def _until(self, look: Callable[[], _Value | None], wait_s: float) -> _Value:
        start = logged = time.monotonic()
        while (value := self._looked(look)) is None:
            if self._should_stop():
                raise Preempted("the training was asked to stop before it began")
            now = time.monotonic()
            if now > start + wait_s:
                raise TrainingError(
                    f"after {wait_s:.0f} s, {self._missing()}: each server needs a slot of the pool gpu and a worker "
                    "at the same time, and must reach this workspace. Run again when all of them can start, or train "
                    "on fewer servers (num_training_servers)"
                )
            if now > logged + _LOG_EVERY_S:
                logged = now
                _log.info("%s", self._missing())
            time.sleep(heartbeat_s(self._presence.folder) / 2)
        return value

    def _looked(self, look: Callable[[], _Value | None]) -> _Value | None:
        """Return what `look` returns; None while the folder cannot be read, which may pass."""
        try:
            return look()
        except (StorageError, OSError) as error:
            _log.warning("the other servers cannot be seen for now: %s", error)
            return None

    def _missing(self) -> str:
        free = self._looked(self._free)
        if free is None:
            return f"the {self._server.count} training servers cannot be seen"
        missing = [str(index) for index in range(self._server.count) if index not in free]
        named = f"server {missing[0]} is" if len(missing) == 1 else f"servers {', '.join(missing)} are"
        reason = f"{named} missing" if missing else "some of them have not joined the training yet"
        return f"{len(free)} of {self._server.count} training servers are present, but {reason}"
