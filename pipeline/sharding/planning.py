"""Snapshot -> plan files. They decide everything; writing shards only follows them.

One task reads one plan file, whatever the number of examples. Its first line describes the shards. Each further line is
a piece of a sorted part of the snapshot. The task merges the pieces into the rows of its shards.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pipeline import storage
from pipeline.dataset.labels import labels_of_file, proposed_labels, reserve_labels
from pipeline.dataset.manifest import is_committed, last_version, load, require_shards
from pipeline.dataset.partitions import save_listed
from pipeline.errors import SourceError
from pipeline.gate.checks import GateOptions, findings
from pipeline.gate.decide import Ask, decide
from pipeline.gate.facts import DUPLICATES, planned_facts, skipped_by_name
from pipeline.gate.notices import notices
from pipeline.plan.assign import (
    shard_counts,
    shard_specs,
)
from pipeline.plan.example_kind import kind_of
from pipeline.plan.expected_size import log_plan
from pipeline.plan.files import write_plan_files
from pipeline.plan.options import PlanOptions
from pipeline.plan.order import Order
from pipeline.plan.plan import Plan, save_plan
from pipeline.plan.version import labels_in_order, record_format, version_of
from pipeline.snapshot.part import TRAIN
from pipeline.snapshot.snapshot import Snapshot, load_snapshot
from pipeline.storage import Place
from pipeline.workspace import BuildFolders

_log = logging.getLogger(__name__)


def make_plan(options: PlanOptions, gate: GateOptions, snapshot_path: Place, ask: Ask | None = None) -> Place:
    """Decide the version, the split, the order and the shards, and write a plan file for each range of shards.

    Returns the file of the whole plan. `ask` asks a person if `gate` says so.

    Raises SourceError if no example is left for training, GateError if the examples exceed a threshold, DatasetError if
    the version is committed but lost a shard.
    """
    # A person is asked only once, even if another run adds labels and the plan is made again.
    ask = cache(ask) if ask else None
    snapshot = load_snapshot(snapshot_path)
    storage.sweep(snapshot_path.parent)  # A killed attempt may have been sorting a part.
    order = _order(snapshot, options)
    shards = shard_counts(order.examples, options.train_shards, options.servers)
    needed = labels_in_order(snapshot)
    if options.label_map:
        labels = labels_of_file(options.label_map, needed)
    else:
        labels = proposed_labels(options.folders.of_name, needed)
    # The labels and their ids are part of the version, so they are proposed before and reserved later.
    version = version_of(snapshot, options, labels, shards)
    # This is saved for a version that exists, too: the date then has a newer listing of the same examples.
    work = options.folders.work_of(version)
    save_listed(work, options.partition, snapshot.started_ns)
    whole_plan = _plan(options, snapshot, snapshot_path, version, labels)
    if _is_complete(options.folders, version):
        # Skipped files do not change the version.
        _warn({"unit": kind_of(snapshot).noun, "skipped_by_name": skipped_by_name(snapshot)})
        return save_plan(whole_plan, work)
    whole_plan = replace(whole_plan, table=kind_of(snapshot).facts(snapshot, order))
    quality = _pass_gate(options, gate, snapshot, order, whole_plan, ask)
    # Another run has changed the label map since `proposed_labels`. With other ids, the version is another one.
    if whole_plan.in_label_map and not reserve_labels(options.folders.of_name, labels, str(work)):
        return make_plan(options, gate, snapshot_path, ask)
    log_plan(snapshot, order, shards, version, options)
    specs = shard_specs(order.examples, shards, whole_plan.records.ending)
    ranges = list(write_plan_files(options, snapshot, whole_plan, order, specs))
    return save_plan(replace(whole_plan, complete=False, quality=quality, ranges=ranges), work)


def _is_complete(folders: BuildFolders, version: str) -> bool:
    folder = folders.published(version)
    # A run that was killed may have left temporary files in any of these folders.
    for used in (folders.work_of(version), folder, folder.parent / "labels", folder.parent / "partitions"):
        storage.sweep(used)
    if not is_committed(folder):
        return False
    # A complete version is not built again, so a lost shard must be reported here.
    require_shards(folder, load(folder))
    _log.info("dataset %s is already complete", folder)
    return True


def _pass_gate(
    options: PlanOptions, gate: GateOptions, snapshot: Snapshot, order: Order, whole_plan: Plan, ask: Ask | None
) -> dict[str, Any]:
    """Return the facts about the examples if the gate lets the run continue, before a label or a shard is written."""
    before = last_version(options.folders.of_name, but=whole_plan.version)
    with storage.write_whole(options.folders.work_of(whole_plan.version) / DUPLICATES, synced=True) as file:
        quality = planned_facts(snapshot, order, file, labels=whole_plan.labels, before=before)
    quality |= kind_of(snapshot).changes(whole_plan.table, before)
    _warn(quality)
    decide(findings(quality, gate), ask)
    return quality


def _warn(quality: Mapping[str, Any]) -> None:
    for notice in notices(quality):
        _log.warning(notice)


def _plan(options: PlanOptions, snapshot: Snapshot, snapshot_path: Place, version: str, labels: list[str]) -> Plan:
    """Return the plan of a dataset that is complete."""
    return Plan(
        version=version,
        kind=snapshot.kind,
        dataset_name=options.dataset_name,
        dataset=str(options.folders.published(version)),
        written=str(options.folders.shards_of(version)),
        snapshot=str(snapshot_path),
        labels=labels,
        records=record_format(options.records, snapshot),
        settings=dict(options.in_fingerprint),
        quality={},
        complete=True,
        ranges=[],
        in_label_map=not options.label_map,
        listed_ns=snapshot.started_ns,
    )


def _order(snapshot: Snapshot, options: PlanOptions) -> Order:
    order = Order(snapshot, options.split, kind_of(snapshot).nouns)
    if not order.examples[TRAIN]:
        kind = kind_of(snapshot)
        others = ", ".join(f"{count} for {split}" for split, count in order.examples.items() if count)
        raise SourceError(
            f"no {kind.noun} of {options.source_uri!r} is left for training ({others}): add {kind.nouns} for "
            f"training, or make the groups smaller, because all {kind.nouns} of a group are in the same split"
        )
    return order
