"""The sections of `benchmarks.gpu`, each in a process of its own, because TensorFlow frees a GPU only at its end.

section.py    the process of a section
data.py       the machine, and the datasets of drawn photographs
steps.py      steps alone, in the loop, and fed from the datasets
trainings.py  a training with the monitor beside nvidia-smi, and two trainings on one GPU
models.py     a small vision transformer
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CLASSES = 10


@dataclass(frozen=True)
class Row:
    """A result: what was measured, the result in words, and its numbers."""

    what: str
    result: str
    numbers: dict[str, Any] = field(default_factory=dict)


Report = Callable[[Row], None]
"""Takes a row as soon as it is known."""
