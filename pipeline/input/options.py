"""What a batch is to look like."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.config import Settings

Crop = Literal["random", "random_resized", "whole"]
CENTER = 7 / 8
"""Side of a window of `random`, and of the window in the center that is evaluated, over the image's shorter side."""
_CROPS = ("random", "random_resized", "whole")


@dataclass(frozen=True)
class BatchOptions:
    """How examples become batches.

    Raises ValueError for a value that none of them can have.
    """

    image_size: int
    """Side of the square images, in pixels."""
    batch_size: int
    """Examples in a batch, on each server."""
    seed: int = 0
    """Decides the order, the windows and the flips, together with the epoch."""
    crop: Crop = "random"
    """Of a training image. random: a square window of one size at a random place, which is not resampled where the
    images are hardly larger than it. random_resized: a window of random size, shape and place, resampled. whole: all of
    it, squeezed into the square."""
    min_crop_area: float = 0.25
    """Of random_resized: the smallest window, as a share of the image."""
    flip: bool = True
    """Mirror half of the training images."""
    balanced: bool = False
    """Show all classes equally often: examples of rare ones several times an epoch, of frequent ones not always."""
    shuffle_bytes: int = 128_000_000
    """Memory of the shuffle buffer."""
    prefetch_batches: int = 4
    """Batches that are ready before they are asked for."""
    cache: str = "off"
    """Where decoded images are kept for the epochs that follow: off, memory, or what the absolute paths of files begin
    with that only this data set and these options use: what lies there is taken as it is. `open_cache` sees to that."""

    def __post_init__(self) -> None:
        for name, least in (("image_size", 1), ("batch_size", 1), ("shuffle_bytes", 1), ("prefetch_batches", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.min_crop_area <= 1:
            raise ValueError(f"min_crop_area must be over 0 and at most 1, got {self.min_crop_area}")
        if self.crop not in _CROPS:
            raise ValueError(f"crop must be one of {', '.join(_CROPS)}, got {self.crop!r}")
        if self.cache not in ("off", "memory") and not Path(self.cache).is_absolute():
            raise ValueError(
                f"cache must be off, memory or an absolute path, got {self.cache!r}: `open_cache` of pipeline.input "
                "knows what auto and disk mean"
            )
        if self.cache != "off" and self.crop == "random_resized":
            raise ValueError("cache needs crop=random or crop=whole: random_resized reads every image whole, each time")
        if self.cache != "off" and self.balanced:
            raise ValueError("cache must be off where balanced is set: it takes other examples in every epoch")


def batch_options(settings: Settings) -> BatchOptions:
    """How the settings want examples to become batches; what is kept of them is decided elsewhere."""
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
