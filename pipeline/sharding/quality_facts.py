"""Facts about all images together: `quality` in `dataset.json`, for the data gate and the dataset card.

Some facts are known when the shards are planned, so that a leak is reported before hours of writing. The others are
known when the shards are written.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.manifest import Dataset
from pipeline.sharding.duplicates import (
    MAX_NAMES,
    Group,
    candidates,
    confirm,
    duplicate_facts,
    leak_facts,
    near_groups,
)
from pipeline.sharding.plan import Arrangement
from pipeline.sharding.statistics import drift
from pipeline.sharding.totals import Totals
from pipeline.snapshot.raw_image import RawImage
from pipeline.snapshot.raw_reader import RawReader
from pipeline.snapshot.snapshot import SPLITS, TRAIN, VALIDATION, Snapshot, SnapshotRows
from pipeline.system.progress import progress

DUPLICATES = "duplicates.jsonl"
"""This file beside `dataset.json` lists groups of equal and similar images."""
Quality = dict[str, Any]


def planned_facts(
    snapshot: Snapshot, arranged: Arrangement, *, labels: Sequence[str], before: Dataset | None
) -> tuple[Quality, bytes]:
    """Return the facts that are known before an image is written, and the lines of `duplicates.jsonl`.

    `labels` are the labels of the version by id. `before` is the last version.
    """
    with SnapshotRows(snapshot, arranged.columns) as rows:
        groups = _equal(RawReader(snapshot.origin), arranged, rows)
        contradictions = _Contradictions(snapshot.listed)
        lines = to_lines(
            contradictions.add([rows[number] for number in group], arranged.splits[group]) for group in groups
        )
        facts: Quality = {
            "listed": snapshot.listed,
            "skipped_by_name": skipped_by_name(snapshot),
            "duplicates": duplicate_facts(groups),
            "contradictions": contradictions.facts(),
            "leaks": leak_facts(groups, arranged.splits, lambda number: rows[number].key),
            "classes": _classes(snapshot, arranged, TRAIN),
            "classes_without_training": _missing(_classes(snapshot, arranged, TRAIN)),
            "classes_without_validation": _missing(_classes(snapshot, arranged, VALIDATION)),
        }
    # What changed since the last version of the dataset name.
    # Without an earlier version, no class counts as new.
    known = {label for split in before.splits.values() for label in split.classes} if before else set(snapshot.classes)
    facts |= {
        "drift": _drift(facts, {}, before),
        "classes_new": sorted(set(snapshot.classes) - known),
        "classes_gone": sorted(known - set(snapshot.classes)),
    }
    # Labels that have an id but no image, neither in this version nor in the last one.
    with_images = {*snapshot.classes, *snapshot.box_labels, *facts["classes_gone"]}
    facts["classes_unused"] = [label for label in labels if label not in with_images]
    return facts, lines


def skipped_by_name(snapshot: Snapshot) -> dict[str, Any]:
    """Count the files that were skipped because of their suffix, in total and for the most frequent suffixes."""
    files = sum(snapshot.skipped_suffixes.values())
    shown = dict(list(snapshot.skipped_suffixes.items())[:MAX_NAMES])
    return {"files": files, "of": files + snapshot.listed, "suffixes": shown}


class _Contradictions:
    """Counts groups of equal images that do not all have the same labels. The order of the labels does not matter."""

    def __init__(self, listed: int) -> None:
        self._listed = listed
        self._images = self._groups = 0
        self._pairs: list[dict[str, list[Any]]] = []

    def add(self, group: Sequence[RawImage], splits: NDArray[np.int8]) -> Mapping[str, Any]:
        """Count a group of equal images; return its row of `duplicates.jsonl`."""
        other = next((row for row in group if set(row.labels) != set(group[0].labels)), None)
        if other is not None:
            self._images += len(group)
            self._groups += 1
            if len(self._pairs) < MAX_NAMES:
                self._pairs.append({"paths": [group[0].key, other.key], "labels": [group[0].labels, other.labels]})
        row = _group_row("equal", [image.key for image in group], splits)
        for image, raw in zip(row["images"], group, strict=True):
            image["labels"] = list(raw.labels)
        return row

    def facts(self) -> dict[str, Any]:
        """Return the number of images in such groups, and pairs of them, in the form of `dataset.json`."""
        return {"images": self._images, "groups": self._groups, "of": self._listed, "pairs": self._pairs}


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
        "classes": {label: counts[TRAIN][label] for label in labels},
        "classes_without_training": [label for label in labels if not counts[TRAIN][label]],
        "classes_without_validation": [label for label in labels if not counts[VALIDATION][label]],
        "statistics": totals.statistics.to_json(),
    }
    return {**facts, "drift": _drift(facts, settings, before)}, rows


def _equal(reader: RawReader, arranged: Arrangement, rows: SnapshotRows) -> list[Group]:
    """Return groups of equal images. Only images of equal size and CRC32C are read."""
    alike = candidates(arranged.columns["size"], arranged.columns["crc32c"])
    if not alike:
        return []
    with progress("compare", sum(map(len, alike))) as advance:

        def read(number: int) -> bytes:
            advance(1)
            return reader.read(rows[number])

        return confirm(alike, read, lambda number: int(arranged.columns["size"][number]))


def to_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return rows as JSON lines."""
    return b"".join(json.dumps(row).encode("ascii") + b"\n" for row in rows)


def from_lines(lines: bytes) -> list[dict[str, Any]]:
    """Return the rows of JSON lines."""
    return [json.loads(line) for line in lines.splitlines()]


def _classes(snapshot: Snapshot, arranged: Arrangement, split: str) -> dict[str, int]:
    """Return the number of listed images of each label in a split.

    Empty if images have several labels, because the columns have only the first one.
    """
    if snapshot.multi_label:
        return {}
    members = arranged.splits == SPLITS.index(split)
    counts = np.bincount(arranged.columns["label"][members], minlength=len(snapshot.labels)).tolist()
    return {
        label: count
        for label, count in sorted(zip(snapshot.labels, counts, strict=True))
        if snapshot.classes.get(label)
    }


def _missing(classes: Mapping[str, int]) -> list[str]:
    return [label for label, count in classes.items() if not count]


def _drift(facts: Quality, settings: Mapping[str, Any], before: Dataset | None) -> dict[str, Any] | None:
    """Return the drift since the last version: only that of class shares if images were prepared in another way."""
    if before is None:
        return None
    # These settings change the stored images themselves, so a difference says nothing about the source.
    names = ("prepare", "prepare_size", "crop_to_box")
    is_comparable = all(settings.get(name) == before.settings.get(name) for name in names)
    compared = facts if is_comparable else {"classes": facts["classes"]}
    return {"against": before.version, **drift(compared, before.quality)}


def _near_facts(hashed: Sequence[tuple[str, int, str]]) -> tuple[Quality | None, list[dict[str, Any]]]:
    if not hashed:
        return None, []
    splits = np.array([SPLITS.index(split) for _, _, split in hashed], np.int8)
    groups = near_groups(np.array([value for _, value, _ in hashed], np.uint64))
    rows = [_group_row("alike", [hashed[number][0] for number in group], splits[group]) for group in groups]
    facts = duplicate_facts(groups) | {"leaks": leak_facts(groups, splits, lambda number: hashed[number][0])}
    return facts, rows


def _group_row(kind: str, keys: Sequence[str], splits: NDArray[np.int8]) -> dict[str, Any]:
    return {
        "kind": kind,
        "images": [{"path": key, "split": SPLITS[split]} for key, split in zip(keys, splits, strict=True)],
    }
