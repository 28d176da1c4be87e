"""File systems on which two runs could both win a race are refused before anything is written."""

import errno
import os
from pathlib import Path

import pytest

from pipeline import storage
from pipeline.config.preflight import preflight
from pipeline.config.settings import Settings
from pipeline.errors import SettingsError
from pipeline.storage import file_system
from pipeline.storage.file_system import mount_of, why_unsafe

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:40 / /mnt/shared\\040disk rw,noatime - nfs4 server:/export rw,vers=4.2,local_lock=none
31 22 0:41 / /mnt/old rw - nfs server:/old rw,vers=3,nolock,local_lock=all,addr=10.0.0.1
32 22 0:42 / /mnt/windows rw - cifs //server/share rw,vers=3.1.1,nobrl
33 22 0:43 / /mnt/lustre rw - lustre server@tcp:/fs rw,flock,lazystatfs
34 22 0:44 / /mnt/lustre-local rw - lustre server@tcp:/fs rw,localflock
35 22 0:45 / /mnt/twice rw - ext4 /dev/sdb1 rw
36 22 0:46 / /mnt/twice rw - nfs server:/new rw,nolock
"""


@pytest.mark.parametrize(
    ("folder", "kind", "reason"),
    [
        ("/home/me", "ext4", ""),
        ("/mnt/shared disk/work", "nfs4", ""),
        ("/mnt/old", "nfs", "/mnt/old is mounted with local_lock=all, nolock"),
        ("/mnt/older", "ext4", ""),
        ("/mnt/windows/a/b", "cifs", "/mnt/windows is mounted with nobrl"),
        ("/mnt/lustre/a", "lustre", ""),
        ("/mnt/lustre-local/a", "lustre", "/mnt/lustre-local is mounted with localflock"),
        ("/mnt/twice/a", "nfs", "/mnt/twice is mounted with nolock"),
    ],
)
def test_mount_options_reveal_locks_that_hold_for_one_host(
    folder: str, kind: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert mount_of(folder, MOUNTS).kind == kind
    mountinfo = MOUNTS.replace(mount_of(folder, MOUNTS).point.replace(" ", "\\040") + " ", f"{tmp_path} ")
    (tmp_path / "mounts").write_text(mountinfo)
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "mounts")
    found = why_unsafe(tmp_path)
    assert found.startswith("file locks work on one host only") if reason else found == ""
    assert reason.partition(" is ")[2] in found


def test_unusual_mount_lines_cause_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert mount_of("/data", "22 1 8:1 / /other rw - ext4 /dev/sda1 rw\n") is None
    odd = "/mnt/a\x85b"  # for `splitlines`, the character in the middle ends a line
    found = mount_of(odd, f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / {odd} rw - nfs4 server:/ rw\n")
    assert found
    assert found.kind == "nfs4"
    (tmp_path / "mounts").write_text("")
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "mounts")
    assert why_unsafe(tmp_path) == ""


def test_the_disk_of_this_machine_is_safe(tmp_path: Path):
    assert why_unsafe(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse hard links, because a test has no file system without them."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("without_links")
def test_a_workspace_without_hard_links_is_refused_before_anything_is_written(settings: Settings):
    with pytest.raises(
        SettingsError, match=r"workspace must be a folder that several tasks can share, .* no hard links"
    ):
        preflight(settings)
    assert not Path(settings.workspace).exists()


@pytest.mark.usefixtures("without_links")
def test_a_worker_writes_nothing_to_a_workspace_without_hard_links(tmp_path: Path):
    with pytest.raises(SettingsError, match="no hard links"), storage.write_new(tmp_path / "file") as file:
        file.write(b"content")
    assert list(tmp_path.iterdir()) == []
