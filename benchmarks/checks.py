"""Which check is the cheapest that still finds damage?

    python -m benchmarks.checks FOLDER_OF_JPEGS

Damages copies of photographs in seeded ways, half of them made progressive, and asks each check which it refuses. The
judge is TensorFlow's own decoder: what it refuses ends an epoch. `missed` counts what the judge refuses and neither the
check nor the structural walk does, so that it would reach training. Rates are medians of alternating rounds over sound
files, in CPU time of one core.
"""

import argparse
import io
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from PIL import Image

from pipeline.quality.examine import Rules, UsableImage, examine
from pipeline.quality.wellformed import is_whole_jpeg

PHOTOGRAPHS, COPIES, ROUNDS = 60, 3, 5
Check = Callable[[bytes], bool]
"""Whether an image passes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder with at least 60 JPEGs, in sub-folders or not")
    images = photographs(parser.parse_args().folder)
    rates = measured_rates(images)
    sound = images[: PHOTOGRAPHS // 4] + [progressive(image) for image in images[-PHOTOGRAPHS // 4 :]]
    damaged = [copy for image in sound for copy in damaged_copies(image)]
    refused = [not tensorflow_decodes(copy) for copy in damaged]
    torn = [not is_whole_jpeg(copy) for copy in damaged]
    print(f"{len(damaged)} damaged copies, {sum(refused)} of them refused by TensorFlow\n")
    print(f"{'check':<28}{'images/s':>9}{'ratio':>7}{'refused':>9}{'missed':>8}")
    for name, check in CHECKS.items():
        found = [not check(copy) for copy in damaged]
        missed = sum(bad and not (seen or walk) for bad, seen, walk in zip(refused, found, torn, strict=True))
        ratio = rates[name] / rates[FULL]
        # `header` walks no scan where the file ends well: the walk may not speak for it.
        if name == HEADER:
            missed = sum(bad and not seen for bad, seen in zip(refused, found, strict=True))
        print(f"{name:<28}{rates[name]:>9.0f}{ratio:>7.2f}{sum(found):>9}{missed:>8}")


def photographs(folder: Path) -> list[bytes]:
    paths = sorted(folder.rglob("*.jpg"))
    return [path.read_bytes() for path in random.Random(0).sample(paths, PHOTOGRAPHS)]


def progressive(image: bytes) -> bytes:
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(image)) as opened:
        opened.save(buffer, "JPEG", progressive=True, quality=90)
    return buffer.getvalue()


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
    try:
        return check(image)
    except Exception:  # noqa: BLE001 - decoders raise anything
        return False


def kept(rules: Rules) -> Check:
    """What `examine` lets into the record as it is."""

    def check(image: bytes) -> bool:
        found = examine(image, rules)
        return isinstance(found, UsableImage) and found.encoded is image

    return check


def tensorflow_decodes(image: bytes) -> bool:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return passes(lambda image: tf.io.decode_jpeg(image, channels=3) is not None, image)


FULL, HEADER = "Pillow, full", "examine, header"
CHECKS: dict[str, Check] = {
    FULL: loads(None, 1),
    "Pillow, grey": loads("L", 1),
    "Pillow, grey, 1/2": loads("L", 2),
    "Pillow, grey, 1/4": loads("L", 4),
    "Pillow, colour, 1/8": loads("RGB", 8),
    "Pillow, grey, 1/8": loads("L", 8),
    "structural walk": is_whole_jpeg,
    "examine, strict": kept(Rules()),
    HEADER: kept(Rules(check="header")),
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


def damaged_copies(image: bytes) -> Iterator[bytes]:
    """Copies with flipped bits, overwritten ranges and cuts in the scans, and foreign bytes in the header."""
    rng = random.Random(image)
    scan = image.index(b"\xff\xda") + 12
    for _ in range(COPIES):
        for flips in (1, 20, 200):
            yield patched(image, [(rng.randrange(scan, len(image)), None) for _ in range(flips)], rng)
        for length in (16, 512, 4096):
            start = rng.randrange(scan, len(image))
            for fill in (b"\0", b"\xff", rng.randbytes(1), None):
                yield overwritten(image, start, length, fill, rng)
        cut = image[: rng.randrange(scan, len(image) - 2)]
        yield from (cut, cut + b"\xff\xd9")
        yield patched(image, [(rng.randrange(2, scan), rng.randrange(256)) for _ in range(2)], rng)


def patched(image: bytes, places: Sequence[tuple[int, int | None]], rng: random.Random) -> bytes:
    """With bytes replaced, or one bit of them flipped."""
    copy = bytearray(image)
    for place, value in places:
        copy[place] = copy[place] ^ 1 << rng.randrange(8) if value is None else value
    return bytes(copy)


def overwritten(image: bytes, start: int, length: int, fill: bytes | None, rng: random.Random) -> bytes:
    """With a range of one byte again and again, or of random ones."""
    length = min(length, len(image) - start)
    return image[:start] + (rng.randbytes(length) if fill is None else fill * length) + image[start + length :]


if __name__ == "__main__":
    main()
