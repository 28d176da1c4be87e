"""What a local workspace needs of its file system: names that only one process can create, and locks for all hosts.

Hard links create a name exclusively with its content. SMB, exFAT and gcsfuse have none, and a check before a rename
lets two runs win. Sources for the mount options: nfs(5), mount.cifs(8), mount.lustre(8).
"""

import os
import tempfile
from pathlib import Path

from pipeline.storage.local import NO_HARD_LINKS, WITHOUT_LINKS

_LOCAL_LOCKS = {
    "nfs": {"nolock", "local_lock=all", "local_lock=flock"},
    "nfs4": {"local_lock=all", "local_lock=flock"},
    "cifs": {"nobrl"},
    "smb3": {"nobrl"},
    "lustre": {"localflock", "noflock"},
}
"""With these mount options, a lock holds only on its own host. They depend on the type of the file system."""


def why_unsafe(folder: Path) -> str:
    """Return why several processes cannot work in a folder together, with what to do; empty if they can.

    Raises OSError if the file system fails otherwise.
    """
    import psutil  # Only the check of a workspace loads it.

    if not _has_hard_links(folder):
        return NO_HARD_LINKS
    place = folder.resolve()
    holding = [mount for mount in psutil.disk_partitions(all=True) if place.is_relative_to(mount.mountpoint)]
    # The longest mount point holds the folder. If several mounts have the same point, the last one covers the others.
    mount = max(reversed(holding), key=lambda each: len(each.mountpoint), default=None)
    if mount and (local := _LOCAL_LOCKS.get(mount.fstype, set()).intersection(mount.opts.split(","))):
        return f"file locks work on one host only ({mount.mountpoint} is mounted with {', '.join(sorted(local))})"
    return ""


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
