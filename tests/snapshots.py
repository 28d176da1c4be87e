"""Snapshots of sources in tests, made with settings and without the stages."""

import time
from collections.abc import Sequence

import pytest

from pipeline.config.preflight import preflight
from pipeline.config.settings import Settings
from pipeline.snapshot.extract import join_listings, list_range, sweep
from pipeline.snapshot.options import extract_options
from pipeline.snapshot.part import PART_LIMITS, PartLimits
from pipeline.sources import detection
from pipeline.sources.key_range import EVERYTHING, KeyRange
from pipeline.storage import Place


def take_snapshot(
    settings: Settings, ranges: Sequence[KeyRange] = (EVERYTHING,), limits: PartLimits = PART_LIMITS
) -> Place:
    """List the source in this process, one range of keys after another, and return the file of the snapshot."""
    preflight(settings)
    options, started_ns = extract_options(settings), time.time_ns()
    sweep(options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.snapshot.extract.PART_LIMITS", limits)
        return join_listings(options, started_ns, (list_range(options, keys, started_ns) for keys in ranges))


def key_ranges(settings: Settings, most: int, min_images: int) -> list[KeyRange]:
    """Return ranges of keys that divide the source."""
    options = extract_options(settings)
    return detection.key_ranges(options.place, options.source, most, min_images)
