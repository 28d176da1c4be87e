"""The TFRecord format and the encoding of examples, without TensorFlow."""

from typing import Any

from pipeline import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(__name__, "pipeline.records.format", name)
