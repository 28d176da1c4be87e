"""The kinds of examples: images, and the rows of a table.

A kind is a folder of `pipeline/kinds/`. Its `data.py` says how its examples are listed, planned, written and verified,
as a `KIND` of the class `ExampleKind` (pipeline/plan/kinds.py). Its `tensors.py` says how they become batches and
answers of a model, as a `KIND` of the class `TensorKind` (pipeline/training/model/kinds.py).
"""

from importlib import import_module
from typing import Any

IMAGES, TABLE = "images", "table"
KINDS = {IMAGES: "pipeline.kinds.images", TABLE: "pipeline.kinds.table"}
"""The folder of each kind, by the value of `example_kind`. Only the kind that is used is imported."""


def data_of(kind: str) -> Any:
    """Return the `KIND` of `data.py`. Only `tensors.py` imports TensorFlow."""
    return import_module(f"{KINDS[kind]}.data").KIND


def tensors_of(kind: str) -> Any:
    """Return the `KIND` of `tensors.py`, which imports TensorFlow."""
    return import_module(f"{KINDS[kind]}.tensors").KIND
