"""Recognizes errors of TensorFlow that mean: out of memory, out of room on a disk, or out of open files."""

import re

import tensorflow as tf

from pipeline.errors import FileSystemError

_WORDS = re.compile(r"out of memory|OOM when|ALLOC_FAILED|failed to allocate", re.IGNORECASE)
"""Words for a full memory. cuBLAS and cuDNN report it with the same error class as any other failure."""
_OF_NODES = re.compile(r"\{\{.*?\}\}\s*|\s*\[Op:\w+\]|\s*\[\[.*?\]\]| name: \S*")
"""Node and operation names that TensorFlow adds to messages for its developers. They are cut out."""
_OF_FILES = re.compile(r"No space left|Disk quota exceeded|Too many open files", re.IGNORECASE)
"""TensorFlow raises the same error for a full disk, a full quota and too many open files as for a full memory."""


def is_out_of_memory(error: tf.errors.OpError) -> bool:
    """Return whether a device, or the machine, had no memory left."""
    if is_out_of_files(error):
        return False
    return isinstance(error, tf.errors.ResourceExhaustedError) or bool(_WORDS.search(str(error.message)))


def is_out_of_files(error: tf.errors.OpError) -> bool:
    """Return whether a disk or a quota is full, or the process may open no more files."""
    return isinstance(error, tf.errors.ResourceExhaustedError) and bool(_OF_FILES.search(str(error.message)))


def plain_message(error: tf.errors.OpError) -> str:
    """Return an error's message without the names of TensorFlow's nodes and operations."""
    return _OF_NODES.sub("", str(error.message)).strip()


def out_of_files_error(error: tf.errors.OpError) -> FileSystemError:
    """Return what to raise for an error that `is_out_of_files`."""
    return FileSystemError(
        f"{plain_message(error)}: free some disk space, or allow more open files (ulimit -n), and run "
        "again; training continues from its last checkpoint"
    )
