"""What an error of the operating system means: nothing is there, a right is missing, or a later try may work.

An error is transient unless proven otherwise. A stale handle or an input/output error of a network file system never
means that a file does not exist.
"""

import errno
import time
from collections.abc import Callable
from typing import Literal, TypeVar

from pipeline.errors import FileSystemError

Result = TypeVar("Result")
Cause = Literal["absent", "forbidden", "content", "transient"]

PAUSES_S = (0.1, 0.5, 2.0)
"""Seconds between the tries of one call. A task that still fails is tried again by Airflow, minutes later."""
# A name that is too long, or a loop of links, cannot lead to a file either.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def cause_of(error: OSError) -> Cause:
    """Return what an error means. "content": no call failed, the bytes are not what a reader expects."""
    if error.errno in _ABSENT:
        return "absent"
    if error.errno in _FORBIDDEN:
        return "forbidden"
    # Python's own readers raise OSError without a number for bytes that they do not understand.
    is_of_content = error.errno is None and not isinstance(error, TimeoutError | ConnectionError)
    return "content" if is_of_content else "transient"


def retried(work: Callable[[], Result], what: object) -> Result:
    """Return what `work` returns; try again, after pauses, while its error may be transient.

    `what` names the file or folder if the error does not. Raises FileSystemError if all tries fail, and any OSError of
    another cause as it is.
    """
    for pause_s in (*PAUSES_S, None):
        try:
            return work()
        except OSError as error:
            if cause_of(error) != "transient":
                raise
            if pause_s is None:
                named, words = error.filename or what, error.strerror or error
                raise FileSystemError(
                    f"{named} could not be read in {len(PAUSES_S) + 1} tries ({words}): look at the file system, and "
                    "run again"
                ) from error
            time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")
