"""File systems on which two runs could both win a race are refused before anything is written."""

import errno
import os
from pathlib import Path

import psutil
import pytest

from pipeline import storage
from pipeline.config.preflight import preflight
from pipeline.config.settings import Settings
from pipeline.errors import SettingsError
from pipeline.storage.file_system import why_unsafe

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime,errors=remount-ro 0 0
server:/export /mnt/shared\\040disk nfs4 rw,noatime,vers=4.2,local_lock=none 0 0
server:/old /mnt/old nfs rw,vers=3,nolock,local_lock=all,addr=10.0.0.1 0 0
//server/share /mnt/windows cifs rw,vers=3.1.1,nobrl 0 0
server@tcp:/fs /mnt/lustre lustre rw,flock,lazystatfs 0 0
server@tcp:/fs /mnt/lustre-local lustre rw,localflock 0 0
/dev/sdb1 /mnt/twice ext4 rw 0 0
server:/new /mnt/twice nfs rw,nolock 0 0
server:/odd /mnt/a\x85b nfs4 rw,local_lock=flock 0 0
"""


def mount(monkeypatch: pytest.MonkeyPatch, folder: Path, mounts: str) -> None:
    """Let psutil report these mounts, with `folder` in place of /mnt."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mounts").write_text(mounts.replace("/mnt/", f"{folder}/"))
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(folder / "proc"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", ""),
        ("shared disk/work", ""),
        ("old", "old is mounted with local_lock=all, nolock"),
        ("older", ""),
        ("windows/a/b", "windows is mounted with nobrl"),
        ("lustre/a", ""),
        ("lustre-local/a", "lustre-local is mounted with localflock"),
        ("twice/a", "twice is mounted with nolock"),
        ("a\x85b", "a\x85b is mounted with local_lock=flock"),
    ],
)
def test_mount_options_reveal_locks_that_hold_for_one_host(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mount(monkeypatch, tmp_path, MOUNTS)
    (tmp_path / name).mkdir(parents=True, exist_ok=True)
    expected = f"file locks work on one host only ({tmp_path}/{reason})" if reason else ""
    assert why_unsafe(tmp_path / name) == expected


@pytest.mark.parametrize("mounts", ["", "/dev/sda1 /other ext4 rw 0 0\n"])
def test_a_folder_without_a_known_mount_is_safe(mounts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mount(monkeypatch, tmp_path, mounts)
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
