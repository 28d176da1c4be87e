"""What damage does each check find, and what does it cost?

    python -m benchmarks.checks FOLDER_OF_JPEGS

Damages copies of photographs in ten seeded ways, and asks TensorFlow's decoder and both checks which they refuse. What
TensorFlow refuses ends an epoch: `missed` counts the copies of these that pass `strict`. What TensorFlow decodes may
still be another picture: `wrong` counts the copies that pass `strict`, and of which more than a tenth of the pixels
differ by more than 16 of 255. Rates are medians of alternating rounds over sound files, in CPU time of one core.
"""

import argparse
import io
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.images.jpeg_decoder import luminance

PHOTOGRAPHS, ROUNDS = 120, 5
BLOCK = 4096
Check = Callable[[bytes], bool]
"""Whether an image passes."""


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help=f"a folder with at least {PHOTOGRAPHS} JPEGs, in sub-folders or not")
    everything = [path.read_bytes() for path in sorted(parser.parse_args().folder.rglob("*.jpg"))]
    images = random.Random(0).sample(everything, PHOTOGRAPHS)
    print(f"{'damage':<34}{'TensorFlow':>11}{'strict':>8}{'header':>8}{'missed':>8}{'wrong':>7}   of {PHOTOGRAPHS}")
    for name, damage in DAMAGE.items():
        copies = [damage(image, random.Random(image)) for image in images]
        refused = [sum(not check(copy) for copy in copies) for check in (tensorflow_decodes, STRICT, HEADER)]
        passed = [pair for pair in zip(images, copies, strict=True) if STRICT(pair[1])]
        missed = sum(not tensorflow_decodes(copy) for _, copy in passed)
        wrong = sum(is_other_picture(*pair) for pair in passed)
        print(f"{name:<34}{refused[0]:>11}{refused[1]:>8}{refused[2]:>8}{missed:>8}{wrong:>7}")
    print(
        f"\nfalse alarms of strict on {len(everything)} sound ones: {sum(not STRICT(image) for image in everything)}\n"
    )
    rates = measured_rates(images)
    for name, rate in rates.items():
        print(f"{name:<34}{rate:>7.0f} images/s of one core{rate / rates[FULL]:>7.2f}")


def loads(mode: str | None, denominator: int) -> Check:
    """Pillow's decoding to a mode and a fraction of the size."""

    def check(image: bytes) -> bool:
        with Image.open(io.BytesIO(image), formats=("JPEG",)) as opened:
            if mode is not None:
                opened.draft(mode, (opened.width // denominator or 1, opened.height // denominator or 1))
            opened.load()
        return True

    return lambda image: passes(check, image)


def passes(check: Check, image: bytes) -> bool:
    """Return whether a check passes an image. An error of a decoder counts as a no."""
    try:
        return check(image)
    except Exception:  # noqa: BLE001 - decoders raise anything
        return False


def accepted(rules: Rules) -> Check:
    """Return what `examine` lets into a record, as it is or converted."""
    return lambda image: isinstance(examine(image, rules), UsableImage)


def tensorflow_decodes(image: bytes) -> bool:
    """Return whether TensorFlow decodes an image."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return passes(lambda image: tf.io.decode_jpeg(image, channels=3) is not None, image)


def is_other_picture(sound: bytes, damaged: bytes) -> bool:
    """Whether more than a tenth of the pixels differ visibly."""
    one, other = pixels(sound), pixels(damaged)
    return one.shape != other.shape or bool((np.abs(one - other).max(axis=2) > 16).mean() > 0.1)


def pixels(image: bytes) -> NDArray[np.int16]:
    """Return the RGB pixels of an image, as (height, width, 3)."""
    with Image.open(io.BytesIO(image)) as opened:
        return np.asarray(opened.convert("RGB"), np.int16)


FULL = "Pillow, full decode"
STRICT, HEADER = accepted(Rules()), accepted(Rules(check="header"))
CHECKS: dict[str, Check] = {
    FULL: loads(None, 1),
    "Pillow, gray, 1/8": loads("L", 8),
    "simplejpeg, gray, 1/8": lambda image: passes(lambda image: luminance(image, 1) is not None, image),
    "examine, strict": STRICT,
    "examine, header": HEADER,
}


def measured_rates(images: Sequence[bytes]) -> dict[str, float]:
    """Images a second of each check."""
    seconds: dict[str, list[float]] = {name: [] for name in CHECKS}
    for _ in range(ROUNDS):
        for name, check in CHECKS.items():
            start = time.process_time()
            for image in images:
                check(image)
            seconds[name].append(time.process_time() - start)
    return {name: len(images) / statistics.median(rounds) for name, rounds in seconds.items()}


def scan_of(image: bytes) -> int:
    """Where the entropy code begins."""
    return image.index(b"\xff\xda") + 12


def place(image: bytes, rng: random.Random, length: int = 1) -> int:
    """Return a place in the entropy code that `length` bytes fit behind."""
    start = scan_of(image)
    return rng.randrange(start, max(start + 1, len(image) - 2 - length))


def flipped(image: bytes, rng: random.Random, bits: int) -> bytes:
    """Return a copy with some bits of the entropy code flipped."""
    copy = bytearray(image)
    for _ in range(bits):
        copy[place(image, rng)] ^= 1 << rng.randrange(8)
    return bytes(copy)


def overwritten(image: bytes, rng: random.Random, content: bytes) -> bytes:
    """Return a copy with other content in a place of the entropy code."""
    start = place(image, rng, len(content))
    return image[:start] + content + image[start + len(content) :]


def lost(image: bytes, rng: random.Random) -> bytes:
    """Return a copy without a block of the entropy code."""
    start = place(image, rng, BLOCK)
    return image[:start] + image[start + BLOCK :]


def cut(image: bytes, rng: random.Random, tail: bytes = b"") -> bytes:
    """Return a copy that ends in the middle of the entropy code, and then with `tail`."""
    return image[: place(image, rng)] + tail


def zeroed_tail(image: bytes, rng: random.Random) -> bytes:
    """Return a copy with zeros from a place in the entropy code to the end marker."""
    start = place(image, rng)
    return image[:start] + bytes(len(image) - start - 2) + b"\xff\xd9"


def foreign_header(image: bytes, rng: random.Random) -> bytes:
    """Return a copy with two other bytes in the header."""
    copy = bytearray(image)
    for _ in range(2):
        copy[rng.randrange(2, scan_of(image))] = rng.randrange(256)
    return bytes(copy)


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "one bit flipped": lambda image, rng: flipped(image, rng, 1),
    "20 bits flipped": lambda image, rng: flipped(image, rng, 20),
    "512 bytes overwritten": lambda image, rng: overwritten(image, rng, rng.randbytes(512)),
    "block of 4 KiB zeroed": lambda image, rng: overwritten(image, rng, bytes(BLOCK)),
    "block of 4 KiB lost": lost,
    "block of 4 KiB of another file": lambda image, rng: overwritten(image, rng, rng.randbytes(BLOCK)),
    "tail cut": cut,
    "tail cut, end marker": lambda image, rng: cut(image, rng, b"\xff\xd9"),
    "tail zeroed, end marker": zeroed_tail,
    "two bytes of the header": foreign_header,
}


if __name__ == "__main__":
    main()
