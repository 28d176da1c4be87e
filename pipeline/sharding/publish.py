"""Publish shards: copy what is missing, verify every byte, and commit `dataset.json` last."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.config import Settings
from pipeline.dataset.content_hashes import HASH_BYTES, HASHES
from pipeline.dataset.index_files import INDEX_FOLDER, crc32c_text, index_name, scan_shard, write_index
from pipeline.dataset.labels import claim_labels
from pipeline.dataset.lists import JsonLines, ListWriter, file_facts, new_list
from pipeline.dataset.manifest import (
    CARD,
    PARALLEL_REQUESTS,
    REJECTED,
    Dataset,
    WriteCard,
    is_committed,
    last_version,
    list_shards,
    load,
    save,
)
from pipeline.dataset.partitions import Partition, last_listed, partition_of, save_partition
from pipeline.dataset.shard_lists import Shard
from pipeline.dataset.tfds_metadata import tfds_files
from pipeline.errors import ConflictError, DatasetError, SourceError
from pipeline.gate.decide import Ask, decide, findings, notices
from pipeline.gate.facts import DUPLICATES, Quality, from_lines, written_facts
from pipeline.gate.totals import Totals
from pipeline.plan.kinds import kind_of
from pipeline.plan.plan import Plan, load_plan
from pipeline.plan.range_plan import RangePlan, ShardSpec, load_range
from pipeline.plan.results import ShardResult, load_hashes, load_result, remove_torn
from pipeline.records.record_index import index_of
from pipeline.snapshot.part import TRAIN, VALIDATION
from pipeline.snapshot.skipped import SKIPPED
from pipeline.snapshot.snapshot import Snapshot, load_snapshot, skipped_path
from pipeline.storage import Place, place_of
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import Advance

COPIERS = 8
"""This many threads copy shards. Threads suffice: they wait for disk and bucket, and C computes the checksums."""
_log = logging.getLogger(__name__)


def copy_range(plan_path: Place, advance: Advance) -> None:
    """Copy the shards of one plan file to the folder of the dataset, unless they are there already, and verify them.

    Calls `advance` for every shard with its bytes.

    Raises DatasetError if a shard is missing or damaged, ConflictError if another file has its name.
    """
    range_plan, results = _finished_shards(plan_path)
    torn = set()
    are_sound = ordered_map(partial(_publish, range_plan), results, COPIERS)
    for result, is_sound in zip(results, are_sound, strict=True):
        if is_sound:
            advance(1, result.bytes)
        else:
            torn.add(result.name)
    if torn:
        _write_again(plan_path, torn, advance)
    # The commit relies on these names: after a power loss, it must not exist without its shards.
    published = place_of(range_plan.published)
    if any(result.index_crc32c for result in results):
        storage.sync_folder(published / INDEX_FOLDER)
    storage.sync_folder(published)


def _write_again(plan_path: Place, torn: Collection[str], advance: Advance) -> None:
    """Write and publish shards again whose files lost content, as after a power loss."""
    from pipeline.sharding.write import write_range  # Imports the decoders, which are nearly never needed here.

    write_range(plan_path, lambda *_: None)
    range_plan, results = _finished_shards(plan_path)
    for result in (result for result in results if result.name in torn):
        if not _publish(range_plan, result):
            raise DatasetError(f"{result.name} of {plan_path} was damaged twice: check the disk, and run again")
        advance(1, result.bytes)


def _publish(range_plan: RangePlan, result: ShardResult) -> bool:
    """Copy a shard and its index unless they are there. Returns whether the shard is complete, as `_publish_shard`."""
    is_sound = _publish_shard(range_plan, result)
    if is_sound and result.index_crc32c:
        _publish_index(range_plan, result)
    return is_sound


def _publish_index(range_plan: RangePlan, result: ShardResult) -> None:
    """Copy the index of a published shard unless it is there. If it was lost or damaged, make it from the shard."""
    published, name = place_of(range_plan.published), index_name(result.name)
    if _crc32c(published / name) == result.index_crc32c:
        return
    index = b""
    with suppress(FileNotFoundError):  # Another attempt may have published the shard and removed the written files.
        index = (place_of(range_plan.written) / name).read_bytes()
    if crc32c_text(index) != result.index_crc32c:
        index = index_of(scan_shard(published / result.name))
    write_index(published / name, index)


def _publish_shard(range_plan: RangePlan, result: ShardResult) -> bool:
    """Copy a shard unless it is there. Returns whether its file is complete. A torn file is removed."""
    written, target = place_of(range_plan.written) / result.name, place_of(range_plan.published) / result.name
    if not target.exists():
        # The written file may be missing: another attempt may have published and removed it. `_copy` notices that.
        if _crc32c(written) not in (None, result.crc32c) and remove_torn(written, result):
            return False  # A torn shard is never published.
        _copy(written, target)
    crc32c = _crc32c(target)
    if crc32c == result.crc32c:
        return True
    if crc32c is None:  # Another attempt found it torn, and writes it again.
        return False
    # Only a file that this workspace wrote may be removed. A published file that differs belongs to somebody else.
    if written == target and remove_torn(target, result):
        return False
    raise ConflictError(
        f"{target} has CRC32C {crc32c}, but {result.crc32c} was expected. The file was left untouched: move it away "
        "and run again"
    )


def _crc32c(place: Place) -> str | None:
    try:
        return f"{storage.crc32c_of(place):08x}"
    except FileNotFoundError:
        return None


def copy_size(plan_path: Place) -> tuple[int, int]:
    """Return the number of shards that `copy_range` publishes, and their bytes.

    Raises DatasetError if one was not written.
    """
    results = _finished_shards(plan_path)[1]
    return len(results), sum(result.bytes for result in results)


def commit(plan_path: Place, settings: Settings, write_card: WriteCard, ask: Ask | None = None) -> Dataset:
    """Write `dataset.json` if every listed example is in one record or rejected, and return its content.

    From then on, the partition of `settings` points to this version, unless it has a version of a newer listing. A
    dataset that is committed already is not written again. `ask` asks a person if the settings of the data gate say so.

    Raises DatasetError if the counts do not add up, GateError if the dataset exceeds a threshold of `settings`.
    """
    plan = load_plan(plan_path)
    folder = place_of(plan.dataset)
    # The gate also decides about a committed version, because the settings of this run may allow less.
    if is_committed(folder):
        decide(findings(load(folder).quality, settings), ask)
    else:
        _commit(plan, plan_path, settings, write_card, ask)
    name = partition_of(settings)
    # The source may have been listed again since the plan.
    listed_ns = max(plan.listed_ns, last_listed(settings, plan.version))
    save_partition(folder.parent, Partition(name, plan.version, listed_ns), partial(last_listed, settings))
    # This comes last, because until the commit a retry copies these files again.
    _remove_copied(plan)
    return load(folder)


def _commit(plan: Plan, plan_path: Place, settings: Settings, write_card: WriteCard, ask: Ask | None) -> None:
    folder = place_of(plan.dataset)
    rejected_path = plan_path.parent / REJECTED
    # Saved before the gate, because the list explains why the gate stops a run.
    with storage.write_whole(rejected_path) as file:
        rejected = ListWriter(file)
        totals = _totals(plan, rejected.write_row)
    if totals.rejected:
        _log.warning("rejected images: %d, %s says why", totals.rejected, rejected_path)
    snapshot = load_snapshot(place_of(plan.snapshot))
    _require_all(snapshot, totals)
    _require_examples(snapshot, totals, JsonLines(rejected_path))
    quality, near_duplicates = _facts(plan, totals)
    quality["findings"] = [finding.sentence for finding in findings(quality, settings)]
    _pass_gate(plan, quality, settings, ask)
    storage.copy_new(rejected_path, folder / REJECTED)
    with new_list(folder / DUPLICATES) as duplicates:
        duplicates.copy_lines(plan_path.parent / DUPLICATES)
        for row in near_duplicates:
            duplicates.write_row(row)
    with new_list(folder / HASHES) as hashes:
        for of_shard in _hashes(plan, totals):
            hashes.write(of_shard)
    dataset = Dataset(
        **_planned_fields(plan, snapshot),
        splits={name: split.as_split() for name, split in totals.splits.items() if split.shards},
        rejected={"count": totals.rejected, **rejected.facts(REJECTED)},
        duplicates={"groups": duplicates.lines, **duplicates.facts(DUPLICATES)},
        hashes=hashes.facts(HASHES),
        quality=quality,
    )
    dataset = list_shards(folder, dataset)
    metadata = tfds_files(dataset)
    dataset = replace(dataset, files=[file_facts(name, content) for name, content in metadata.items()])
    # A reservation may be released, so the ids are claimed for this version before `dataset.json` shows them. The claim
    # expires after an hour. The lists of a million shards can take most of an hour, so they are written first.
    _claim_labels(plan)
    skipped = _copy_skipped(plan, folder / SKIPPED)
    write_card(folder, dataset, JsonLines(folder / REJECTED), JsonLines(folder / DUPLICATES), skipped)
    save(folder, dataset, metadata)
    _claim_labels(plan)  # Again, because this process may have been suspended for hours before it wrote `dataset.json`.
    storage.sweep(folder)
    counts = ", ".join(
        f"{split.examples} {name} examples in {len(split.shards)} shards" for name, split in dataset.splits.items()
    )
    _log.info("dataset %s: %s, %d rejected", folder, counts, dataset.rejected["count"])
    _log.info("dataset card: %s", folder / CARD)


def _claim_labels(plan: Plan) -> None:
    if plan.in_label_map:
        claim_labels(place_of(plan.dataset).parent, plan.labels, plan.version)


def _copy_skipped(plan: Plan, path: Place) -> list[dict[str, Any]]:
    """Write the list of skipped files into the folder of the dataset, and return its rows.

    Like the card, it may be replaced, because other files in the source are not part of a version.
    """
    lines = skipped_path(place_of(plan.snapshot)).read_bytes()
    with storage.write_whole(path) as file:
        file.write(lines)
    return from_lines(lines)


def quality_of(plan: Plan) -> Mapping[str, Any]:
    """Return the facts about the examples of a plan whose shards are written. Raises DatasetError if one was not."""
    folder = place_of(plan.dataset)
    if is_committed(folder):
        return load(folder).quality
    return _facts(plan, _totals(plan, lambda _row: None))[0]


def _totals(plan: Plan, add_rejected: Callable[[Mapping[str, str]], None]) -> Totals:
    """Add the results of all shards. `add_rejected` gets each rejected example."""
    totals = Totals(add_rejected)
    for result in ordered_map(_finished_shard, _shards(plan), PARALLEL_REQUESTS):
        totals.add(result)
    return totals


def _shards(plan: Plan) -> Iterator[tuple[Place, ShardSpec]]:
    """Yield the shards in order, each with its plan file."""
    paths = list(map(place_of, plan.ranges))
    for path, range_plan in zip(paths, ordered_map(load_range, paths, COPIERS, under_way=COPIERS), strict=True):
        for spec in range_plan.shards:
            yield path, spec


def _hashes(plan: Plan, totals: Totals) -> Iterator[bytes]:
    """Yield the content hashes of each shard, in order."""

    def load(item: tuple[Shard, int]) -> bytes:
        shard, crc32c = item
        return load_hashes(place_of(plan.ranges[0]), shard.name, crc32c)

    shards = (pair for split in totals.splits.values() for pair in zip(split.shards, split.hashes_crc32c, strict=True))
    return ordered_map(load, shards, PARALLEL_REQUESTS, size_of=lambda item: item[0].examples * HASH_BYTES)


def _facts(plan: Plan, totals: Totals) -> tuple[Quality, list[dict[str, Any]]]:
    before = last_version(place_of(plan.dataset).parent, but=plan.version)
    return written_facts(plan.quality, totals, plan.settings, before)


def _pass_gate(plan: Plan, quality: Mapping[str, Any], settings: Settings, ask: Ask | None) -> None:
    """Run the gate again, without the warnings and questions that the plan already raised."""
    for notice in notices(quality):
        if notice not in notices(plan.quality):
            _log.warning(notice)
    planned = findings(plan.quality, settings)
    decide([each for each in findings(quality, settings) if each.action == "fail" or each not in planned], ask)


def _finished_shards(plan_path: Place) -> tuple[RangePlan, list[ShardResult]]:
    range_plan = load_range(plan_path)
    return range_plan, [_finished_shard((plan_path, spec)) for spec in range_plan.shards]


def _finished_shard(planned: tuple[Place, ShardSpec]) -> ShardResult:
    """Return the result of a shard. Raises DatasetError if it was not written, or lacks examples of the plan."""
    plan_path, spec = planned
    result = load_result(plan_path, spec.name)
    if result is None:
        raise DatasetError(f"{spec.name} was not written: run the shard stage of {plan_path} again")
    if result.examples + len(result.rejected) != spec.examples:
        raise DatasetError(
            f"{spec.name} has {result.examples} examples and {len(result.rejected)} rejected images, but "
            f"{spec.examples} images were planned"
        )
    return result


def _copy(written: Place, target: Place) -> None:
    """Copy a shard. Another attempt of this task may publish it and remove the written copy at the same time."""
    try:
        storage.copy_new(written, target)
    except FileNotFoundError as error:
        if not target.exists():
            raise DatasetError(
                f"{written} is missing, so {target} was not published: run the shard stage again"
            ) from error


def _require_all(snapshot: Snapshot, totals: Totals) -> None:
    # The invariant of a dataset: every listed example is in one record or is rejected with a reason.
    if totals.examples + totals.rejected != snapshot.listed:
        raise DatasetError(
            f"{snapshot.listed} images were listed, but {totals.examples} were written and {totals.rejected} rejected"
        )


def _require_examples(snapshot: Snapshot, totals: Totals, rejected: Iterable[Mapping[str, Any]]) -> None:
    for split in (TRAIN, VALIDATION):
        if not totals.splits[split].examples:
            are_all_rejected = totals.rejected == snapshot.listed
            advice = "repair or replace them" if are_all_rejected else "add images or set validation_fraction"
            frequent = Counter(row["reason"] for row in rejected).most_common(1)
            of_reason = f", {frequent[0][1]} of them because {frequent[0][0]!r}" if frequent else ""
            raise SourceError(
                f"no usable {split} image in {snapshot.source_uri!r}: {totals.rejected} of {snapshot.listed} images "
                f"were rejected{of_reason}; {advice}"
            )


def _planned_fields(plan: Plan, snapshot: Snapshot) -> dict[str, Any]:
    """Return the fields of the dataset that were known before the shards were written."""
    kind = kind_of(plan)
    codecs = kind.codecs(
        gzip=plan.records.compression == "gzip", perceptual_hash=plan.settings.get("near_duplicates", False)
    )
    return {
        "name": plan.dataset_name,
        "version": plan.version,
        "labels": tuple(plan.labels),
        "texts": snapshot.texts,
        "records": plan.records,
        "features": kind.features(plan.records, plan.table),
        "source": {
            "uri": snapshot.source_uri,
            "kind": snapshot.source_kind,
            "listed": snapshot.listed,
            "skipped": snapshot.skipped,
            "fingerprint": snapshot.fingerprint,
        },
        "settings": plan.settings,
        "software": {**codecs, "google-crc32c": installed_version("google-crc32c")},
        "table": plan.table,
        "kind": plan.kind,
    }


def _remove_copied(plan: Plan) -> None:
    """Remove the written shards that were copied elsewhere. Another attempt that is still writing is not disturbed."""
    written = place_of(plan.written)
    # The shards were written in their final folder. Nothing was copied.
    if written == place_of(plan.dataset):
        return
    shards = (shard for split in load(place_of(plan.dataset)).splits.values() for shard in split.shards)
    names = (name for shard in shards for name in (shard.name, index_name(shard.name) if shard.index_crc32c else ""))
    for _ in ordered_map(lambda name: (written / name).unlink(missing_ok=True), filter(None, names), PARALLEL_REQUESTS):
        pass
    if isinstance(written, Path):
        for folder in (written / INDEX_FOLDER, written):
            with suppress(OSError):  # The folder does not exist or is not empty.
                folder.rmdir()
