"""A picture of the model's images: a grid with their labels, made by the code that feeds the training."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from math import ceil, isqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from pipeline import storage
from pipeline.config.automatic import with_automatic_values
from pipeline.config.settings import Settings
from pipeline.dataset import manifest as datasets
from pipeline.dataset.keys import FoundImage
from pipeline.dataset.manifest import Dataset
from pipeline.dataset.unreadable import unreadable_record
from pipeline.input import decode
from pipeline.input.augmentation import flipped, jittered, seed_of_batch
from pipeline.input.damage import damage_named
from pipeline.input.read_whole import UNREADABLE, why_unread
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place
from pipeline.training.inputs import Readers, ServerData

TILE = 160
"""Smaller images are enlarged to the least whole multiple of their size that is at least this, in pixels."""
MAX_TILE = 512
"""Larger images are shrunk to this, in pixels."""
MARGIN = 12
TITLE_HEIGHT = 66
LABEL_HEIGHT = 26
MIN_NAME = 60
"""Width that one more label needs for its id and a part of its name."""
MIN_WIDTH = 480
"""Width that the title needs."""
_PAPER, _INK, _FAINT = "white", "#1f2328", "#6e7781"
FONTS = ("NotoSansCJK-Regular.ttc", "Arial Unicode.ttf", "DejaVuSans.ttf", "Arial.ttf")
"""The first one that the system has is used; those with most scripts come first. Pillow's own has ASCII only."""

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


class Shown(NamedTuple):
    """An image as the model sees it, and the ids of its labels."""

    image: Image.Image
    labels: Sequence[int]


def show(settings: Settings, folder: Place, path: Path | None, *, augmented: bool, count: int) -> Path:
    """Write a PNG of up to `count` images as a training with these settings sees them, and return its path.

    They are the first examples of `judged_split`, or the first training examples with their augmentation if
    `augmented`. The default `path` is NAME-VERSION.png or NAME-VERSION-augmented.png in the current folder.

    Raises:
        DatasetError: If there is no dataset, or its shards are damaged.
        StorageError: If a bucket does not answer.
    """
    dataset = datasets.load(folder)
    datasets.require_shards(folder, dataset)
    split = "training" if augmented else dataset.judged_split
    # One epoch, without a cache of decoded images: that of a training stays as it is.
    given = settings.model_copy(update={"cache": "off", "epochs": 1})
    settings = with_automatic_values(given, dataset.splits["train"].examples)
    data = ServerData(settings, folder, dataset, Server(), should_stop=lambda: False)
    with _augmented(data) if augmented else data.open_judged() as (batches, readers):
        try:
            with damage_named(folder):
                images = list(islice(_examples(batches), count))
        except tf.errors.OpError as error:
            if readers.failure:
                raise readers.failure from error
            raise
    suffix = "-augmented" if augmented else ""
    return _save(images, dataset, _subtitle(split, settings, augmented=augmented), path, suffix)


def show_found(settings: Settings, folder: Place, found: Sequence[FoundImage], path: Path | None) -> Path:
    """Write a PNG of some images of a dataset, as an evaluation sees them, and return its path.

    The default `path` is NAME-VERSION-images.png in the current folder. Raises DatasetError if there is no dataset, or
    one of the images cannot be decoded.
    """
    dataset = datasets.load(folder)
    images = []
    for each in found:
        try:
            stored = decode.parse(tf.constant(each.record), dataset.records)
            image = decode.decode_for_evaluation(stored, dataset.records, settings.crop, settings.image_size)
        except UNREADABLE as error:
            place = folder / each.shard
            raise unreadable_record(dataset, place, each.number, why_unread(error), each.key) from error
        images.append(Shown(Image.fromarray(image.numpy()), np.atleast_1d(stored.label.numpy()).tolist()))
    split = ", ".join(sorted({each.split for each in found}))
    return _save(images, dataset, _subtitle(split, settings), path, "-images")


def _save(images: Sequence[Shown], dataset: Dataset, subtitle: str, path: Path | None, suffix: str) -> Path:
    path = path or Path(f"{dataset.name}-{dataset.version}{suffix}.png")
    picture = draw_grid(images, dataset.names, f"{dataset.name} {dataset.version}", subtitle)
    with storage.write_whole(path) as file:
        picture.save(file, "PNG")
    return path


@contextmanager
def _augmented(data: ServerData) -> Iterator[tuple[tf.data.Dataset, Readers]]:
    """Open the training batches, mirrored and in other colors, as the training steps change them."""
    settings = data.settings

    def augmented(number: tf.Tensor, batch: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        images, labels, weights, mirrored, _ = batch
        images = flipped(images, mirrored)
        return jittered(images, settings.color_jitter, seed_of_batch(settings.seed, number)), labels, weights

    with data.open(start=0) as inputs:
        yield inputs.training.enumerate().map(augmented), inputs.readers


def _examples(batches: Iterable[tuple[tf.Tensor, ...]]) -> Iterator[Shown]:
    for images, labels, weights in batches:
        pixels = tf.cast(tf.round(tf.cast(images, tf.float32)), tf.uint8).numpy()
        for image, label, weight in zip(pixels, labels.numpy(), weights.numpy(), strict=True):
            if weight:  # An example of weight 0 is a copy that fills up the batch.
                # In a batch, the labels of an image are one id, or 0 or 1 for each class.
                ids = np.flatnonzero(label).tolist() if label.ndim else [int(label)]
                yield Shown(Image.fromarray(image), ids)


def _subtitle(split: str, settings: Settings, *, augmented: bool = False) -> str:
    if augmented:
        jitter = [f"color jitter {settings.color_jitter:g}"] if settings.color_jitter else []
        changes = [f"crop {settings.crop}", *(["flip"] if settings.flip else []), *jitter]
    else:
        changes = ["crop whole" if settings.crop == "whole" else "crop center"]
    return f"{split}, {', '.join(changes)}, {settings.image_size} x {settings.image_size} pixels"


def draw_grid(images: Sequence[Shown], names: Sequence[str], title: str, subtitle: str) -> Image.Image:
    """Draw the images in rows, each above ids and names of its labels; as many columns as rows, or one more."""
    side = shown_side(images[0].image.width)
    columns = isqrt(len(images) - 1) + 1
    width = max(columns * (side + MARGIN) + MARGIN, MIN_WIDTH)
    height = TITLE_HEIGHT + ceil(len(images) / columns) * (side + LABEL_HEIGHT) + MARGIN
    picture = Image.new("RGB", (width, height), _PAPER)
    _write(picture, (MARGIN, MARGIN - 2), title, 20, _INK)
    _write(picture, (MARGIN, MARGIN + 23), subtitle, 14, _FAINT)
    for number, (image, labels) in enumerate(images):
        row, column = divmod(number, columns)
        left, top = MARGIN + column * (side + MARGIN), TITLE_HEIGHT + row * (side + LABEL_HEIGHT)
        # Without smoothing, an enlarged image shows its pixels.
        resampling = Image.Resampling.NEAREST if side >= image.width else Image.Resampling.LANCZOS
        picture.paste(image.resize((side, side), resampling), (left, top))
        _write_labels(picture, (left, top + side + 3), side, [(label, names[label]) for label in labels])
    return picture


def shown_side(image_size: int) -> int:
    """Return the side of an image in the picture, in pixels: a multiple of its own side, unless it is very large."""
    return min(ceil(TILE / image_size) * image_size, MAX_TILE)


def _write_labels(picture: Image.Image, corner: tuple[int, int], width: int, labels: Sequence[tuple[int, str]]) -> None:
    """Write each id, faint, then the name. The id helps if the font does not have the script of the name."""
    (left, top), right = corner, corner[0] + width
    for label, name in labels:
        if right - left < MIN_NAME:  # The line is full.
            return
        after = _write(picture, (left, top), str(label), 14, _FAINT) + 6
        left = _write(picture, (after, top), name, 14, _INK, right) + 12


def _write(
    picture: Image.Image, corner: tuple[int, int], text: str, size: int, color: str, right: int | None = None
) -> int:
    """Write one line, cut where it would go beyond `right`, by default the margin; return where it ends."""
    font = _font(size)
    room = (picture.width - MARGIN if right is None else right) - corner[0]
    line = shortened(text, room, font)
    ImageDraw.Draw(picture).text(corner, line, color, font)
    return corner[0] + ceil(font.getlength(line))


def shortened(text: str, width: float, font: Font) -> str:
    """Return the text as one line of at most `width` pixels, with an ellipsis if it is longer.

    Characters that cannot be printed become question marks: a line break has no width, and half a surrogate pair has no
    bytes.
    """
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    if font.getlength(line) <= width:
        return line
    too_long = bisect_left(range(len(line)), True, key=lambda end: font.getlength(line[:end] + "…") > width)
    return line[: max(too_long - 1, 0)].rstrip() + "…"


def _font(size: int) -> Font:
    for name in FONTS:
        with suppress(OSError):  # The system does not have it.
            return ImageFont.truetype(name, size)
    return ImageFont.load_default(size)
