"""Simulated power losses: record all operations on the files of a folder, and derive the states that can remain.

As in ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014), only what was synced is certain. The
content of a file is certain after an fsync of the file. A name (created, renamed, linked, removed) is certain after an
fsync of its folder. Any combination of the other operations may have reached the disk.
"""

import builtins
import io
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

Kind = Literal["create", "write", "sync", "rename", "link", "unlink", "mkdir", "rmdir", "sync_folder"]
_NAMES: tuple[Kind, ...] = ("create", "rename", "link", "unlink", "mkdir", "rmdir")
_PID = re.compile(rf"\.{os.getpid()}(-\d+)?\.(?=[0-9a-f]{{8}}\.tmp)")


@dataclass(frozen=True)
class Op:
    """One operation below the recorded folder. Paths are relative to it."""

    kind: Kind
    time: float
    """Unix seconds."""
    path: str
    target: str = ""
    """The second name of a rename or link."""
    file: int = -1
    """For a create, write or sync: the number of the file. It stays the same when the file is renamed."""
    content: bytes = b""

    @property
    def folders(self) -> set[str]:
        """The folders that must be synced for this operation to be certain."""
        return {_parent(path) for path in (self.path, self.target) if path}


@dataclass(frozen=True)
class State:
    """Files by path, and folders, as a power loss left them after the first `ops` operations."""

    ops: int
    files: Mapping[str, bytes]
    folders: frozenset[str]


@dataclass
class Recording:
    """All operations below `root` while it was recorded."""

    root: Path
    ops: list[Op] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)
    _folders: set[str] = field(default_factory=lambda: {"", "."})
    _known: dict[int, bytes] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock)

    def relative(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return a path relative to `root`, or None if it is outside."""
        if isinstance(path, int):
            path = Path(f"/proc/self/fd/{path}").readlink()
        elif dir_fd is not None:
            path = Path(f"/proc/self/fd/{dir_fd}").readlink() / os.fsdecode(path)
        absolute = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - `resolve` would follow a link
        if absolute == str(self.root):
            return "."
        return os.path.relpath(absolute, self.root) if absolute.startswith(f"{self.root}/") else None

    def add(self, kind: Kind, path: str, target: str = "", file: int = -1, content: bytes = b"") -> None:
        self.ops.append(Op(kind, time.time(), path, target, file, content))

    def file_at(self, path: str) -> int:
        """Return the number of a file. A file that another library created is recorded first."""
        if path not in self._names:
            self.folder_at(_parent(path))
            self._names[path] = len(self._known)
            self._known[self._names[path]] = b""
            self.add("create", path, file=self._names[path])
        return self._names[path]

    def folder_at(self, path: str) -> None:
        """Record that a folder was made, if another library made it."""
        if path not in self._folders:
            self.folder_at(_parent(path))
            self._folders.add(path)
            self.add("mkdir", path)

    def note_writes(self) -> None:
        """Record what was written to any file since the last operation."""
        for path, number in list(self._names.items()):
            full = self.root / path
            if full.is_file() and not full.is_symlink():
                self._note_write(path, number, full)

    def _note_write(self, path: str, number: int, full: Path) -> None:
        known = self._known[number]
        if full.stat().st_size != len(known) or (content := full.read_bytes()) != known:
            content = full.read_bytes()
            self._known[number] = content
            self.add("write", path, file=number, content=content)

    def opened(self, path: Any, writes: bool) -> None:
        """Record the creation of a file if opening the file creates it."""
        relative = self.relative(path)
        if relative and writes and not (self.root / relative).exists():
            with self._lock:
                self.file_at(relative)

    def synced(self, descriptor: int) -> None:
        path = self.relative(descriptor)
        if path is None:
            return
        if (self.root / path).is_dir():
            self.folder_at(path)
            self.add("sync_folder", path)
        else:
            number = self.file_at(path)
            self._note_write(path, number, self.root / path)
            self.add("sync", path, file=number, content=self._known[number])

    def moved(self, kind: Kind, path: Any, target: Any) -> None:
        first, second = self.relative(path), self.relative(target)
        if first is None or second is None:
            return
        self.add(kind, first, second)
        moved = {name: number for name, number in self._names.items() if name == first or name.startswith(f"{first}/")}
        for name, number in moved.items():
            self._names[second + name[len(first) :]] = number
            if kind == "rename":
                del self._names[name]

    def removed(self, kind: Kind, path: Any) -> None:
        if relative := self.relative(path):
            self.add(kind, relative)
            self._names.pop(relative, None)
            self._folders.discard(relative)

    def made(self, path: Any) -> None:
        if relative := self.relative(path):
            self.folder_at(relative)


@contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    """Record what this process does to the files below `root` by the functions of Python.

    The writes of another library are known from the first sync or rename of the file.
    """
    recording = Recording(root)
    # Patches are needed: recording below Python would need a kernel module or a compiler.
    patches = {
        "fsync": lambda call, fd: _after(recording, call, fd)(lambda: recording.synced(_number(fd))),
        "rename": lambda call, a, b: _after(recording, call, a, b)(lambda: recording.moved("rename", a, b)),
        "replace": lambda call, a, b: _after(recording, call, a, b)(lambda: recording.moved("rename", a, b)),
        "link": lambda call, a, b: _after(recording, call, a, b)(lambda: recording.moved("link", a, b)),
        "mkdir": lambda call, path, *mode: _after(recording, call, path, *mode)(lambda: recording.made(path)),
    }
    with _patched(patches), _removals(recording), _opens(recording):
        yield recording
        with recording._lock:
            recording.note_writes()


def _number(file: Any) -> int:
    return file if isinstance(file, int) else int(file.fileno())


def _after(recording: Recording, call: Callable[..., Any], *given: Any) -> Callable[[Callable[[], None]], Any]:
    def then(note: Callable[[], None]) -> Any:
        with recording._lock:
            recording.note_writes()
            result = call(*given)
            note()
            return result

    return then


@contextmanager
def _patched(patches: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    def bound(name: str, patch: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(os, name)
        return lambda *given, **named: patch(original, *given) if not named else original(*given, **named)

    with mock.patch.multiple(os, **{name: bound(name, patch) for name, patch in patches.items()}):
        yield


@contextmanager
def _removals(recording: Recording) -> Iterator[None]:
    def removal(kind: Kind, original: Callable[..., None]) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            with recording._lock:
                recording.note_writes()
                known = recording.relative(path, dir_fd)
                original(path, dir_fd=dir_fd)
                if known:
                    recording.removed(kind, recording.root / known)

        return remove

    unlink, rmdir = removal("unlink", os.unlink), removal("rmdir", os.rmdir)
    with mock.patch.multiple(os, unlink=unlink, remove=unlink, rmdir=rmdir):
        yield


@contextmanager
def _opens(recording: Recording) -> Iterator[None]:
    original = io.open

    def opened(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        if not isinstance(file, int):
            recording.opened(file, any(letter in mode for letter in "wax"))
        return original(file, mode, *given, **named)

    with mock.patch.object(io, "open", opened), mock.patch.object(builtins, "open", opened):
        yield


# --- states -----------------------------------------------------------------------------------------------------------


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def states(recording: Recording, seed: int = 0, random_states: int = 3) -> list[State]:
    """Return the different states that a power loss can leave after each operation.

    Not all combinations are returned, but these: all operations; only the certain operations; all names with the
    certain content. In addition, `random_states` states apply each uncertain operation with probability 1/2. Their
    uncertain content is complete, truncated, empty or zeros.
    """
    chance = random.Random(seed)
    found: dict[tuple[Any, ...], State] = {}
    for count in range(1, len(recording.ops) + 1):
        ops = recording.ops[:count]
        if ops[-1].kind == "write" and count < len(recording.ops):
            continue  # The next operation gives the same state.
        certain = _certain(ops)
        choices: list[tuple[Callable[[int], bool], Callable[[bytes], bytes]]] = [
            (lambda _: True, lambda content: content),
            (lambda number, certain=certain: number in certain, lambda _: b""),
            (lambda _: True, lambda _: b""),
        ]
        for _ in range(random_states):
            surviving = certain | {number for number in range(count) if chance.random() < 0.5}
            choices.append((surviving.__contains__, lambda content: chance.choice(_TORN)(content)))
        for is_done, torn in choices:
            state = _state(ops, is_done, torn)
            found.setdefault((frozenset(state.files.items()), state.folders), state)
    return list(found.values())


_TORN: tuple[Callable[[bytes], bytes], ...] = (
    lambda content: content,
    lambda content: b"",
    lambda content: bytes(len(content)),
    lambda content: content[: len(content) // 2],
)


def _certain(ops: list[Op]) -> set[int]:
    """Return the numbers of the operations on names whose folders were synced afterwards."""
    certain, synced = set(), set[str]()
    for number in reversed(range(len(ops))):
        op = ops[number]
        if op.kind == "sync_folder":
            synced.add("" if op.path == "." else op.path)
        elif op.kind in _NAMES and op.folders <= synced:
            certain.add(number)
    return certain


def _state(ops: list[Op], is_done: Callable[[int], bool], torn: Callable[[bytes], bytes]) -> State:
    names: dict[str, int] = {}
    folders: set[str] = {""}
    certain: dict[int, bytes] = {}
    written: dict[int, bytes] = {}
    for number, op in enumerate(ops):
        if op.kind == "write":
            written[op.file] = op.content
        elif op.kind == "sync":
            certain[op.file] = op.content
        elif op.kind in _NAMES and is_done(number):
            _apply(op, names, folders)
    contents = {file: _content(certain.get(file), written.get(file, b""), torn) for file in set(names.values())}
    return State(len(ops), {path: contents[file] for path, file in names.items()}, frozenset(folders))


def _content(certain: bytes | None, written: bytes, torn: Callable[[bytes], bytes]) -> bytes:
    """Return the content of a file: the synced content, extended or replaced by the torn later writes."""
    if certain is None or not written.startswith(certain):
        return torn(written) if certain != written else written
    return certain + torn(written[len(certain) :])


def _apply(op: Op, names: dict[str, int], folders: set[str]) -> None:
    """Apply an operation on names, unless its file or folder does not exist."""
    parent = _parent(op.target or op.path)
    if op.kind == "mkdir" and parent in folders:
        folders.add(op.path)
    elif op.kind == "create" and parent in folders:
        names[op.path] = op.file
    elif op.kind == "unlink":
        names.pop(op.path, None)
    elif op.kind == "rmdir" and not any(name.startswith(f"{op.path}/") for name in (*names, *folders)):
        folders.discard(op.path)
    elif op.kind == "link" and op.path in names and op.target not in names and parent in folders:
        names[op.target] = names[op.path]
    elif op.kind == "rename" and parent in folders:
        _rename(op, names, folders)


def _rename(op: Op, names: dict[str, int], folders: set[str]) -> None:
    if op.path in names:
        names[op.target] = names.pop(op.path)
    elif op.path in folders:
        for name in [name for name in names if name.startswith(f"{op.path}/")]:
            names[op.target + name[len(op.path) :]] = names.pop(name)
        for name in [name for name in folders if name == op.path or name.startswith(f"{op.path}/")]:
            folders.discard(name)
            folders.add(op.target + name[len(op.path) :])


def restore(state: State, root: Path) -> None:
    """Restore a state into `root`. The names of temporary files get the process id of a process that has ended."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name in sorted(state.folders - {""}):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, content in state.files.items():
        path = root / _PID.sub(f".{_dead_process()}.", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def sampled(found: list[State], count: int) -> list[State]:
    """Return about `count` states, evenly spaced. CRASH_STATES overrides `count`; 0 means all states."""
    count = int(os.environ.get("CRASH_STATES", count)) or len(found)
    return found[:: max(len(found) // count, 1)]


_dead: list[int] = []


def _dead_process() -> int:
    if not _dead:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        _dead.append(process.pid)
    return _dead[0]
