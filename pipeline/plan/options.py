"""The options of a plan, made from the settings when a stage begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pipeline.config.settings import Settings, settings_in_fingerprint
from pipeline.config.workspace import BuildFolders, build_folders
from pipeline.dataset.partitions import LATEST
from pipeline.images.examine import Rules
from pipeline.plan.example_kind import kind_named
from pipeline.plan.sort import SplitRule, line_order
from pipeline.snapshot.part import Arrange

SHARDS_PER_TASK = 5
"""Number of shards that one task writes, unless `shards_per_task` says otherwise."""


@dataclass(frozen=True)
class RecordOptions:
    """What the settings say about records. The rest of their format follows from the source."""

    feature_keys: Literal["model_garden", "plain"]
    label_offset: int | None
    """Id of the first label in the records. None: as the convention of the source wants it."""
    pixels: Literal["raw", "encoded"]
    compression: Literal["none", "gzip"]


@dataclass(frozen=True)
class PlanOptions:
    """The options of a plan."""

    dataset_name: str
    source_uri: str
    """For messages."""
    folders: BuildFolders
    partition: str
    """The partition that the version belongs to: a date, or the latest."""
    label_map: Path | None
    """A file of the user with the ids of the labels."""
    split: SplitRule
    train_shards: int
    servers: int
    shards_per_task: int
    rules: Rules
    """How images are checked and prepared."""
    records: RecordOptions
    in_fingerprint: Mapping[str, Any]
    """The settings whose values are in the fingerprint of the version."""


def partition_of(settings: Settings) -> str:
    """Return the partition that a build belongs to: its date, or "latest"."""
    return settings.data_date or LATEST


def split_rule(settings: Settings) -> SplitRule:
    """Return the settings that decide the split and the order."""
    return SplitRule(
        split_seed=settings.split_seed,
        validation_fraction=settings.validation_fraction,
        test_fraction=settings.test_fraction,
        numbers_copies=not kind_named(settings.example_kind).has_files,
    )


def arrange_of(settings: Settings) -> Arrange:
    """Return the order of the lines of a part, in which they need not be copied when the part is sorted."""
    return partial(line_order, rule=split_rule(settings))


def plan_options(settings: Settings) -> PlanOptions:
    """Return the options of some settings."""
    return PlanOptions(
        dataset_name=settings.dataset_name,
        source_uri=settings.source_uri,
        folders=build_folders(settings),
        partition=partition_of(settings),
        label_map=Path(settings.label_map) if settings.label_map else None,
        split=split_rule(settings),
        train_shards=settings.train_shards,
        servers=settings.num_training_servers,
        shards_per_task=settings.shards_per_task or SHARDS_PER_TASK,
        rules=Rules(
            check=settings.check,
            max_pixels=int(settings.max_megapixels * 1e6),
            prepare=settings.prepare,
            prepare_size=settings.prepare_size,
            crop_to_box=settings.crop_to_box,
            perceptual_hash=settings.near_duplicates,
        ),
        records=RecordOptions(
            feature_keys=settings.feature_keys,
            label_offset=settings.label_offset,
            pixels="raw" if settings.prepare == "raw" else "encoded",
            compression=settings.compression,
        ),
        in_fingerprint=settings_in_fingerprint(settings),
    )
