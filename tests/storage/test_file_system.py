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
/dev/sda1 / ext4 rw,relatime,errors=remount-ro 0 0
server:/export /mnt/shared\\040disk nfs4 rw,noatime,vers=4.2,local_lock=none 0 0
server:/old /mnt/old nfs rw,vers=3,nolock,local_lock=all,addr=10.0.0.1 0 0
//server/share /mnt/windows cifs rw,vers=3.1.1,nobrl 0 0
server@tcp:/fs /mnt/lustre lustre rw,flock,lazystatfs 0 0
server@tcp:/fs /mnt/lustre-local lustre rw,localflock 0 0
/dev/sdb1 /mnt/twice ext4 rw 0 0
server:/new /mnt/twice nfs rw,nolock 0 0
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
    mounts = MOUNTS.replace(mount_of(folder, MOUNTS).point.replace(" ", "\\040") + " ", f"{tmp_path} ")
    (tmp_path / "mounts").write_text(mounts)
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "mounts")
    found = why_unsafe(tmp_path)
    assert found.startswith("file locks work on one host only") if reason else found == ""
    assert reason.partition(" is ")[2] in found


def test_unusual_mount_lines_cause_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert mount_of("/data", "/dev/sda1 /other ext4 rw 0 0\n") is None
    odd = "/mnt/a\x85b"  # for `splitlines`, the character in the middle ends a line
    found = mount_of(odd, f"/dev/sda1 / ext4 rw 0 0\nserver:/ {odd} nfs4 rw 0 0\n")
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
