"""Files that are opened once and read repeatedly."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.system.kernel import File, number


def test_each_read_returns_the_whole_current_content(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"x" * 300_000)
    file = File(path)
    assert file.read() == b"x" * 300_000
    path.write_bytes(b"short")
    assert file.read() == b"short"


def test_the_file_of_an_ended_process_raises_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        file = File(Path(f"/proc/{process.pid}/stat"))
        assert file.read().startswith(f"{process.pid} (".encode())
    with pytest.raises(ProcessLookupError):
        file.read()


def test_a_file_that_is_created_later_is_read(tmp_path: Path) -> None:
    file = File(tmp_path / "late")
    with pytest.raises(FileNotFoundError):
        file.read()
    (tmp_path / "late").write_bytes(b"here")
    assert file.read() == b"here"


def test_the_descriptor_is_closed_with_the_file() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    file = File(Path("/proc/stat"))
    file.read()
    assert descriptors() == before + 1
    del file
    assert descriptors() == before


@pytest.mark.parametrize("content", [b"a_total_x 1\ntotal_x 2\n", b"total_x: 2 kB\ntotal_xy: 3 kB", b"total_x:\t2"])
def test_number_reads_the_number_of_a_line(content: bytes) -> None:
    assert number(content, "total_x") == 2


def test_a_missing_number_raises_an_error() -> None:
    with pytest.raises(ValueError, match="no number called 'nr_x' in b'total_x 2'"):
        number(b"total_x 2", "nr_x")
