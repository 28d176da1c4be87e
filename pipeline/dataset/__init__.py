"""What a dataset is: manifest (`dataset.json`), labels, partitions, verification, metadata, indexes, local copies."""

from typing import Any

from pipeline import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(__name__, "pipeline.dataset.manifest", name)
