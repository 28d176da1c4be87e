"""What the pages share: the frame around them, tables, sizes in words, and pictures small enough to be put in."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image, ImageOps

_FORMATS = ("JPEG", "PNG")
"""The images come from outside, so only the decoders of the formats in a record open them."""


@dataclass(frozen=True)
class Table:
    """A table of text: rows below `head`, with a `note` below them."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def environment() -> Environment:
    """Return the Jinja environment of the templates in this folder. It escapes every value and makes it visible."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=make_visible,
    )


def make_visible(value: Any) -> Any:
    r"""Return text with escapes for what a screen does not show, or what reverses text: `\n`, surrogates, U+202E.

    Every value of a page passes through here. Markup stays as it is.
    """
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in value)


def fact_tables(groups: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """Return (title, table of names and values) for each group that has content."""
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


def pictures(samples: Sequence[tuple[str, bytes]], side: int) -> list[tuple[str, str]]:
    """Return (label, data URI of a thumbnail) of every sample that can be decoded."""
    return [(label, uri) for label, encoded in samples if (uri := thumbnail(encoded, side))]


def thumbnail(encoded: bytes, side: int) -> str | None:
    """Return the whole image, upright and shrunk to `side` pixels, as the data URI of a JPEG.

    Returns None if it cannot be decoded. An image that is smaller keeps its size.
    """
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            # Decodes a JPEG at a fraction of its size, which saves most of the time for a large photograph.
            image.draft("RGB", (2 * side, 2 * side))
            small = ImageOps.exif_transpose(image).convert("RGB")
            small.thumbnail((side, side))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # A page without one image is better than no page.
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
