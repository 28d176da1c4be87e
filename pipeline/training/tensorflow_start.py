"""The start of TensorFlow, without the dozen lines that it prints, and the removal of the files that it leaves."""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

_log = logging.getLogger(__name__)


@contextmanager
def hold_back_stderr() -> Iterator[None]:
    """Hold back stderr in the block, and show it only if the block fails.

    TensorFlow's C++ parts write at import, before any setting of theirs is read. One of the lines, "failed call to
    cuInit", appears on every machine without a GPU, and people look for an error that does not exist.
    """
    sys.stderr.flush()
    # The file descriptor, because C++ code writes past `sys.stderr`.
    original = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(original, held.read())
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)


@contextmanager
def tensorflow_on_the_cpu() -> Iterator[None]:
    """Import TensorFlow in this block without GPUs. It would take the memory of a GPU on which a training may run."""
    _log.info("loading TensorFlow")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # TensorFlow reads this when it is imported.
    with hold_back_stderr():
        yield
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")


def found_gpus() -> "list[tf.config.PhysicalDevice]":
    """Return the GPUs that TensorFlow finds. It does not use them yet."""
    with hold_back_stderr():
        import tensorflow as tf

        gpus: list[tf.config.PhysicalDevice] = tf.config.list_physical_devices("GPU")
    return gpus


def remove_generated_files() -> None:
    """Remove the files of the functions that TensorFlow compiled in this process.

    AutoGraph writes a Python file for each function into the folder for temporary files, imports it as a module, and
    removes it in an ordinary exit only. Python adds a file of bytecode. Seen in TensorFlow 2.21.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("__autograph_generated_file") and (source := getattr(module, "__file__", None)):
            bytecode = Path(cache_from_source(source))
            with suppress(OSError):
                Path(source).unlink(missing_ok=True)
                bytecode.unlink(missing_ok=True)
                bytecode.parent.rmdir()  # This fails while other trainings have files there.
