"""TensorFlow's start, without its dozen lines."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stderr_held_back() -> Iterator[None]:
    """What is written to stderr meanwhile is shown only where the block fails.

    TensorFlow's C++ parts write at import, before any setting of theirs is read; "failed call to cuInit" among it, on
    every machine without a GPU, sends people looking for an error that is none.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def leave_gpus_alone() -> None:
    """Hide all GPUs from this process, before TensorFlow does anything: it would take the memory of one at work."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
