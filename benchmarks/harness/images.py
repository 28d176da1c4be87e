"""What is written: images drawn once, kept in a folder, and the same for every writer."""

import io
import os
import random
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = 10
PHOTO = (500, 375)
SMALL = (240, 180)
TINY = (32, 32)
COMPARED_SIZE = (8, 8)
"""Images that are equal at this size count as copies of each other."""


def photographs(folder: Path, count: int) -> Path:
    """`count` JPEGs with the spectrum and the size of ImageNet's: about 110 KB, 500 x 375 or upright."""
    return make_source(folder, count, photograph)


def small_photographs(folder: Path, count: int) -> Path:
    """`count` JPEGs of 240 x 180 pixels with the spectrum of photographs, about 25 KB."""
    return make_source(folder, count, small_photograph)


def tiny_images(folder: Path, count: int) -> Path:
    """`count` JPEGs of 32 x 32 pixels, about 1 KB, as those of CIFAR."""
    return make_source(folder, count, tiny_image)


def images_below(given: Path) -> list[Path]:
    """Return the images in a folder and its folders, in the order of their paths."""
    found = sorted(path for path in given.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not found:
        raise SystemExit(f"no .jpg or .png below {given}: give --images a folder that holds some")
    return found


def different(paths: Sequence[Path]) -> list[Path]:
    """Return the paths of images that look different. Of images that look the same, the first one is kept."""
    by_look: dict[bytes, Path] = {}
    for path in paths:
        by_look.setdefault(Image.open(path).convert("L").resize(COMPARED_SIZE).tobytes(), path)
    return list(by_look.values())


def given_images(folder: Path, count: int, paths: Sequence[Path]) -> Path:
    """Return a source of `count` of these images, repeated from the first if there are fewer."""
    return make_source(folder, count, partial(_read, list(islice(cycle(paths), count + 1))))


def photograph(seed: int) -> bytes:
    """Return one drawn photograph: noise of 1/f, which is what natural images have, with grain on top."""
    rng = np.random.default_rng(seed)
    size = PHOTO if rng.random() < 0.8 else PHOTO[::-1]
    contrast = rng.lognormal(0, 0.35)
    return _jpeg(_noise(rng, size, octaves=9, strength=38 * contrast, grain=11 * contrast), quality=95)


def small_photograph(seed: int) -> bytes:
    """Return one drawn photograph of 240 x 180 pixels."""
    return _jpeg(_noise(np.random.default_rng(seed), SMALL, octaves=8, strength=38, grain=11), quality=95)


def tiny_image(seed: int) -> bytes:
    """Return one drawn image of 32 x 32 pixels."""
    return _jpeg(_noise(np.random.default_rng(seed), TINY, octaves=5, strength=30, grain=4), quality=88)


def linked(folder: Path, count: int, images: Path) -> Path:
    """Return a source of `count` images, each a hard link to one of `images`: many files without many bytes."""
    paths = list(islice(cycle(sorted(images.rglob("*.jpg"))), count + 1))
    if not folder.exists():
        for number, (path, place) in enumerate(zip(paths, _places(folder, count), strict=True)):
            if number < CLASSES or number == count:
                place.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, place)
    return folder


def rows_of(source: Path) -> list[Any]:
    """Return path, class id and class of every training image, mixed as in our own shards."""
    paths = sorted(path.relative_to(source) for path in (source / "train").rglob("*") if path.is_file())
    ids = {text: number for number, text in enumerate(sorted({path.parent.name for path in paths}))}
    rows = [[str(path), ids[path.parent.name], path.parent.name] for path in paths]
    random.Random(0).shuffle(rows)
    return rows


def split(rows: list[Any], parts: int) -> list[list[Any]]:
    """As many lists of about one length."""
    return [rows[number::parts] for number in range(parts)]


def _read(paths: Sequence[Path], number: int) -> bytes:
    return paths[number].read_bytes()


def make_source(folder: Path, count: int, image: Callable[[int], bytes]) -> Path:
    """Return a source of `count` training images in ten classes and one for validation, made once, whole or absent."""
    if not folder.exists():
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        with ProcessPoolExecutor() as pool:
            for place, encoded in zip(
                _places(part, count), pool.map(image, range(count + 1), chunksize=20), strict=True
            ):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(encoded)
        part.rename(folder)
    return folder


def _places(folder: Path, count: int) -> list[Path]:
    """Return paths of a source. The one image for validation keeps our writer from holding more of them back."""
    train = (folder / "train" / f"class-{n % CLASSES}" / f"{n:06d}.jpg" for n in range(count))
    return [*train, folder / "validation" / "class-0" / "held-back.jpg"]


def _noise(rng: np.random.Generator, size: tuple[int, int], octaves: int, strength: float, grain: float) -> Image.Image:
    width, height = size
    pixels = np.full((height, width, 3), 128, np.float32)
    for octave in range(1, octaves):
        cells = rng.normal(size=(2**octave, 2**octave, 4)).astype(np.float32)
        # Most of a natural image's variance is in its brightness, little in its colors.
        colors = 0.85 * cells[..., 3:] + 0.3 * cells[..., :3]
        for channel in range(3):
            layer = Image.fromarray(colors[..., channel]).resize(size, Image.Resampling.BICUBIC)
            pixels[..., channel] += strength / octave * np.asarray(layer)
    pixels += grain * rng.normal(size=(height, width, 1)).astype(np.float32)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
