"""Extract: the frozen list of what a source held, and reading the raw bytes of its images."""

from typing import Any

from pipeline import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(__name__, "pipeline.snapshot.snapshot", name)
