"""The form of the boxes of a source. Some files store two corners, and others a corner and the size.

No name or type tells it: the Hugging Face Hub has both in a column `bbox`. So all boxes of all files are tried in both
forms. Each piece of a container yields a `BoxForms`, and the index of the source adds them up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.sources import Box

Numbers = Sequence[float]
"""Four numbers in pixels: xmin, ymin, xmax and ymax, or x, y, width and height."""


class BoxesOfImage(NamedTuple):
    """The boxes of an image, and its size in pixels if it is known."""

    boxes: Sequence[Numbers | None]
    width: float | None
    height: float | None


@dataclass
class BoxForms:
    """Which forms some boxes can have."""

    column: str
    """The name of their column, for messages."""
    largest: float | None = None
    """The largest number of all boxes; None if there is no box."""
    has_fractions: bool = False
    """Whether a number is no integer."""
    no_corners: str = ""
    """The first box that cannot be xmin, ymin, xmax and ymax, and where it is."""
    no_sizes: str = ""
    """The first box that cannot be x, y, width and height, and where it is."""

    def add(self, image: BoxesOfImage, where: str) -> None:
        """Add the boxes of an image. Raises ValueError if a box is damaged, or if neither form is possible."""
        # Annotations are rounded, so a box may end after the last pixel.
        width, height = (math.inf if size is None else size + 1 for size in (image.width, image.height))
        for box in image.boxes:
            if box is None or len(box) != 4 or None in box:
                raise ValueError(
                    f"a box in {self.column!r} is {box} instead of four numbers: correct it, or write the file "
                    "without the boxes"
                )
            x, y, third, fourth = box
            self.largest = max(*box, *([] if self.largest is None else [self.largest]))
            self.has_fractions = self.has_fractions or any(number % 1 for number in box)
            if not self.no_corners and not (x <= third <= width and y <= fourth <= height):
                self.no_corners = f"{box} in {where}"
            if not self.no_sizes and not (0 <= third <= width - x and 0 <= fourth <= height - y):
                self.no_sizes = f"{box} in {where}"
        if self.largest is not None and self.largest > 1:
            self._require_a_form()

    def merge(self, other: "BoxForms") -> None:
        """Add the boxes of other rows. Raises ValueError if no form is possible for both."""
        self.largest = max((each for each in (self.largest, other.largest) if each is not None), default=None)
        self.has_fractions = self.has_fractions or other.has_fractions
        self.no_corners, self.no_sizes = self.no_corners or other.no_corners, self.no_sizes or other.no_sizes
        self._require_a_form()

    def require_pixels(self) -> None:
        """Raise ValueError if all boxes are fractions of the size of their image."""
        if self.largest is not None and 0 < self.largest <= 1 and self.has_fractions:
            raise ValueError(
                f"its boxes in {self.column!r} are fractions of the image size: multiply them by its width and height"
            )
        self._require_a_form()

    def are_corners(self) -> bool:
        """Return whether the boxes are two corners. Raises ValueError if both forms are possible."""
        if self.largest is not None and not self.no_corners and not self.no_sizes:
            raise ValueError(
                f"the boxes in {self.column!r} could be two corners (xmin, ymin, xmax, ymax), or x, y, width and "
                "height: add the columns width and height with the size of each image in pixels, or write the files "
                "without the boxes"
            )
        return not self.no_corners

    def _require_a_form(self) -> None:
        if self.no_corners and self.no_sizes:
            raise ValueError(
                f"the boxes in {self.column!r} are neither two corners ({self.no_corners}) nor x, y, width and height "
                f"({self.no_sizes}), in pixels: correct them, or write the files without the boxes"
            )


def boxes_of(cells: Sequence[Numbers], labels: Sequence[str]) -> tuple[Box, ...]:
    """Return the boxes of an image that have a label, with four numbers of any form.

    There is one label for each box, which may be empty.
    """
    if len(cells) != len(labels):
        raise ValueError(
            f"an image has {len(cells)} boxes, but {len(labels)} labels of boxes: write one label for each box"
        )
    return tuple(
        # As in a list: integers would give the same images another version.
        Box(float(first), float(second), float(third), float(fourth), label)
        for (first, second, third, fourth), label in zip(cells, labels, strict=True)
        if label
    )


def with_corners(box: Box) -> Box:
    """Return a box whose numbers are x, y, width and height as one with two corners."""
    x, y, width, height, label = box
    return Box(x, y, x + width, y + height, label)
