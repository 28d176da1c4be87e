"""The page cache of Linux for chosen files: drop it, and see how much of the files it has. No root is needed."""

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path


def drop_page_cache(paths: Iterable[Path]) -> None:
    """Ask the kernel to forget the content of files, so that the next read comes from the disk.

    The kernel keeps pages that are not written yet, that a process has mapped, or that are in memory anyway (tmpfs).
    `cached_fraction` says what is left.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Pages that are not written yet cannot be dropped. File systems that are read-only by nature have none, and
            # refuse the call.
            with suppress(OSError):
                os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cached_fraction(paths: Sequence[Path]) -> float | None:
    """Return the share of the pages of files that are in the page cache, 0 to 1; None if the kernel does not tell.

    Of many files, every n-th is looked at. The kernel answers only for files that this process owns or may write.
    """
    # More than 2,000 files would not change the share much, and each takes a call.
    looked_at = paths[:: max(1, -(-len(paths) // 2000))]
    if not all(path.stat().st_uid == os.geteuid() or os.access(path, os.W_OK) for path in looked_at):
        return None  # The kernel would say that all pages are cached.
    counts = [_pages_of(path) for path in looked_at]
    pages = sum(total for _, total in counts)
    return sum(cached for cached, _ in counts) / pages if pages else 0.0


def _pages_of(path: Path) -> tuple[int, int]:
    """Return how many pages of a file are cached, and how many it has."""
    size = path.stat().st_size
    if not size:
        return 0, 0
    pages = -(-size // mmap.PAGESIZE)
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as view,
    ):
        # ctypes needs a writable buffer to tell the address. The mapping is private, so the file never changes.
        address = ctypes.c_char.from_buffer(view)
        vector = (ctypes.c_ubyte * pages)()
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(size), vector)
        del address  # The view cannot be closed while it is exported.
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return sum(each & 1 for each in vector), pages
