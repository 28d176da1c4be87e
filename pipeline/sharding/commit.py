"""Commit a dataset: `dataset.json` is written last, and only if every example is in one record or rejected."""

import logging
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version as installed_version
from typing import Any

from pipeline import storage
from pipeline.config.workspace import BuildFolders
from pipeline.dataset.content_hashes import HASHES
from pipeline.dataset.labels import claim_labels
from pipeline.dataset.lists import JsonLines, ListWriter, file_facts, new_list
from pipeline.dataset.manifest import (
    CARD,
    DUPLICATES,
    REJECTED,
    SKIPPED,
    Dataset,
    WriteCard,
    is_committed,
    list_shards,
    load,
    save,
)
from pipeline.dataset.partitions import (
    Partition,
    last_listed,
    save_partition,
    saving_refusal,
    warn_about_ignored_latest,
)
from pipeline.dataset.tfds_metadata import tfds_files
from pipeline.errors import BadInput
from pipeline.gate.decide import Gate
from pipeline.gate.facts import is_other_source
from pipeline.gate.totals import require_all, require_examples
from pipeline.plan.example_kind import kind_of
from pipeline.plan.plan import Plan, load_plan
from pipeline.sharding.finished_shards import facts_of, hashes_of, totals_of
from pipeline.sharding.publish import remove_copied
from pipeline.snapshot.snapshot import Snapshot, load_snapshot, skipped_path
from pipeline.storage import Place, place_of

_log = logging.getLogger(__name__)


def commit(plan_path: Place, folders: BuildFolders, partition: str, gate: Gate, write_card: WriteCard) -> Dataset:
    """Write `dataset.json` if every listed example is in one record or rejected, and return its content.

    From then on, `partition` points to this version, unless it has a version of a newer listing. A
    dataset that is committed already is not written again.

    Raises DatasetError if the counts do not add up, GateError if the dataset exceeds a threshold of `gate`, and
    SettingsError if the plan names or a folder links to a place that the administrator does not allow.
    """
    plan = load_plan(plan_path)
    folder = place_of(plan.dataset)
    with saving_refusal(plan_path.parent, partition, plan.listed_ns):
        # The gate also decides about a committed version, because the settings of this run may allow less.
        if is_committed(folder):
            gate.decide(load(folder).quality)
        else:
            _commit(plan, plan_path, partition, gate, write_card)

    def listed_of(version: str) -> int:
        return last_listed(folders.work_of(version), partition)

    # The source may have been listed again since the plan.
    listed_ns = max(plan.listed_ns, listed_of(plan.version))
    replaced = save_partition(folder.parent, Partition(partition, plan.version, listed_ns), listed_of)
    dataset = load(folder)
    if replaced:
        _warn_about_other_source(folder.parent, replaced, dataset)
    warn_about_ignored_latest(folder.parent)
    # This comes last, because until the commit a retry copies these files again.
    remove_copied(plan)
    return dataset


def _warn_about_other_source(folder: Place, replaced: Partition, dataset: Dataset) -> None:
    """Log a warning if the version that a partition had before has another source."""
    # A removed or damaged version does not stop a commit.
    with suppress(BadInput):
        before = load(folder / replaced.version)
        source = dataset.source["uri"]
        if is_other_source(source, before):
            _log.warning(
                "partition %s of %r had version %s of another source, %s, and now has version %s of %s: if both "
                "sources are needed, set another dataset_name for one of them",
                replaced.partition,
                folder.name,
                before.version,
                before.source["uri"],
                dataset.version,
                source,
            )


def _commit(plan: Plan, plan_path: Place, partition: str, gate: Gate, write_card: WriteCard) -> None:
    folder = place_of(plan.dataset)
    rejected_path = plan_path.parent / REJECTED
    # Saved before the gate, because the list explains why the gate stops a run.
    with storage.write_whole(rejected_path) as file:
        rejected = ListWriter(file)
        totals = totals_of(plan, rejected.write_row)
    if totals.rejected:
        _log.warning("rejected examples: %d, %s says why", totals.rejected, rejected_path)
    snapshot = load_snapshot(place_of(plan.snapshot))
    require_all(snapshot, totals)
    require_examples(snapshot, totals, JsonLines(rejected_path), partition)
    quality, near_duplicates = facts_of(plan, totals)
    gate.report(quality, plan.quality)
    quality["findings"] = gate.decide(quality, plan.quality)
    storage.copy_new(rejected_path, folder / REJECTED)
    with new_list(folder / DUPLICATES) as duplicates:
        duplicates.copy_lines(plan_path.parent / DUPLICATES)
        for row in near_duplicates:
            duplicates.write_row(row)
    with new_list(folder / HASHES) as hashes:
        for of_shard in hashes_of(plan, totals):
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
    # Like the card, this list may be replaced, because other files in the source are not part of a version.
    with storage.write_whole(folder / SKIPPED) as file:
        file.write(skipped_path(place_of(plan.snapshot)).read_bytes())
    lists = [JsonLines(folder / name) for name in (REJECTED, DUPLICATES, SKIPPED)]
    write_card(folder, dataset, *lists)
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
