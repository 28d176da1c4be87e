"""One warning for a full disk, if a thread or a destructor of another library meets it."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pipeline.storage.local import FULL

_log = logging.getLogger(__name__)


@contextmanager
def explain_full_disk() -> Iterator[None]:
    """Within the block, log the error of a full disk in a thread or a destructor as one warning.

    Comet writes its messages in threads of its own. Python would print a traceback of each, although the training does
    not depend on them.
    """
    in_thread, in_destructor = threading.excepthook, sys.unraisablehook
    threading.excepthook = partial(_say, in_thread)
    sys.unraisablehook = partial(_say, in_destructor)
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = in_thread, in_destructor


def _say(otherwise: Callable[[Any], object], failed: Any) -> None:
    """Log a full disk as a warning, and call the hook `otherwise` for other errors. Python gives both `failed`."""
    error = failed.exc_value
    if isinstance(error, OSError) and error.errno in FULL:
        _log.warning("a library could not write all of its files, but the training does not need them: %s", error)
    else:
        otherwise(failed)
