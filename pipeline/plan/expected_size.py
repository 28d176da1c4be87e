"""Estimate the size of the shards before one is written."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import SourceError
from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.plan.assign import empty_shards_advice, near_duplicates_advice, size_advice
from pipeline.plan.example_kind import kind_of
from pipeline.plan.options import PlanOptions
from pipeline.plan.order import Order
from pipeline.snapshot.part import TRAIN
from pipeline.snapshot.raw_example import RawExample, why_unread
from pipeline.snapshot.raw_reader import RawReader
from pipeline.snapshot.snapshot import Snapshot
from pipeline.storage.local import nearest
from pipeline.system.wording import format_size

SAMPLES = 24
"""This many images are prepared to estimate the size of all."""
_log = logging.getLogger(__name__)


def log_plan(snapshot: Snapshot, order: Order, counts: Mapping[str, int], version: str, options: PlanOptions) -> None:
    """Log the numbers of examples and shards, their expected size, and advice about it."""
    kind = kind_of(snapshot)
    for split, shards in counts.items():
        _log.info(
            "version %s: writing %d %s %s into %d shards",
            *(version, order.examples[split], split, kind.nouns, shards),
        )
    rules = kind.rules(options.rules)
    total, folder = _expected_bytes(snapshot, order, rules), options.folders.shards_of(version)
    if rules.prepare != "keep":
        _log.info(
            "prepare=%s: about %s of shards from %s of images",
            *(rules.prepare, format_size(total), format_size(snapshot.bytes)),
        )
    if isinstance(folder, Path):  # A bucket is never full.
        place = nearest(folder)  # The folder of the shards may not exist yet.
        free = shutil.disk_usage(place).free
        if free < total:
            _log.warning(
                "%s has %s left, but the shards will take about %s", place, format_size(free), format_size(total)
            )
    train_bytes = total * order.examples[TRAIN] // snapshot.listed
    for advice in (
        size_advice(train_bytes, options.train_shards),
        empty_shards_advice(order.examples[TRAIN], options.train_shards),
        near_duplicates_advice(snapshot.listed) if rules.perceptual_hash else "",
    ):
        if advice:
            _log.warning(advice)


def _expected_bytes(snapshot: Snapshot, order: Order, rules: Rules) -> int:
    """Return the expected size of all shards: that of the images, or that of a prepared sample times their number."""
    if rules.prepare == "keep":
        return snapshot.bytes
    reader = RawReader(snapshot.origin)
    samples = [_prepared_bytes(reader, row, rules) for row in order.first_rows(TRAIN, SAMPLES)]
    usable = [size for size in samples if size]
    return sum(usable) * snapshot.listed // max(len(usable), 1)


def _prepared_bytes(reader: RawReader, row: RawExample, rules: Rules) -> int:
    """Return the size of an image in its record, 0 if it cannot be used."""
    if why_unread(row, reader.origin):
        return 0
    try:
        image = examine(reader.read(row), rules, key=row.key)
    except SourceError:  # This is only an estimate. Writing the shard reports the error.
        return 0
    return len(image.encoded) if isinstance(image, UsableImage) else 0
