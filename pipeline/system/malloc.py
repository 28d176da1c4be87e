"""The memory allocator of this process."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_BLOCK_BYTES = 32 << 20
"""glibc accepts no larger threshold, and would reach this one by itself."""


def keep_large_blocks() -> None:
    """Let malloc reuse freed blocks of up to 32 MB, as it does by default.

    TensorFlow changes the thresholds on Python 3.11 and later, with the first dataset that a strategy distributes or
    that a Python generator feeds. From then on, the memory of each image of over 128 KB is requested from the system
    and returned, and an input of pixels took four times the CPU time. Call this function after that. It does nothing
    without glibc.

    A process that lists a table also calls it: otherwise, the memory of the rows of each batch would be returned to the
    system and requested again, a seventh of the CPU time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES)
        # This is twice the other threshold, as glibc itself sets it.
        mallopt(_M_TRIM_THRESHOLD, 2 * _BLOCK_BYTES)


def return_freed_memory() -> None:
    """Return memory that is free now to the system. malloc keeps up to 64 MB of it, and all below a block in use.

    It does nothing without glibc.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def share_one_arena() -> None:
    """Let later threads of this process allocate memory where its first thread does. This cannot be undone.

    By default, each thread has an arena of its own, which soon returns freed memory to the system and requests it
    again: half of the system time of the threads that convert the rows of a table. It does nothing without glibc.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_ARENA_MAX, 1)
