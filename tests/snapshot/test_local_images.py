"""Images of a local folder are read by an open folder, and by their whole paths if that fails."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

from pipeline.config.allowed import SOURCES
from pipeline.config.settings import Settings
from pipeline.errors import FileSystemError, SourceError
from pipeline.snapshot import checksums
from pipeline.snapshot.raw_example import CheckedFile, LocalImages
from pipeline.sources import MISSING
from tests.snapshots import take_snapshot

CONTENT = b"content of a file"
MAX_BYTES = 1000
OPEN = Path("/proc/self/fd")
"""The open files of this process."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one file."""
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(CONTENT)
    return folder


def assert_is_read(files: LocalImages, key: str, path: Path) -> None:
    status, size = path.stat(), len(CONTENT)
    assert files.read(key, size) == CONTENT
    expected = CheckedFile(size, status.st_ctime_ns, size, google_crc32c.value(CONTENT))
    assert files.check(key, MAX_BYTES, follows_link=False) == expected
    assert files.measure(key)[:2] == (size, status.st_ctime_ns)


def test_a_folder_that_cannot_be_opened_is_read_by_whole_paths(root: Path):
    folder = root.rename(root.with_name("elsewhere"))
    files = LocalImages(str(root))
    folder.rename(root)
    assert_is_read(files, "a.jpg", root / "a.jpg")


@pytest.mark.parametrize("is_open", [True, False])
def test_an_absolute_key_is_outside_of_the_folder(root: Path, is_open: bool, tmp_path: Path):
    other = tmp_path / "other.jpg"
    other.write_bytes(CONTENT)
    assert_is_read(LocalImages(str(root if is_open else tmp_path / "nowhere")), str(other), other)


def test_the_folder_is_closed(root: Path):
    gc.collect()
    before = list(OPEN.iterdir())
    files = LocalImages(str(root))
    assert_is_read(files, "a.jpg", root / "a.jpg")
    assert len(list(OPEN.iterdir())) == len(before) + 1
    del files
    assert len(list(OPEN.iterdir())) == len(before)


def test_a_file_of_another_folder_with_the_same_path_is_not_read(root: Path):
    files = LocalImages(str(root))
    root.rename(root.with_name("old"))
    root.mkdir()
    (root / "b.jpg").write_bytes(CONTENT)
    with pytest.raises(SourceError, match="was listed but cannot be read"):
        files.read("b.jpg", len(CONTENT))
    with pytest.raises(FileSystemError, match=r"b\.jpg vanished while it was being listed"):
        files.check("b.jpg", MAX_BYTES, follows_link=False)
    assert files.measure("b.jpg").size == MISSING


def test_a_folder_that_fails_is_not_used_again(root: Path, caplog: pytest.LogCaptureFixture):
    files = LocalImages(str(root))
    with open(root / "a.jpg") as stream:
        files._folder = stream.fileno()  # Not a folder, like one whose handle is stale.
        for _ in range(2):
            assert_is_read(files, "a.jpg", root / "a.jpg")
    assert [record.message for record in caplog.records] == [
        f"{root}: reading by whole paths from now on, after Not a directory"
    ]


@pytest.mark.parametrize("replace", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/hostname")])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_file_that_something_else_replaced_after_the_listing_is_not_read(
    settings: Settings, replace: Callable[[Path], None], is_known: bool, monkeypatch: pytest.MonkeyPatch
):
    """The change comes with the first use, because a real one cannot be timed between listing and reading."""
    path = Path(settings.source_uri) / "dogs" / "003.jpg"
    if is_known:
        monkeypatch.setattr(checksums, "CLOCK_SLACK_NS", -(10**18))  # The files count as old.
        take_snapshot(settings)
    monkeypatch.setenv(SOURCES, settings.source_uri)
    name = "measure" if is_known else "check"
    real = getattr(LocalImages, name)

    def changed(files: LocalImages, key: str, *others: object) -> object:
        if key == "dogs/003.jpg" and path.is_file() and not path.is_symlink():
            path.unlink()
            replace(path)
        return real(files, key, *others)

    monkeypatch.setattr(LocalImages, name, changed)
    with pytest.raises(FileSystemError, match=r"/dogs/003\.jpg vanished while it was being listed .*: run again"):
        take_snapshot(settings)


def test_a_file_that_a_fifo_replaced_is_not_waited_for(root: Path):
    (root / "a.jpg").unlink()
    os.mkfifo(root / "a.jpg")
    assert LocalImages(str(root)).read("a.jpg", len(CONTENT)) == b""
