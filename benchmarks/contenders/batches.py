"""What the readers of images have in common: their batches, and the random part of an image."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

WORKERS = 2
"""Processes or threads of readers that do not choose the number themselves."""


class Batch(NamedTuple):
    """A batch as a reader gives it."""

    size: int
    """Number of its images that count: a last batch can be filled up with others behind them."""
    images: Any = None
    """An array of any library, the images first."""
    labels: Any = None


Batches = Callable[[int], Iterator[Batch]]
"""From a number of epochs to their batches."""


def part_of(width: int, height: int, crop: str) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the part of an image that a batch shows: a random part, or the whole."""
    return (0, 0, width, height) if crop == "whole" else random_box(width, height)


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random part: 8 to 100% of the area, 3:4 to 4:3; the whole after ten tries."""
    for _ in range(10):
        area = random.uniform(0.08, 1) * width * height
        ratio = (3 / 4) * (16 / 9) ** random.random()
        wide, high = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < wide <= width and 0 < high <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - high)
            return left, top, left + wide, top + high
    return 0, 0, width, height
