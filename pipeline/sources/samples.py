"""Draw sample images, for a first run without images of one's own."""

import math
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

Point = tuple[float, float]
Color = tuple[int, int, int]

_SIDES = (80, 240)
"""The sides of an image are from the first to the second number of pixels long."""
_MAX_TURN = math.radians(15)
"""A shape is tilted by at most this many radians."""
_SMOOTHING = 3
"""Images are drawn this much larger and reduced: Pillow draws hard edges, which no photograph has."""


def draw_samples(folder: Path, count: int = 900, seed: int = 0) -> None:
    """Draw `count` JPEG files into one sub-folder per class. The same seed and version of Pillow give the same bytes.

    Shapes differ in position, size, tilt and color, and so do their backgrounds: only the shape identifies the class.
    Shapes are lighter than the background and roughly upright, because a small CNN would need thousands of images
    otherwise. `folder` is complete or absent, even after an interruption.
    """
    # The folder belongs to this process, so that two processes that draw at the same time do not mix their files.
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        for index in range(count):
            name = list(SHAPES)[index % len(SHAPES)]
            path = part / name / f"{name}-{index // len(SHAPES):04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            # One generator per image, so that another `count` does not change the first images.
            draw_sample(name, random.Random(f"{seed}/{index}")).save(path, quality=90)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def draw_sample(name: str, rng: random.Random) -> Image.Image:
    """Draw one RGB image of a shape, with sides of 80 to 240 pixels."""
    width = rng.randint(*_SIDES)
    height = round(width * rng.uniform(0.7, 1.4))
    size = (width, max(_SIDES[0], min(_SIDES[1], height)))
    ground, ink = _ground_and_ink(rng)
    image = _background(size, ground, rng)
    canvas = image.resize((size[0] * _SMOOTHING, size[1] * _SMOOTHING))
    draw = ImageDraw.Draw(canvas)
    for _ in range(rng.randint(0, 4)):
        color = _near(ground, 90, rng)
        ends = [(rng.uniform(0, canvas.width), rng.uniform(0, canvas.height)) for _ in range(2)]
        draw.line(ends, fill=color, width=rng.randint(2, 5) * _SMOOTHING)
    _draw_shape(draw, canvas.size, SHAPES[name], ink, rng)
    reduced = canvas.resize(size, Image.Resampling.LANCZOS)
    grain = Image.frombytes("L", size, rng.randbytes(size[0] * size[1]))
    soft = reduced.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.8)))
    return Image.blend(soft, grain.convert("RGB"), rng.uniform(0.03, 0.1))


def _arc(begin: float, end: float, steps: int) -> list[Point]:
    angles = (math.radians(begin + (end - begin) * step / steps) for step in range(steps + 1))
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def _ring_of_points(count: int, radii: Sequence[float]) -> list[Point]:
    return [_turn((radii[index % len(radii)], 0.0), 2 * math.pi * index / count) for index in range(count)]


def _turn(point: Point, angle: float) -> Point:
    (x, y), cos, sin = point, math.cos(angle), math.sin(angle)
    return (x * cos - y * sin, x * sin + y * cos)


def _cross() -> list[Point]:
    """Return a cross of four arms, each a third of the width."""
    arm, end = 0.32, 0.95
    quarter = [(arm, arm), (arm, end), (-arm, end)]
    return [_turn(point, quarters * math.pi / 2) for quarters in range(4) for point in quarter]


def _crescent() -> list[Point]:
    """Return a circle without a smaller one at its side."""
    outer = _arc(50, 310, 26)
    # From the last outer point back to the first along a circle around (0.55, 0).
    reach = math.hypot(outer[0][0] - 0.55, outer[0][1])
    tip = math.degrees(math.atan2(outer[0][1], outer[0][0] - 0.55))
    inner = [(0.55 + reach * x, reach * y) for x, y in _arc(360 - tip, tip, 20)]
    return outer + inner


SHAPES: Mapping[str, Sequence[Point]] = {
    "circle": _ring_of_points(48, [1.0]),
    "crescent": _crescent(),
    "cross": _cross(),
    "square": _ring_of_points(4, [1.0]),
    "star": _ring_of_points(10, [1.0, 0.42]),
    "triangle": _ring_of_points(3, [1.0]),
}
"""The outlines of the classes. Each is inside the unit circle around the origin."""


def _ground_and_ink(rng: random.Random) -> tuple[Color, Color]:
    while True:
        ground, ink = _color(rng), _color(rng)
        # A shape that is barely lighter than its background could not be recognized.
        if _luminance(ink) - _luminance(ground) > 70:
            return ground, ink


def _color(rng: random.Random) -> Color:
    return (rng.randint(0, 255), rng.randint(0, 255), rng.randint(0, 255))


def _luminance(color: Color) -> float:
    # These are the luma weights of ITU-R BT.601, as in Pillow's conversion to gray.
    return 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]


def _near(color: Color, spread: int, rng: random.Random) -> Color:
    red, green, blue = (max(0, min(255, channel + rng.randint(-spread, spread) // 2)) for channel in color)
    return (red, green, blue)


def _background(size: tuple[int, int], color: Color, rng: random.Random) -> Image.Image:
    """Return a plain ground, a gradient or blotches, all around one color."""
    cells = rng.choice([1, 2, 2, 6])
    tiny = Image.new("RGB", (cells, cells))
    for cell in range(cells * cells):
        tiny.putpixel((cell % cells, cell // cells), _near(color, 60, rng))
    return tiny.resize(size, Image.Resampling.BICUBIC)


def _draw_shape(
    draw: ImageDraw.ImageDraw,
    size: tuple[int, int],
    outline: Sequence[Point],
    color: Color,
    rng: random.Random,
) -> None:
    radius = min(size) * rng.uniform(0.34, 0.47)
    x, y = (rng.uniform(radius, side - radius) for side in size)
    # Outlines begin at the right. A quarter turn brings the tip of a star to the top.
    angle = rng.uniform(-_MAX_TURN, _MAX_TURN) - math.pi / 2
    turned = (_turn(point, angle) for point in outline)
    draw.polygon([(x + radius * px, y + radius * py) for px, py in turned], fill=color)
