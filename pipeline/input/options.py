"""The options of a batch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pipeline.config.automatic import TrainingSettings

CropMode = Literal["random", "random_resized", "whole"]
CENTER = 7 / 8
"""Side of a crop of `random`, and of the center crop for an evaluation, over the image's shorter side."""


@dataclass(frozen=True)
class BatchOptions:
    """How examples become batches.

    Raises:
        ValueError: If an option has a value that it cannot have.
    """

    image_size: int
    """Side of the square images, in pixels."""
    batch_size: int
    """Examples in a batch, on each server."""
    seed: int = 0
    """Decides the order, the crops and the flips, together with the epoch."""
    crop: CropMode = "random"
    """The part of a training image that the model sees. random: a square of one size at a random place, which is not
    resampled if the images are hardly larger than it. random_resized: a part of random size, shape and place,
    resampled. whole: the whole image, squeezed into the square."""
    min_crop_area: float = 0.25
    """Smallest crop of random_resized, as a share of the image's area."""
    flip: bool = True
    """Mirror half of the training images."""
    balanced: bool = False
    """Show all classes equally often: examples of rare ones several times an epoch, of frequent ones not always."""
    shuffle_bytes: int = 128_000_000
    """Memory of the shuffle buffer."""
    prefetch_batches: int = 4
    """Batches that are made ahead of the training."""
    cache: str = "off"
    """Where decoded images are kept for later epochs: off, memory, or an absolute path that file names begin with.
    Files that are there are used as they are, so that only one dataset with one set of options may have them.
    `open_cache` takes care of that."""
    kept_from: int = 1
    """The first epoch whose decoded images are kept, from 1. Earlier ones were read in another way."""

    def __post_init__(self) -> None:
        for name in ("image_size", "batch_size", "shuffle_bytes", "prefetch_batches", "kept_from"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.min_crop_area <= 1:
            raise ValueError(f"min_crop_area must be over 0 and at most 1, got {self.min_crop_area}")
        if self.crop not in get_args(CropMode):
            raise ValueError(f"crop must be one of {', '.join(get_args(CropMode))}, got {self.crop!r}")
        if self.cache not in ("off", "memory") and not Path(self.cache).is_absolute():
            raise ValueError(
                f"cache must be off, memory or an absolute path, got {self.cache!r}: `open_cache` of pipeline.input "
                "resolves auto and disk"
            )
        if self.cache != "off" and self.crop == "random_resized":
            raise ValueError(
                "cache must be off with crop=random_resized, which needs the whole image in each epoch: set "
                "crop=random or crop=whole"
            )
        if self.cache != "off" and self.balanced:
            raise ValueError("cache must be off with balanced, which selects other examples in each epoch")


def batch_options(settings: TrainingSettings) -> BatchOptions:
    """Return the options of the settings, but for `cache`, which `open_cache` decides."""
    return BatchOptions(
        image_size=settings.image_size,
        batch_size=settings.batch_size,
        seed=settings.seed,
        crop=settings.crop,
        min_crop_area=settings.min_crop_area,
        flip=settings.flip,
        balanced=settings.balanced,
        shuffle_bytes=settings.shuffle_megabytes * 1_000_000,
        prefetch_batches=settings.prefetch_batches,
    )
