"""Snapshot -> plan files. They decide everything; writing shards only follows them.

One task reads one plan file, whatever the number of examples. Its first line describes the shards. Each further line is
a piece of a sorted part of the snapshot. The task merges the pieces into the rows of its shards.
"""

import logging
from dataclasses import replace
from functools import cache

from pipeline import storage
from pipeline.dataset.labels import labels_of_file, proposed_labels, reserve_labels
from pipeline.dataset.manifest import DUPLICATES, is_committed, last_version, load, require_shards
from pipeline.dataset.partitions import save_listed, saving_refusal
from pipeline.gate.decide import Gate
from pipeline.gate.facts import Quality, planned_facts, skipped_by_name
from pipeline.plan.assign import shard_counts, shard_specs
from pipeline.plan.example_kind import kind_of
from pipeline.plan.expected_size import log_plan
from pipeline.plan.files import write_plan_files
from pipeline.plan.options import PlanOptions
from pipeline.plan.order import Order, order_of
from pipeline.plan.plan import Plan, save_plan
from pipeline.plan.version import labels_in_order, note_on_ids, record_format, version_of
from pipeline.snapshot.part import TRAIN
from pipeline.snapshot.snapshot import Snapshot, load_snapshot
from pipeline.storage import Place

_log = logging.getLogger(__name__)


def make_plan(options: PlanOptions, gate: Gate, snapshot_path: Place) -> Place:
    """Decide the version, the split, the order and the shards, and write a plan file for each range of shards.

    Returns the file of the whole plan.

    Raises SourceError if no example is left for training, GateError if the examples exceed a threshold, DatasetError if
    the version is committed but lost a shard, and SettingsError if the snapshot names or a folder links to a place that
    the administrator does not allow.
    """
    # A person is asked only once, even if another run adds labels and the plan is made again.
    gate = replace(gate, ask=cache(gate.ask) if gate.ask else None)
    snapshot = load_snapshot(snapshot_path)
    storage.sweep(snapshot_path.parent)  # A killed attempt may have been sorting a part.
    order = order_of(snapshot, options)
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
    options.folders.require_allowed(version)
    save_listed(work, options.partition, snapshot.started_ns, options.folders.address_of(version))
    with saving_refusal(work, options.partition, snapshot.started_ns):
        whole_plan = _plan(options, snapshot, snapshot_path, version, labels)
        if _is_complete(options, version):
            # Skipped files do not change the version.
            gate.report({"unit": kind_of(snapshot).noun, "skipped_by_name": skipped_by_name(snapshot)})
            return save_plan(whole_plan, work)
        whole_plan = replace(whole_plan, table=kind_of(snapshot).facts(snapshot, order))
        quality = _pass_gate(options, gate, snapshot, order, whole_plan)
        # Another run has changed the label map since `proposed_labels`. With other ids, the version is another one.
        if whole_plan.in_label_map and not reserve_labels(options.folders.of_name, labels, str(work)):
            return make_plan(options, gate, snapshot_path)
        log_plan(snapshot, order, shards, version, options)
        if note := note_on_ids(labels, whole_plan.records.label_offset):
            _log.info(note)
        specs = shard_specs(order.examples, shards, whole_plan.records.ending)
        ranges = list(write_plan_files(options, snapshot, whole_plan, order, specs))
        return save_plan(replace(whole_plan, complete=False, quality=quality, ranges=ranges), work)


def _is_complete(options: PlanOptions, version: str) -> bool:
    folder = options.folders.published(version)
    # A run that was killed may have left temporary files in any of these folders.
    for used in (options.folders.work_of(version), folder, folder.parent / "labels", folder.parent / "partitions"):
        storage.sweep(used)
    if not is_committed(folder):
        return False
    # A complete version is not built again, so a lost shard must be reported here.
    require_shards(folder, load(folder))
    _log.info("dataset %s is already complete", folder)
    return True


def _pass_gate(options: PlanOptions, gate: Gate, snapshot: Snapshot, order: Order, whole_plan: Plan) -> Quality:
    """Return the facts about the examples if the gate lets the run continue, before a label or a shard is written."""
    before = last_version(options.folders.of_name, but=whole_plan.version)
    with storage.write_whole(options.folders.work_of(whole_plan.version) / DUPLICATES, synced=True) as file:
        quality = planned_facts(snapshot, order, file, labels=whole_plan.labels, before=before)
    quality |= kind_of(snapshot).changes(whole_plan.table, before, order.examples[TRAIN])
    gate.report(quality)
    gate.decide(quality)
    return quality


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
