"""The memory allocator of this process."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_BLOCK_BYTES = 32 << 20
"""The most that glibc takes, and what it would come to by itself."""


def keep_large_blocks() -> None:
    """Have malloc reuse freed blocks of up to 32 MB, as it does by itself unless somebody has set its thresholds.

    TensorFlow sets them on Python 3.11 and later, for the first dataset that a strategy deals out or a Python generator
    feeds: from then on each image of over 128 KB is fetched from the system and given back, and an input of pixels took
    four times the CPU. To be called after that. Does nothing if there is no glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _BLOCK_BYTES)
