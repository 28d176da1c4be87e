"""What the pages share: the frame around them, tables, sizes in words, and pictures small enough to be put in."""

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image, ImageOps

# Written by others, so opened with the decoders of what a record holds, and no others.
_FORMATS = ("JPEG", "PNG")

Shrink = Callable[[Image.Image, tuple[int, int]], Image.Image]
"""From an image and (width, height) in pixels to a small one."""


@dataclass(frozen=True)
class Table:
    """Rows of ready text under `head`; `note` stands below."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def environment() -> Environment:
    """Where the templates beside this file are found; every value is escaped and made visible."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=visible,
    )


def visible(value: Any) -> Any:
    """Text without anything that no screen shows or that turns it around: a line end, half a character, U+202E.

    Every value goes through here on its way into the page; what is markup already stays as it is.
    """
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in value)


def size(count: float) -> str:
    """Bytes in the largest unit that keeps them over one, with three digits."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def fact_tables(groups: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """Tables of name and value by title; what is empty or unknown is left out."""
    return [
        (title, Table(("name", "value"), [(str(name), text(value)) for name, value in group.items()]))
        for title, group in groups.items()
        if isinstance(group, Mapping) and group
    ]


def text(value: object) -> str:
    """Return a value as a table shows it: six digits of a float, JSON of a list or a mapping."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def pictures(samples: Sequence[tuple[str, bytes]], side: int, shrink: Shrink) -> list[tuple[str, str]]:
    """(label, data URI of a small JPEG) of every sample that can be decoded; `thumbnail` says how."""
    made = ((label, thumbnail(encoded, side, shrink)) for label, encoded in samples)
    return [(label, uri) for label, uri in made if uri]


def thumbnail(encoded: bytes, side: int, shrink: Shrink) -> str | None:
    """An image, upright and shrunk to `side` pixels both ways, as the data URI of a JPEG; None where it has no pixels.

    `shrink` says what becomes of one that is no square: `ImageOps.fit` cuts it, `whole` does not.
    """
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            image.draft("RGB", (2 * side, 2 * side))
            small = shrink(ImageOps.exif_transpose(image).convert("RGB"), (side, side))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # a page without one picture is better than no page
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def whole(image: Image.Image, most: tuple[int, int]) -> Image.Image:
    """The image within so many pixels, not cut and not enlarged."""
    small = image.copy()
    small.thumbnail(most)
    return small
