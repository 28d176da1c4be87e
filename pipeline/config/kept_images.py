"""When a training can keep decoded images for its later epochs, and how many bytes they take."""

from pipeline.config.automatic import TrainingSettings
from pipeline.config.example_kinds import IMAGES

PREPARED_PER_CROP = 8 / 7
"""Ratio of the side of a prepared image to the side of the crop that training takes from it (pipeline/input)."""
USABLE = 0.5
"""Kept images may take this share of the free memory or disk: the training itself and other programs need the rest."""
_MEAN_SHAPE = 4 / 3
"""Most photographs have this ratio of the longer to the shorter side."""


def can_keep(settings: TrainingSettings) -> bool:
    """Return whether a training can keep decoded images."""
    return settings.example_kind == IMAGES and settings.crop != "random_resized" and not settings.balanced


def keeps_decoded(settings: TrainingSettings, *, fit_memory: bool) -> bool:
    """Return whether a training keeps decoded images, so that one of its epochs decodes them, and the others do not.

    `fit_memory` says whether they fit in memory.
    """
    cache = settings.cache
    return can_keep(settings) and (cache in ("memory", "disk") or (cache == "auto" and fit_memory))


def kept_bytes(image_size: int, crop: str, *, train: int, validation: int) -> int:
    """Return about how many bytes the decoded images of some training and validation examples take."""
    seen = image_size**2 * 3
    # With crop=random, the whole image is kept, at the scale at which a crop has the model's size.
    larger = seen if crop == "whole" else round(seen * PREPARED_PER_CROP**2 * _MEAN_SHAPE)
    return train * larger + validation * seen
