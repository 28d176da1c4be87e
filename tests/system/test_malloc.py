"""Whether malloc fetches each large block from the system, according to the counts of glibc."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MMAP_THRESHOLD = -3


class Counts(ctypes.Structure):
    """glibc's `struct mallinfo2`, whose fourth number counts the blocks fetched one by one."""

    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]


def is_fetched(size: int) -> bool:
    """Return whether malloc fetches a block of `size` bytes separately from the system."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.mallinfo2.restype = ctypes.c_void_p, Counts
    before = libc.mallinfo2().d
    block = libc.malloc(ctypes.c_size_t(size))
    after = libc.mallinfo2().d
    libc.free(ctypes.c_void_p(block))
    return bool(after > before)


def fetch_large_blocks() -> None:
    """Set the threshold that TensorFlow's setting leaves."""
    ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 128 << 10)


needs_counts = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")


@needs_counts
def test_large_blocks_stay_in_the_process_after_the_threshold_was_set():
    lines = [
        "from pipeline.system.malloc import keep_large_blocks",
        "from tests.system.test_malloc import fetch_large_blocks, is_fetched",
        "fetch_large_blocks()",
        "assert is_fetched(1 << 20)",
        "keep_large_blocks()",
        "assert not is_fetched(1 << 20)",
        "assert is_fetched(100 << 20)",
    ]
    # This runs in a new process, which has not freed a large block before.
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, check=True)


@needs_counts
def test_freed_memory_below_a_block_in_use_is_returned():
    lines = [
        "import psutil",
        "from pipeline.system.malloc import return_freed_memory",
        "blocks = [bytes(1000) for _ in range(50_000)]",
        "del blocks[:-1]",
        "held = psutil.Process().memory_info().rss",
        "return_freed_memory()",
        "assert psutil.Process().memory_info().rss < held - 40_000_000",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, check=True)


@needs_counts
def test_threads_share_the_arena_of_the_first_one():
    """`malloc_info` has an element for each arena."""
    lines = [
        "import ctypes, sys, threading",
        "from pipeline.system.malloc import share_one_arena",
        "libc = ctypes.CDLL(None)",
        "if sys.argv[1] == 'one': share_one_arena()",
        "threads = [threading.Thread(target=lambda: [bytes(10_000) for _ in range(100)]) for _ in range(3)]",
        "[thread.start() for thread in threads]",
        "[thread.join() for thread in threads]",
        "libc.fdopen.restype = ctypes.c_void_p",
        "stream = ctypes.c_void_p(libc.fdopen(1, b'w'))",
        "libc.malloc_info(0, stream)",
        "libc.fflush(stream)",
    ]

    def arenas(how: str) -> int:
        command = [sys.executable, "-c", "\n".join(lines), how]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.count("<heap nr=")

    assert arenas("one") == 1 < arenas("many")
