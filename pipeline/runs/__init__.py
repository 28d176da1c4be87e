"""One run: its files, launching a training, mirroring to a bucket, and the promotion of its model."""

from typing import Any

from pipeline import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(__name__, "pipeline.runs.run", name)
