"""The file in which this process shows that it lives, and those of the other processes."""

import json
import logging
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from pipeline import storage
from pipeline.errors import StorageError, TenfoldError
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place
from pipeline.system.os_errors import retried, unless_missing

HEARTBEAT_S, HEARTBEAT_IN_BUCKET_S = 0.5, 5.0
"""A process counts at this interval in seconds. A bucket takes one write of an object per second, and bills each."""
SILENT_S = 60.0
"""A server without a new count for this many seconds counts as dead. Network file systems show changes late."""
MAX_GAP_S = 10.0
"""At most this many seconds between two own counts that a process sees are silence of the others. After a longer gap,
the storage must have failed, so that no process could write its count, and none could read those of the others."""
DONE = "done"
"""A process that ended without an error states this kind of end."""
MEMBERS_FILE = ".members.json"
"""The file that names the processes of a cluster has this suffix."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""This file distinguishes machines with the same name."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """One process of a training server, as its file describes it."""

    nonce: str
    server: int
    host: str
    """Identifies the machine: the same for processes that reach each other by the loopback address."""
    name: str
    """Name of the machine, for people."""
    address: str
    """`host:port`, as other machines reach it."""
    gpus: list[str] = field(default_factory=list)
    """The GPUs that it sees, by UUID, sorted. Servers that see the same GPUs share them."""
    taken: list[str] = field(default_factory=list)
    """The GPUs that it took for itself and for the servers with which it shares them."""
    is_loaded: bool = False
    """Whether it has loaded TensorFlow."""
    pid: int = 0
    count: int = 0
    """Goes up while the process lives."""
    follows: str = ""
    """Nonce of the server 0 whose cluster it has joined."""
    ended: Mapping[str, str] | None = None
    """How it ended, as kind and message; None while it lives."""
    sample: Mapping[str, float] = field(default_factory=dict)
    """The last sample of its machine, for the aggregate of all."""

    @property
    def is_done(self) -> bool:
        """Whether it ended without an error."""
        return self.ended is not None and self.ended["kind"] == DONE


class Changes(TypedDict, total=False):
    """The fields of a `Member` that change while its process lives, besides the count."""

    taken: list[str]
    is_loaded: bool
    follows: str
    ended: Mapping[str, str]
    sample: Mapping[str, float]


class Presence:
    """The file of this process, which every count writes again."""

    def __init__(self, folder: Place, member: Member) -> None:
        self.folder, self._member = folder, member
        self._lock, self._writing = threading.Lock(), threading.Lock()

    @property
    def nonce(self) -> str:
        """The name of this process among all attempts."""
        return self._member.nonce

    def report(self, **changes: Unpack[Changes]) -> None:
        """Change fields of the `Member`. The other processes see them with the next count."""
        # Without the lock, the main thread, the sampler and the thread that counts could undo each other's changes.
        with self._lock:
            self._member = replace(self._member, **changes)

    def count(self) -> None:
        """Write the file, with the next count and all that was reported."""
        # Without this lock, a thread could replace the last count with an earlier one.
        with self._writing:
            with self._lock:
                member = self._member = replace(self._member, count=self._member.count + 1)
            storage.write_json(self.folder / f"{self.nonce}.json", asdict(member))


def heartbeat_s(folder: Place) -> float:
    """Return the seconds between two counts in a folder."""
    return HEARTBEAT_S if isinstance(folder, Path) else HEARTBEAT_IN_BUCKET_S


@contextmanager
def present(folder: Place, server: Server, gpus: Sequence[str] = ()) -> Iterator[Presence]:
    """Count until the block ends, and once more after it. `gpus` are the UUIDs of the GPUs that this process sees."""
    presence, has_ended = Presence(folder, _member(server, gpus)), threading.Event()
    # The first count must succeed. Later ones may fail for a while.
    retried(presence.count, folder)

    def keep_counting() -> None:
        while not has_ended.wait(heartbeat_s(folder)):
            _try_to_count(presence)

    thread = threading.Thread(target=keep_counting, name="presence", daemon=True)
    thread.start()
    try:
        yield presence
    finally:
        has_ended.set()
        # Without this, the thread could replace the last count with an earlier one.
        thread.join()
        _try_to_count(presence)  # This count tells the others how this process ended.


def _try_to_count(presence: Presence) -> None:
    try:
        presence.count()
    except (TenfoldError, OSError) as error:
        # Even after a refusal, this thread must go on: without new counts, the others take this process for dead.
        _log.warning("the other servers cannot see this server for now: %s", error)


def _member(server: Server, gpus: Sequence[str] = ()) -> Member:
    return Member(
        nonce=uuid.uuid4().hex,
        server=server.index,
        host=_host(),
        name=platform.node(),
        address=f"{_address()}:{_free_port()}",
        gpus=list(gpus),
        pid=os.getpid(),
    )


def _host() -> str:
    return f"{platform.node()}/{_BOOT.read_text().strip() if _BOOT.exists() else ''}"


def report_end(folder: Place, pid: int, reason: Mapping[str, str]) -> None:
    """Report how a process of this machine ended that was killed, and could not report it itself."""
    for member in _members(folder):
        if (member.host, member.pid, member.ended) == (_host(), pid, None):
            Presence(folder, replace(member, ended=dict(reason))).count()


def _address() -> str:
    """Return the address at which other machines reach this one: TENFOLD_ADDRESS, or that of the route to them."""
    if named := os.environ.get("TENFOLD_ADDRESS"):
        return named
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            # For a datagram socket, this chooses a route and sends nothing. The address is reserved for documentation.
            route.connect(("192.0.2.1", 9))
        except OSError:  # There is no network except loopback.
            return "127.0.0.1"
        return str(route.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@dataclass
class _Sighting:
    """The last change of a process."""

    member: Member
    at: float
    """Seconds that the lookout had watched before the change."""
    has_counted: bool = False
    """Whether the process has changed since it was first seen."""


class Lookout:
    """Reads which processes are in a folder, and remembers when their counts went up.

    `own` is the nonce of this process. Time in which this process does not see its own counts hardly counts: the
    storage has failed, so the others cannot be seen either.
    """

    def __init__(self, folder: Place, own: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._own, self._clock = folder, own, clock
        self._sightings: dict[str, _Sighting] = {}
        self._watched_s, self._saw_own_at = 0.0, clock()

    def look(self) -> dict[str, Member]:
        """Return all processes by their nonces, the dead ones too, in the order in which they were first seen."""
        # All files are read first: after an error, the look does not count.
        changed = [member for member in _members(self._folder) if self._has_changed(member)]
        if any(member.nonce == self._own for member in changed):
            now = self._clock()
            self._watched_s += min(now - self._saw_own_at, MAX_GAP_S)
            self._saw_own_at = now
        for member in changed:
            has_counted = member.nonce in self._sightings
            self._sightings[member.nonce] = _Sighting(member, self._watched_s, has_counted)
        return {nonce: sighting.member for nonce, sighting in self._sightings.items()}

    def _has_changed(self, member: Member) -> bool:
        # A file alone does not show that its process lives: only a change that this process sees does.
        before = self._sightings.get(member.nonce)
        return before is None or before.member != member

    def is_silent(self, nonce: str) -> bool:
        """Return whether a process has not counted for so long that it must be dead."""
        return self._watched_s - self._sightings[nonce].at > SILENT_S

    def alive(self) -> dict[str, Member]:
        """Return the processes that have counted since they were first seen, have not ended, and are not silent."""
        counted = {nonce: each.member for nonce, each in self._sightings.items() if each.has_counted}
        return {nonce: each for nonce, each in counted.items() if not each.ended and not self.is_silent(nonce)}

    def cluster(self, chief: str) -> list[str] | None:
        """Return the nonces that a process of server 0 has named, in the order of the servers; None if none yet."""
        nonces: list[str] | None = _read(self._folder / f"{chief}{MEMBERS_FILE}")
        return nonces

    def name_cluster(self, chief: str, nonces: list[str]) -> None:
        """Name the processes that train together, and remove the files of all others.

        A process that lives writes its own file again with its next count.
        """
        # The list is created once: a second list under this name would split the servers into two clusters.
        with storage.write_new(self._folder / f"{chief}{MEMBERS_FILE}") as file:
            file.write(json.dumps(nonces).encode())
        # The cluster exists now. An error from here on must not look as if it did not: its members are no longer free,
        # so server 0 could never name them again.
        with suppress(StorageError, OSError):
            for path in self._folder.glob("*.json"):
                if path.name.partition(".")[0] not in nonces:
                    path.unlink(missing_ok=True)


def _members(folder: Place) -> Iterator[Member]:
    # Not `glob`, which takes an error of the file system for an empty folder since Python 3.13.
    for path in unless_missing(lambda: [*folder.iterdir()]) or ():
        is_member = path.name.endswith(".json") and not path.name.endswith(MEMBERS_FILE)
        if is_member and (content := _read(path)):
            yield Member(**content)


def _read(path: Place) -> Any:
    try:
        return storage.read_json(path)
    except (FileNotFoundError, ValueError):
        # It does not exist yet, was removed by `name_cluster`, or (ValueError) was torn by a power loss. A process that
        # lives writes its file again with its next count.
        return None
