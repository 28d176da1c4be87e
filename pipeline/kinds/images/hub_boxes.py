"""Boxes of a Parquet file of the Hugging Face Hub. Some files store two corners, and others a corner and the size."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.sources import Box

Numbers = Sequence[float]
"""Four numbers in pixels: xmin, ymin, xmax and ymax, or x, y, width and height."""


class BoxesOfImage(NamedTuple):
    """The boxes of an image, and its size in pixels if it is known."""

    boxes: Sequence[Numbers]
    width: float | None
    height: float | None


def are_corners(images: Iterable[BoxesOfImage], column: str) -> bool:
    """Whether boxes are xmin, ymin, xmax and ymax, and not x, y, width and height.

    No name or type tells it: the Hub has both in a column `bbox`. So all boxes are tried in both ways. `column` is the
    name of their column, for the message.

    Raises:
        ValueError: If both ways are possible, or neither.
    """
    can_be_corners = can_be_sizes = True
    has_boxes = False
    for image in images:
        # Annotations are rounded, so a box may end after the last pixel.
        width, height = (math.inf if size is None else size + 1 for size in (image.width, image.height))
        for x, y, third, fourth in image.boxes:
            has_boxes = True
            can_be_corners &= x <= third <= width and y <= fourth <= height
            can_be_sizes &= 0 <= third <= width - x and 0 <= fourth <= height - y
    if has_boxes and can_be_corners == can_be_sizes:
        fits, join = ("either", "or") if can_be_corners else ("neither", "nor")
        raise ValueError(
            f"its boxes in {column!r} can be {fits} two corners {join} a corner, width and height: write the images as "
            "files, with a list that has the columns xmin, ymin, xmax and ymax, or write the file without this column"
        )
    return can_be_corners


def boxes_of(cells: Sequence[Numbers], labels: Sequence[str], has_corners: bool) -> tuple[Box, ...]:
    """Return the boxes of an image that have a label. There is one label for each box, which may be empty."""
    if len(cells) != len(labels):
        raise ValueError(f"an image has {len(cells)} boxes and {len(labels)} labels of boxes")
    return tuple(
        Box(x, y, third, fourth, label) if has_corners else Box(x, y, x + third, y + fourth, label)
        for (x, y, third, fourth), label in zip(cells, labels, strict=True)
        if label
    )
