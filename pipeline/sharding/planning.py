"""Snapshot -> plan files. They decide everything; writing shards only follows them.

One task reads one plan file, whatever the number of examples. Its first line describes the shards. Each further line is
a piece of a sorted part of the snapshot. The task merges the pieces into the rows of its shards.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.config import Settings, settings_in_fingerprint
from pipeline.dataset.labels import labels_of_file, proposed_labels, reserve_labels
from pipeline.dataset.manifest import SCHEMA_VERSION, is_committed, last_version, load, require_shards
from pipeline.dataset.partitions import save_listed
from pipeline.errors import SourceError
from pipeline.gate.checks import findings
from pipeline.gate.decide import Ask, decide
from pipeline.gate.facts import DUPLICATES, planned_facts, skipped_by_name
from pipeline.gate.notices import notices
from pipeline.plan.assign import (
    empty_shards_advice,
    near_duplicates_advice,
    shard_counts,
    shard_ranges,
    shard_specs,
    size_advice,
)
from pipeline.plan.expected_size import expected_bytes, log_size
from pipeline.plan.kinds import ExampleKind, kind_of
from pipeline.plan.merge import Piece, to_line
from pipeline.plan.order import Order
from pipeline.plan.plan import Plan, save_plan
from pipeline.plan.range_plan import WRITER_VERSION, RangePlan, ShardSpec, to_header
from pipeline.plan.sort import SplitRule
from pipeline.records.format import RecordFormat
from pipeline.snapshot.part import TRAIN
from pipeline.snapshot.snapshot import Snapshot, load_snapshot
from pipeline.storage import Place
from pipeline.workspace import dataset_folder, name_folder, shards_folder, work_folder

MAX_NUMBER = 100
"""A label of more digits is not ordered as a number. Python refuses to convert thousands of digits."""
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
    needed = _needed_labels(snapshot)
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
    _log_plan(snapshot, order, shards, version, settings)
    specs = shard_specs(order.examples, shards, whole_plan.records.ending)
    ranges = list(_write_plan_files(settings, snapshot, whole_plan, order, specs))
    return save_plan(
        replace(whole_plan, complete=False, quality=quality, ranges=ranges), work_folder(settings, version)
    )


def _needed_labels(snapshot: Snapshot) -> list[str]:
    """Return the labels in the order in which new ones get their ids, whatever the order of the rows.

    Labels whose order the source states come first, in that order. The others follow in sorted order. Labels that only
    boxes have come last.
    """
    stated = snapshot.stated_labels
    others = set(snapshot.labels) - set(stated)
    # As numbers, 10 comes after 9. As text, it would come after 1.
    if all(label.isdecimal() and len(label) <= MAX_NUMBER for label in others):
        ordered = sorted(others, key=lambda label: (int(label), label))  # The text decides between "1" and "01".
    else:
        ordered = sorted(others)
    return [*stated, *ordered, *snapshot.box_labels]


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


def version_of(snapshot: Snapshot, settings: Settings, labels: list[str], shard_counts: dict[str, int]) -> str:
    """Return the fingerprint of everything that decides the bytes of a dataset, as 16 hexadecimal digits.

    The codecs are part of it, because they decide which examples are rejected, and encode the examples that are
    converted.
    """
    kind = kind_of(snapshot)
    content = {
        "snapshot": snapshot.fingerprint,
        "labels": labels,
        "texts": snapshot.texts,
        "records": asdict(record_format(settings, snapshot)),
        "shards": shard_counts,
        "settings": settings_in_fingerprint(settings),
        "writer": WRITER_VERSION,
        "schema": SCHEMA_VERSION,
        "codecs": _codecs(kind, settings),
        **kind.fingerprinted(snapshot),
    }
    # The order of the settings in the code must not matter.
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


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


def _log_plan(snapshot: Snapshot, order: Order, counts: Mapping[str, int], version: str, settings: Settings) -> None:
    kind = kind_of(snapshot)
    for split, shards in counts.items():
        _log.info(
            "version %s: writing %d %s %s into %d shards",
            *(version, order.examples[split], split, kind.nouns, shards),
        )
    rules = kind.rules(settings)
    total = expected_bytes(snapshot, order, rules)
    log_size(total, snapshot, shards_folder(settings, version), rules.prepare)
    train_bytes = total * order.examples[TRAIN] // snapshot.listed
    for advice in (
        size_advice(train_bytes, settings.train_shards),
        empty_shards_advice(order.examples[TRAIN], settings.train_shards),
        near_duplicates_advice(snapshot.listed) if rules.perceptual_hash else "",
    ):
        if advice:
            _log.warning(advice)


def _write_plan_files(
    settings: Settings, snapshot: Snapshot, whole_plan: Plan, order: Order, specs: Sequence[ShardSpec]
) -> Iterator[str]:
    folder = work_folder(settings, whole_plan.version) / "plans"
    kind, ranges = kind_of(snapshot), shard_ranges(specs, settings.shards_per_task)
    for of_range, pieces in zip(ranges, _pieces(order, ranges), strict=True):
        header = RangePlan(
            version=whole_plan.version,
            kind=snapshot.kind,
            origin=snapshot.origin,
            labels=whole_plan.labels,
            texts=snapshot.texts,
            records=whole_plan.records,
            rules=kind.rules(settings),
            shards=list(of_range),
            written=whole_plan.written,
            published=whole_plan.dataset,
            codecs=_codecs(kind, settings),
            table=kind.facts_of_writer(snapshot),
        )
        path = folder / f"{of_range[0].name}--{of_range[-1].name}.jsonl"
        with storage.write_whole(path, synced=True) as file:
            file.write(to_header(header))
            file.writelines(map(to_line, pieces))
        yield str(path)
    # `plan.json` names these files and is written next, so their names must be on the disk first.
    storage.sync_folder(folder)


def _pieces(order: Order, ranges: Sequence[Sequence[ShardSpec]]) -> Iterator[list[Piece]]:
    """Yield the pieces of each range. A range may have shards of several splits."""
    splits = dict.fromkeys(spec.split for of_range in ranges for spec in of_range)
    of_splits = []
    for split in splits:
        images = (sum(spec.examples for spec in of_range if spec.split == split) for of_range in ranges)
        of_splits.append(order.pieces(split, [0, *accumulate(images)]))
    for of_range in zip(*of_splits, strict=True):
        yield list(chain.from_iterable(of_range))


def _codecs(kind: ExampleKind, settings: Settings) -> dict[str, str]:
    return kind.codecs(gzip=settings.compression == "gzip", perceptual_hash=settings.near_duplicates)


def record_format(settings: Settings, snapshot: Snapshot) -> RecordFormat:
    """Return the format of the records, from the settings and the content of the source."""
    offset = settings.label_offset
    return RecordFormat(
        feature_keys=settings.feature_keys,
        # In the records of ImageNet, 0 is by convention the background, and classes begin at 1.
        label_offset=int(snapshot.source_kind == "imagenet") if offset is None else offset,
        pixels="raw" if settings.prepare == "raw" else "encoded",
        compression=settings.compression,
        multi_label=snapshot.multi_label,
        boxes=snapshot.has_boxes,
        synsets=snapshot.source_kind == "imagenet" or bool(snapshot.texts),
    )
