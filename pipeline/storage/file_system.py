"""What a local workspace needs of its file system: names that only one process can create, and locks for all hosts.

Hard links create a name exclusively with its content. SMB, exFAT and gcsfuse have none, and a check before a rename
lets two runs win. Sources for the mount options: nfs(5), mount.cifs(8), mount.lustre(8).
"""

import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from pipeline.storage.local import NO_HARD_LINKS, WITHOUT_LINKS

_MOUNTS = Path("/proc/self/mounts")
_LOCAL_LOCKS = {
    "nfs": {"nolock", "local_lock=all", "local_lock=flock"},
    "nfs4": {"local_lock=all", "local_lock=flock"},
    "cifs": {"nobrl"},
    "smb3": {"nobrl"},
    "lustre": {"localflock", "noflock"},
}
"""With these mount options, a lock holds only on its own host. They depend on the type of the file system."""
# The kernel writes spaces, tabs, newlines and backslashes of a path as octal numbers, such as \040.
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A line of /proc/self/mounts."""

    point: str
    kind: str
    options: frozenset[str]


def why_unsafe(folder: Path) -> str:
    """Return why several processes cannot work in a folder together, with what to do; empty if they can.

    Raises OSError if the file system fails otherwise.
    """
    if not _has_hard_links(folder):
        return NO_HARD_LINKS
    if _MOUNTS.exists():
        mount = mount_of(str(folder.resolve()), _MOUNTS.read_text(errors="surrogateescape"))
        if mount and (local := mount.options & _LOCAL_LOCKS.get(mount.kind, set())):
            return f"file locks work on one host only ({mount.point} is mounted with {', '.join(sorted(local))})"
    return ""


def mount_of(folder: str, mounts: str) -> Mount | None:
    """Return the mount that holds a folder, from the content of /proc/self/mounts; None if no line matches."""
    # Not `splitlines`: it also splits at characters that a path may contain, such as a form feed.
    parsed = [_parse(line) for line in mounts.split("\n") if line]
    holding = [mount for mount in parsed if f"{folder}/".startswith(f"{mount.point.rstrip('/')}/")]
    # The longest mount point holds the folder. If several mounts have the same point, the last one covers the others.
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)


def _parse(line: str) -> Mount:
    _, point, kind, options, *_ = line.split(" ")  # The fields are those of fstab(5).
    return Mount(_OCTAL.sub(lambda match: chr(int(match[1], 8)), point), kind, frozenset(options.split(",")))


def _has_hard_links(folder: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tenfold-") as name:
        file = Path(name) / "file"
        file.touch()
        try:
            os.link(file, Path(name) / "link")
        except OSError as error:
            if error.errno in WITHOUT_LINKS:
                return False
            raise
    return True
