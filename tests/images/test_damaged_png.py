"""Damage in a PNG that Pillow does not report. The strict check rejects it, even if the pixels are encoded again."""

import io
import random
from collections.abc import Callable

import pytest
from PIL import Image

from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.images.rejection import Rejection

BLOCK, END = 64, 12


def noise(mode: str) -> bytes:
    """Return a PNG whose only IDAT chunk is nearly the whole file."""
    image = Image.frombytes("RGB", (60, 40), random.Random(1).randbytes(60 * 40 * 3))
    image = image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def start(image: bytes) -> int:
    return len(image) * 2 // 3


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped bit": lambda image: image[: start(image)] + bytes([image[start(image)] ^ 4]) + image[start(image) + 1 :],
    "block of zeros": lambda image: image[: start(image)] + bytes(BLOCK) + image[start(image) + BLOCK :],
    "tail of zeros": lambda image: image[: start(image)] + bytes(len(image) - END - start(image)) + image[-END:],
    "cut to its end": lambda image: image[: start(image)] + image[-END:],
    "cut": lambda image: image[: start(image)],
}
MODES = ("RGB", "L", "RGBA", "LA", "P", "1", "I;16")
RULES = {"keep": Rules(), "resize": Rules(prepare="resize", prepare_size=16), "raw": Rules(prepare="raw")}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("mode", MODES)
def test_an_intact_png_passes(mode: str, rules: str):
    assert isinstance(examine(noise(mode), RULES[rules]), UsableImage)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_png_is_rejected(mode: str, rules: str, damage: str):
    assert isinstance(examine(DAMAGE[damage](noise(mode)), RULES[rules]), Rejection)


def test_the_reason_names_the_damage():
    found = examine(DAMAGE["tail of zeros"](noise("1")), Rules())
    assert isinstance(found, Rejection)
    assert found.reason == "damaged PNG: a checksum of its pixels is wrong"
