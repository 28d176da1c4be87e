"""What the answers of an exported model are made from: its calls, and the probabilities of the classes of a dataset."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH = 64
"""Examples in one call of the model."""
SPLIT = "validation"


def of_classes(probabilities: NDArray[Any], known: Sequence[str], names: Sequence[str]) -> NDArray[Any]:
    """Return the probabilities of the classes `names`, of those of the classes `known`; 0 for others."""
    columns = {name: probabilities[:, number] for number, name in enumerate(known)}
    return np.stack([columns.get(name, np.zeros(len(probabilities), np.float32)) for name in names], axis=1)


def with_all_classes(probabilities: NDArray[Any], classes: int) -> NDArray[Any]:
    """Return the probabilities, (n, at least `classes`), with 0 for labels newer than the model: ids never change."""
    return np.pad(probabilities, ((0, 0), (0, max(classes - probabilities.shape[1], 0))))
