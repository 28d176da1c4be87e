"""Parts of files are read from files that stay open."""

import gc
import os
from pathlib import Path

import pytest

from pipeline.errors import FileSystemError
from pipeline.snapshot import raw_example
from pipeline.snapshot.raw_example import OpenFiles

CONTENT = bytes(range(100))
OPEN = Path("/proc/self/fd")
"""The open files of this process."""


def test_a_file_is_opened_once_and_closed_at_the_end(tmp_path: Path):
    path = written(tmp_path / "a.tar")
    gc.collect()
    before = len(list(OPEN.iterdir()))
    files = OpenFiles()
    for offset in range(0, 100, 10):
        assert files.read(path, offset, 10) == CONTENT[offset : offset + 10]
    assert len(list(OPEN.iterdir())) == before + 1
    del files
    assert len(list(OPEN.iterdir())) == before


def test_only_some_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(raw_example, "MAX_OPEN", 2)
    files, paths = OpenFiles(), [written(tmp_path / f"{number}.tar") for number in range(4)]
    gc.collect()
    before = len(list(OPEN.iterdir()))
    assert [files.read(path, 90, 10) for path in paths * 2] == [CONTENT[90:]] * 8
    assert len(list(OPEN.iterdir())) == before + 2


def test_a_part_beyond_the_end_is_short(tmp_path: Path):
    path, files = written(tmp_path / "a.tar"), OpenFiles()
    assert [files.read(path, 95, 10) for _ in range(2)] == [CONTENT[95:]] * 2
    assert not files._descriptors  # A file that was cut is opened again, because another one may replace it.


def test_a_file_whose_descriptor_fails_is_opened_anew(tmp_path: Path):
    path, files = written(tmp_path / "a.tar"), OpenFiles()
    reading, writing = os.pipe()
    files._descriptors[path] = reading  # It cannot be read at an offset, like a file whose handle is stale.
    assert files.read(path, 10, 10) == CONTENT[10:20]
    os.close(writing)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_file_that_a_fifo_replaced_is_not_waited_for(tmp_path: Path, is_known: bool):
    path, files = written(tmp_path / "a.tar"), OpenFiles()
    if is_known:
        files.read(path, 0, 10)
    Path(path).unlink()
    os.mkfifo(path)
    if is_known:  # The file that was listed is still open.
        assert files.read(path, 10, 10) == CONTENT[10:20]
    else:
        with pytest.raises(FileSystemError, match=r"a\.tar could not be used in 4 attempts"):
            files.read(path, 10, 10)


def test_a_file_that_is_gone_is_told_apart(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        OpenFiles().read(str(tmp_path / "a.tar"), 0, 10)


def written(path: Path) -> str:
    """Write a file, and return its path."""
    path.write_bytes(CONTENT)
    return str(path)
