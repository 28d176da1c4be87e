"""Metrics of a model and their intervals, as pure functions without TensorFlow."""

from typing import Any

from pipeline import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(__name__, "pipeline.evaluation.metrics", name)
