"""The file of this process, and a look at those of the others."""

import json
import logging
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.errors import TenfoldError
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place
from pipeline.system.os_errors import retried

BEAT_S, BEAT_OF_A_BUCKET_S = 0.5, 5.0
"""Seconds between two counts. A bucket takes one write a second of an object, and each costs."""
SILENT_S = 60.0
"""Seconds without a count after which a server is taken for dead: network file systems show changes late."""
DONE = "done"
GANG = ".gang.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """One process of a training server, as its file has it."""

    nonce: str
    server: int
    host: str
    """The same for processes that reach each other by the loopback address."""
    name: str
    """Of the machine, for people."""
    address: str
    """`host:port` for servers on other machines."""
    pid: int = 0
    count: int = 0
    follows: str = ""
    """The nonce of the server 0 whose gang it has joined."""
    ended: Mapping[str, str] | None = None
    """How, once it has: kind and message."""
    sample: Mapping[str, float] = field(default_factory=dict)
    """What its machine does just now, for the aggregate of all."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended well."""
        return self.ended is not None and self.ended["kind"] == DONE


class Presence:
    """The file of this process, written anew with every count."""

    def __init__(self, folder: Place, member: Member) -> None:
        self.folder, self._member = folder, member
        self._lock = threading.Lock()

    @property
    def nonce(self) -> str:
        return self._member.nonce

    def follow(self, chief: str) -> None:
        """Have the others know whose gang this process has joined."""
        self._change(lambda member: replace(member, follows=chief))

    def tell(self, sample: Mapping[str, float]) -> None:
        """Have the others know what this machine does."""
        self._change(lambda member: replace(member, sample=dict(sample)))

    def end(self, words: Mapping[str, str]) -> None:
        """Have the others know how this process ended."""
        self._change(lambda member: replace(member, ended=dict(words)))

    def count(self) -> None:
        """Write it, with the next count."""
        member = self._change(lambda member: replace(member, count=member.count + 1))
        with storage.write_whole(self.folder / f"{self.nonce}.json") as file:
            file.write(json.dumps(asdict(member)).encode())

    def _change(self, changed: Callable[[Member], Member]) -> Member:
        # The main thread, the sampler's and the one that counts: one of them would undo what another has just said.
        with self._lock:
            self._member = changed(self._member)
            return self._member


def beat_of(folder: Place) -> float:
    """Seconds between two counts there."""
    return BEAT_S if isinstance(folder, Path) else BEAT_OF_A_BUCKET_S


@contextmanager
def present(folder: Place, server: Server) -> Iterator[Presence]:
    """Count until the block ends, and once more behind it."""
    presence, ended = Presence(folder, _member(server)), threading.Event()
    retried(presence.count, folder)
    thread = threading.Thread(target=_keep_counting, args=(presence, ended), name="presence", daemon=True)
    thread.start()
    try:
        yield presence
    finally:
        ended.set()
        thread.join()
        _tried(presence)


def _keep_counting(presence: Presence, ended: threading.Event) -> None:
    while not ended.wait(beat_of(presence.folder)):
        _tried(presence)


def _tried(presence: Presence) -> None:
    try:
        presence.count()
    except (TenfoldError, OSError) as error:  # a refusal, too: without counts, the others take this one for dead
        _log.warning("the other servers do not see this one for now: %s", error)


def _member(server: Server) -> Member:
    return Member(uuid.uuid4().hex, server.index, _host(), platform.node(), f"{_address()}:{_free_port()}", os.getpid())


def _host() -> str:
    return f"{platform.node()}/{_BOOT.read_text().strip() if _BOOT.exists() else ''}"


def say_ended(folder: Place, pid: int, words: Mapping[str, str]) -> None:
    """Tell for a process of this machine how it ended, which it could not do itself: it was killed."""
    for path in folder.glob("*.json"):
        content = None if path.name.endswith(GANG) else _read(path)
        if content and (content["host"], content["pid"], content["ended"]) == (_host(), pid, None):
            Presence(folder, replace(Member(**content), ended=dict(words))).count()


def _address() -> str:
    """The address by which other machines reach this one: TENFOLD_ADDRESS, or that of the way to them."""
    if named := os.environ.get("TENFOLD_ADDRESS"):
        return named
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("192.0.2.1", 9))  # nothing is sent; the address is for documentation, and nobody's
        except OSError:  # no network but loopback
            return "127.0.0.1"
        return str(way.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("", 0))
        return int(asked.getsockname()[1])


@dataclass
class _Heard:
    member: Member
    at: float
    counted: bool = False
    """Whether it has changed while we looked."""


class Lookout:
    """Who is in a folder, and how long ago their counts went up."""

    def __init__(self, folder: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._heard: dict[str, _Heard] = {}

    def look(self) -> dict[str, Member]:
        """All processes by their nonces, the dead ones too; who was seen first comes first."""
        for path in self._folder.glob("*.json"):
            content = None if path.name.endswith(GANG) else _read(path)
            if content is not None:
                self._note(Member(**content))
        return {nonce: heard.member for nonce, heard in self._heard.items()}

    def _note(self, member: Member) -> None:
        before = self._heard.get(member.nonce)
        if before is None:
            self._heard[member.nonce] = _Heard(member, self._clock())
        elif before.member != member:
            self._heard[member.nonce] = _Heard(member, self._clock(), counted=True)

    def is_silent(self, nonce: str) -> bool:
        """Whether it has not been heard of for so long that it must be dead."""
        return self._clock() - self._heard[nonce].at > SILENT_S

    def alive(self) -> dict[str, Member]:
        """Those that counted while we looked, and have neither ended nor fallen silent."""
        counted = {nonce: heard.member for nonce, heard in self._heard.items() if heard.counted}
        return {nonce: each for nonce, each in counted.items() if not each.ended and not self.is_silent(nonce)}

    def gang(self, chief: str) -> list[str] | None:
        """Whom a process of server 0 has named, by their nonces in the order of the servers."""
        nonces: list[str] | None = _read(self._folder / f"{chief}{GANG}")
        return nonces

    def name_gang(self, chief: str, nonces: list[str]) -> None:
        """Name them, and remove the files of all others: who lives writes its own again with its next count."""
        with storage.write_new(self._folder / f"{chief}{GANG}") as file:
            file.write(json.dumps(nonces).encode())
        self._sweep(nonces)

    def _sweep(self, kept: Collection[str]) -> None:
        for path in self._folder.glob("*.json"):
            if path.name.partition(".")[0] not in kept:
                path.unlink(missing_ok=True)


def _read(path: Place) -> Any:
    try:
        return storage.read_json(path)
    except FileNotFoundError:  # not there yet, or swept
        return None
    except ValueError:  # torn by a power loss: a process that lives writes its own again with its next count
        return None
