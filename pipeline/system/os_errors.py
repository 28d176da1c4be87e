"""Classify errors of the operating system: the file is absent, a permission is missing, or a later attempt may work.

An unknown error counts as transient. A stale handle or an input/output error of a network file system never means that
a file does not exist.
"""

import errno
import logging
import time
from collections.abc import Callable
from typing import Literal, TypeVar

from pipeline.errors import FileSystemError

Result = TypeVar("Result")
Cause = Literal["absent", "forbidden", "content", "transient"]

_log = logging.getLogger(__name__)

PAUSES_S = (0.1, 0.5, 2.0)
"""The attempts of one call are these seconds apart. If all attempts fail, Airflow retries the task minutes later."""
# A name that is too long, or a loop of links, cannot lead to a file either.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def cause_of(error: OSError) -> Cause:
    """Return what an error means. "content" means that no system call failed, but a reader cannot parse the bytes."""
    if error.errno in _ABSENT:
        return "absent"
    if error.errno in _FORBIDDEN:
        return "forbidden"
    # Python's own readers raise OSError without a number for bytes that they do not understand.
    is_of_content = error.errno is None and not isinstance(error, TimeoutError | ConnectionError)
    return "content" if is_of_content else "transient"


def unless_missing(work: Callable[[], Result]) -> Result | None:
    """Return the result of `work`; None if the file that it uses does not exist."""
    try:
        return work()
    except FileNotFoundError:
        return None


def retried(work: Callable[[], Result], what: object) -> Result:
    """Return the result of `work`. After a transient error, pause and call it again.

    `what` is the file or folder to show if the error does not name one. Raises FileSystemError if all attempts fail.
    Any OSError that is not transient is raised unchanged.
    """
    # None marks the last attempt, after which there is no pause.
    for pause_s in (*PAUSES_S, None):
        try:
            return work()
        except OSError as error:
            if cause_of(error) != "transient":
                raise
            if pause_s is None:
                named, reason = error.filename or what, error.strerror or error
                raise FileSystemError(
                    f"{named} could not be used in {len(PAUSES_S) + 1} attempts ({reason}): check the file system, and "
                    "run again"
                ) from error
            _log.warning("%s: trying again after %s", error.filename or what, error.strerror or error)
            time.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")
