"""The kinds of examples: images, and the rows of a table.

A kind is a folder of `pipeline/kinds/`. Its `data.py` says how its examples are listed, planned, written and verified,
as a `KIND` of the class `ExampleKind` (pipeline/plan/example_kind.py). Its `tensors.py` says how they become batches
and predictions of a model, as a `KIND` of the class `TensorKind` (pipeline/training/model/tensor_kind.py).

Rooms below `pipeline/kinds/` find a kind here, by its name. The linter, which checks the layers, does not see this.
"""

from importlib import import_module
from typing import Any, NamedTuple

IMAGES, TABLE = "images", "table"
APPLICATIONS = (
    "MobileNetV2",
    "MobileNetV3Small",
    "MobileNetV3Large",
    "EfficientNetV2B0",
    "ResNet50",
    "InceptionResNetV2",
)
"""The models of keras.applications that `model` may name."""


class KindEntry(NamedTuple):
    """What is known of a kind without importing it."""

    folder: str
    """The package with its `data.py` and `tensors.py`."""
    models: tuple[str, ...]
    """The values of `model` for its examples, apart from a user's own function. The first one is the default."""


KINDS = {
    IMAGES: KindEntry("pipeline.kinds.images", ("small_cnn", *APPLICATIONS)),
    TABLE: KindEntry("pipeline.kinds.table", ("mlp",)),
}
"""The kinds, by the value of `example_kind`. Only the kind that is used is imported."""


def data_of(kind: str) -> Any:
    """Return the `KIND` of `data.py`. Only `tensors.py` imports TensorFlow."""
    return import_module(f"{KINDS[kind].folder}.data").KIND


def tensors_of(kind: str) -> Any:
    """Return the `KIND` of `tensors.py`, which imports TensorFlow."""
    return import_module(f"{KINDS[kind].folder}.tensors").KIND
