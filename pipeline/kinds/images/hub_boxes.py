"""Boxes of a Parquet file of the Hugging Face Hub. Some files store two corners, and others a corner and the size."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.sources import Box

Numbers = Sequence[float]
"""Four numbers in pixels: xmin, ymin, xmax and ymax, or x, y, width and height."""


class BoxesOfImage(NamedTuple):
    """The boxes of an image, and its size in pixels if it is known."""

    boxes: Sequence[Numbers | None]
    width: float | None
    height: float | None


def are_corners(images: Iterable[BoxesOfImage], column: str) -> bool:
    """Whether boxes are xmin, ymin, xmax and ymax, and not x, y, width and height.

    No name or type tells it: the Hub has both in a column `bbox`. So all boxes are tried in both ways. `column` is the
    name of their column, for the message.

    Raises:
        ValueError: If both ways are possible, or neither, or if a box is damaged.
    """
    no_corners = no_sizes = ""
    largest: float = -math.inf
    for number, image in enumerate(images, 1):
        # Annotations are rounded, so a box may end after the last pixel.
        width, height = (math.inf if size is None else size + 1 for size in (image.width, image.height))
        for box in image.boxes:
            if box is None or len(box) != 4 or None in box:
                raise ValueError(
                    f"a box in {column!r} is {box} instead of four numbers: correct it, or write the file without the "
                    "boxes"
                )
            x, y, third, fourth = box
            largest = max(largest, *box)
            if not (x <= third <= width and y <= fourth <= height):
                no_corners = no_corners or f"{box} in row {number}"
            if not (0 <= third <= width - x and 0 <= fourth <= height - y):
                no_sizes = no_sizes or f"{box} in row {number}"
    _require_one_form(largest, no_corners, no_sizes, column)
    return not no_corners


def _require_one_form(largest: float, no_corners: str, no_sizes: str, column: str) -> None:
    """Raise ValueError unless boxes have one form. `no_corners` and `no_sizes` are the first boxes that contradict."""
    if 0 < largest <= 1:
        raise ValueError(
            f"its boxes in {column!r} are fractions of the image size: multiply them by its width and height"
        )
    if largest > -math.inf and not no_corners and not no_sizes:
        raise ValueError(
            f"the boxes in {column!r} could be two corners (xmin, ymin, xmax, ymax), or x, y, width and height: add "
            "the columns width and height with the size of each image in pixels, or write the file without the boxes"
        )
    if no_corners and no_sizes:
        raise ValueError(
            f"its boxes in {column!r} are neither two corners ({no_corners}) nor x, y, width and height ({no_sizes}), "
            "in pixels: correct them, or write the file without the boxes"
        )


def boxes_of(cells: Sequence[Numbers], labels: Sequence[str], has_corners: bool) -> tuple[Box, ...]:
    """Return the boxes of an image that have a label. There is one label for each box, which may be empty."""
    if len(cells) != len(labels):
        raise ValueError(
            f"an image has {len(cells)} boxes, but {len(labels)} labels of boxes: write one label for each box"
        )
    return tuple(
        Box(x, y, third, fourth, label) if has_corners else Box(x, y, x + third, y + fourth, label)
        for (x, y, third, fourth), label in zip(cells, labels, strict=True)
        if label
    )
