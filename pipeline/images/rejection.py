"""Why an image cannot be used, and which files are rejected without being read.

This module is light to import, because the listing uses it too.
"""

from dataclasses import dataclass

from pipeline.sources import MISSING


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an image cannot be used, in words, and what could be done."""

    reason: str
    advice: str = "replace the file, or remove it from the source"


ABSENT = Rejection("the source lists it, but the file does not exist", "add the file, or remove it from the list")


def why_unread(size: int, max_bytes: int) -> Rejection | None:
    """Return why a listed file is rejected without being read; None if it must be read, because its content decides.

    `size` and `max_bytes` are in bytes. A `size` of MISSING means that the file does not exist.
    """
    if size == MISSING:
        return ABSENT
    if size > max_bytes:
        return Rejection(
            f"the file has {size / 1e6:,.1f} MB, more than {max_bytes / 1e6:g} MB",
            "shrink it, or raise max_file_megabytes",
        )
    return None
