"""Snapshot -> plan files. They decide everything; writing shards only follows them.

One task reads one plan file, whatever the number of examples. Its first line describes the shards. Each further line is
a piece of a sorted part of the snapshot. The task merges the pieces into the rows of its shards.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.config import Settings, settings_in_fingerprint
from pipeline.dataset.labels import labels_of_file, proposed_labels, reserve_labels
from pipeline.dataset.manifest import is_committed, last_version, load, require_shards
from pipeline.dataset.partitions import save_listed
from pipeline.errors import SourceError
from pipeline.gate.decide import Ask, decide, findings, notices
from pipeline.gate.facts import DUPLICATES, planned_facts, skipped_by_name
from pipeline.plan.assign import (
    shard_counts,
    shard_specs,
)
from pipeline.plan.expected_size import log_plan
from pipeline.plan.files import write_plan_files
from pipeline.plan.kinds import kind_of
from pipeline.plan.order import Order
from pipeline.plan.plan import Plan, save_plan
from pipeline.plan.sort import SplitRule
from pipeline.plan.version import labels_in_order, record_format, version_of
from pipeline.snapshot.part import TRAIN
from pipeline.snapshot.snapshot import Snapshot, load_snapshot
from pipeline.storage import Place
from pipeline.workspace import dataset_folder, name_folder, shards_folder, work_folder

_log = logging.getLogger(__name__)


def make_plan(settings: Settings, snapshot_path: Place, ask: Ask | None = None) -> Place:
    """Decide the version, the split, the order and the shards, and write a plan file for each range of shards.

    Returns the file of the whole plan. `ask` asks a person if the settings of the data gate say so.

    Raises SourceError if no example is left for training, GateError if the examples exceed a threshold, DatasetError if
    the version is committed but lost a shard.
    """
    # A person is asked only once, even if another run adds labels and the plan is made again.
    ask = cache(ask) if ask else None
    snapshot = load_snapshot(snapshot_path)
    storage.sweep(snapshot_path.parent)  # A killed attempt may have been sorting a part.
    order = _order(snapshot, settings)
    shards = shard_counts(order.examples, settings.train_shards, settings.num_training_servers)
    needed = labels_in_order(snapshot)
    if settings.label_map:
        labels = labels_of_file(Path(settings.label_map), needed)
    else:
        labels = proposed_labels(name_folder(settings), needed)
    # The labels and their ids are part of the version, so they are proposed before and reserved later.
    version = version_of(snapshot, settings, labels, shards)
    # This is saved for a version that exists, too: the date then has a newer listing of the same examples.
    save_listed(settings, version, snapshot.started_ns)
    whole_plan = _plan(settings, snapshot, snapshot_path, version, labels)
    if _is_complete(settings, version):
        # Skipped files do not change the version.
        _warn({"unit": kind_of(snapshot).noun, "skipped_by_name": skipped_by_name(snapshot)})
        return save_plan(whole_plan, work_folder(settings, version))
    whole_plan = replace(whole_plan, table=kind_of(snapshot).facts(snapshot, order))
    quality = _pass_gate(settings, snapshot, order, whole_plan, ask)
    build = str(work_folder(settings, version))
    # Another run has changed the label map since `proposed_labels`. With other ids, the version is another one.
    if whole_plan.in_label_map and not reserve_labels(name_folder(settings), labels, build):
        return make_plan(settings, snapshot_path, ask)
    log_plan(snapshot, order, shards, version, settings)
    specs = shard_specs(order.examples, shards, whole_plan.records.ending)
    ranges = list(write_plan_files(settings, snapshot, whole_plan, order, specs))
    return save_plan(
        replace(whole_plan, complete=False, quality=quality, ranges=ranges), work_folder(settings, version)
    )


def _is_complete(settings: Settings, version: str) -> bool:
    folder = dataset_folder(settings, version)
    # A run that was killed may have left temporary files in any of these folders.
    for used in (work_folder(settings, version), folder, folder.parent / "labels", folder.parent / "partitions"):
        storage.sweep(used)
    if not is_committed(folder):
        return False
    # A complete version is not built again, so a lost shard must be reported here.
    require_shards(folder, load(folder))
    _log.info("dataset %s is already complete", folder)
    return True


def _pass_gate(
    settings: Settings, snapshot: Snapshot, order: Order, whole_plan: Plan, ask: Ask | None
) -> dict[str, Any]:
    """Return the facts about the examples if the gate lets the run continue, before a label or a shard is written."""
    before = last_version(name_folder(settings), but=whole_plan.version)
    with storage.write_whole(work_folder(settings, whole_plan.version) / DUPLICATES, synced=True) as file:
        quality = planned_facts(snapshot, order, file, labels=whole_plan.labels, before=before)
    quality |= kind_of(snapshot).changes(whole_plan.table, before)
    _warn(quality)
    decide(findings(quality, settings), ask)
    return quality


def _warn(quality: Mapping[str, Any]) -> None:
    for notice in notices(quality):
        _log.warning(notice)


def _plan(settings: Settings, snapshot: Snapshot, snapshot_path: Place, version: str, labels: list[str]) -> Plan:
    """Return the plan of a dataset that is complete."""
    return Plan(
        version=version,
        kind=snapshot.kind,
        dataset_name=settings.dataset_name,
        dataset=str(dataset_folder(settings, version)),
        written=str(shards_folder(settings, version)),
        snapshot=str(snapshot_path),
        labels=labels,
        records=record_format(settings, snapshot),
        settings=settings_in_fingerprint(settings),
        quality={},
        complete=True,
        ranges=[],
        in_label_map=not settings.label_map,
        listed_ns=snapshot.started_ns,
    )


def _order(snapshot: Snapshot, settings: Settings) -> Order:
    order = Order(snapshot, SplitRule.of(settings), kind_of(snapshot).nouns)
    if not order.examples[TRAIN]:
        kind = kind_of(snapshot)
        others = ", ".join(f"{count} for {split}" for split, count in order.examples.items() if count)
        raise SourceError(
            f"no {kind.noun} of {settings.source_uri!r} is left for training ({others}): add {kind.nouns} for "
            f"training, or make the groups smaller, because all {kind.nouns} of a group are in the same split"
        )
    return order
