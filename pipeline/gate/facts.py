"""Facts about all examples together: `quality` in `dataset.json`, for the data gate and the dataset card.

Some facts are known when the shards are planned, so that a leak is reported before hours of writing. The others are
known when the shards are written.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, Any

import numpy as np

from pipeline.dataset.manifest import Dataset
from pipeline.gate.duplicates import MAX_NAMES, GroupFacts, near_groups
from pipeline.gate.equal_examples import equal_examples
from pipeline.gate.equal_rows import equal_rows
from pipeline.gate.group_leaks import with_leaks_by_group
from pipeline.gate.statistics import drift
from pipeline.gate.totals import Totals
from pipeline.plan.example_kind import kind_of
from pipeline.plan.order import Order
from pipeline.snapshot.part import TEST, TRAIN, VALIDATION
from pipeline.snapshot.raw_reader import RawReader
from pipeline.snapshot.snapshot import Snapshot

Quality = dict[str, Any]
_OF_DATES = re.compile("(?<![0-9A-SU-Za-z])([0-9]{2}|[0-9]{4}|[0-9]{8,})(?![0-9])")
"""Digits that may be a date or a part of one, as in 2026-11-28, 20261128, day=28 or T07. Those of `team1` are none."""


def planned_facts(
    snapshot: Snapshot, order: Order, duplicates: IO[bytes], *, labels: Sequence[str], before: Dataset | None
) -> Quality:
    """Return the facts that are known before an example is written. Write the lines of `duplicates.jsonl`.

    `labels` are the labels of the version by id. `before` is the last version.
    """
    kind = kind_of(snapshot)
    equal = (
        equal_examples(order, RawReader(snapshot.origin), duplicates)
        if kind.has_files
        else equal_rows(order, partial(kind.values_of, snapshot=snapshot), duplicates)
    )
    if order.states_splits:
        equal["leaks"] = with_leaks_by_group(equal["leaks"], order)
    facts: Quality = {
        "unit": kind.noun,
        "listed": snapshot.listed,
        "skipped_by_name": skipped_by_name(snapshot),
        **equal,
        **kind.quality(snapshot, order),
        # A sorted part counts only the first label of an example, so its counts say nothing if there are several.
        **_class_facts([] if snapshot.multi_label else list(snapshot.classes), order.classes),
    }
    # What changed since the last version of the dataset name.
    # Without an earlier version, no class counts as new.
    known = {label for split in before.splits.values() for label in split.classes} if before else set(snapshot.classes)
    facts |= {
        "drift": _drift(facts, {}, before),
        "classes_new": sorted(set(snapshot.classes) - known),
        "classes_gone": sorted(known - set(snapshot.classes)),
        **({"other_source": before.source["uri"]} if before and is_other_source(snapshot.source_uri, before) else {}),
    }
    # Labels that have an id but no example, neither in this version nor in the last one.
    with_images = {*snapshot.classes, *snapshot.box_labels, *facts["classes_gone"]}
    facts["classes_unused"] = [label for label in labels if label not in with_images]
    return facts


def is_other_source(source: str, before: Dataset) -> bool:
    """Return whether a version has another source than this one: two tables may have one file name."""
    # A date in a path differs between the dates of one source.
    return _OF_DATES.sub("", before.source["uri"]) != _OF_DATES.sub("", source)


def skipped_by_name(snapshot: Snapshot) -> dict[str, Any]:
    """Count the files that were skipped because of their suffix, in total and for the most frequent suffixes."""
    files = sum(snapshot.skipped_suffixes.values())
    shown = dict(list(snapshot.skipped_suffixes.items())[:MAX_NAMES])
    return {"files": files, "of": files + snapshot.listed, "suffixes": shown}


def written_facts(
    planned: Mapping[str, Any], totals: Totals, settings: Mapping[str, Any], before: Dataset | None
) -> tuple[Quality, list[dict[str, Any]]]:
    """Return the planned facts with those from the shards, and the near-duplicates for `duplicates.jsonl`.

    `planned` are the facts of `planned_facts`, `settings` those that decide the bytes, `before` is the last version.
    """
    counts = {split: of_split.classes for split, of_split in totals.splits.items()}
    labels = sorted({*planned["classes"], *counts[TRAIN], *counts[VALIDATION]})
    near, rows = _near_facts(totals.perceptual_hashes)
    facts: Quality = {
        **planned,
        "rejected": totals.rejected,
        "misnamed": totals.misnamed,
        "profiles": {use: totals.profiles[use] for use in ("converted", "ignored")},
        "near_duplicates": near,
        **_class_facts(labels, counts),
        "statistics": totals.statistics.to_json(),
    }
    return {**facts, "drift": _drift(facts, settings, before)}, rows


def _class_facts(labels: Sequence[str], counts: Mapping[str, Counter[str]]) -> dict[str, Any]:
    """Return the facts about classes, from the number of examples of each split by label."""
    facts: Quality = {
        "classes": {label: counts[TRAIN][label] for label in labels},
        "classes_without_training": [label for label in labels if not counts[TRAIN][label]],
        "classes_without_validation": [label for label in labels if not counts[VALIDATION][label]],
    }
    if counts[TEST]:
        facts["classes_without_test"] = [label for label in labels if not counts[TEST][label]]
    return facts


def _drift(facts: Quality, settings: Mapping[str, Any], before: Dataset | None) -> dict[str, Any] | None:
    """Return the drift since the last version: only that of class shares if examples were prepared in another way."""
    if before is None:
        return None
    # These settings change the stored examples themselves, so a difference says nothing about the source.
    names = ("prepare", "prepare_size", "crop_to_box")
    is_comparable = all(settings.get(name) == before.settings.get(name) for name in names)
    compared = facts if is_comparable else {"classes": facts["classes"]}
    return {"against": before.version, **drift(compared, before.quality)}


def _near_facts(hashed: Sequence[tuple[str, int, str]]) -> tuple[Quality | None, list[dict[str, Any]]]:
    if not hashed:
        return None, []
    groups = near_groups(np.array([value for _, value, _ in hashed], np.uint64))
    facts, rows = GroupFacts(Counter(split for _, _, split in hashed)), []
    for group in groups:
        images = [{"path": hashed[number][0], "split": hashed[number][2]} for number in group]
        rows.append({"kind": "alike", "images": images})
        facts.add(rows[-1])
    return {**facts.duplicates, "leaks": facts.leaks}, rows
