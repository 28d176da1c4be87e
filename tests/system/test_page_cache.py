"""A request removes files from the page cache, and reading brings them back."""

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.system.page_cache import cached_fraction, drop_page_cache

MEGABYTES = 8


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}" for number in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(MEGABYTES * 1_000_000 // 4))
    return paths


def keeps_everything(folder: Path) -> bool:
    """Whether the file system is in memory anyway."""
    kind = subprocess.run(["stat", "--file-system", "--format=%T", folder], capture_output=True, text=True, check=True)
    return kind.stdout.strip() in ("tmpfs", "ramfs")


def test_what_is_read_is_cached_until_it_is_dropped(files: list[Path], tmp_path: Path):
    assert cached_fraction(files) == 1.0
    contents = [path.read_bytes() for path in files]
    drop_page_cache(files)
    left = cached_fraction(files)
    assert left is not None
    assert left < 0.1 or keeps_everything(tmp_path)
    assert [path.read_bytes() for path in files] == contents
    assert cached_fraction(files) == 1.0


def test_the_kernel_does_not_tell_about_files_of_other_users(monkeypatch: pytest.MonkeyPatch, files: list[Path]):
    """As root, every file may be written, so the answers of the system are replaced."""
    monkeypatch.setattr(os, "geteuid", lambda: files[0].stat().st_uid + 1)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cached_fraction(files) is None


def test_empty_files_and_no_files_have_nothing_to_cache(tmp_path: Path):
    (tmp_path / "empty").touch()
    assert cached_fraction([tmp_path / "empty"]) == 0.0
    assert cached_fraction([]) == 0.0
