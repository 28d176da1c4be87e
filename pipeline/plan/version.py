"""The version of a dataset, and the format of its records: what the settings and the snapshot decide together."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from pipeline.dataset.manifest import SCHEMA_VERSION
from pipeline.plan.example_kind import ExampleKind, kind_of
from pipeline.plan.options import PlanOptions, RecordOptions
from pipeline.plan.range_plan import WRITER_VERSION
from pipeline.records.format import RecordFormat
from pipeline.snapshot.snapshot import Snapshot

MAX_NUMBER = 100
"""A label of more digits is not ordered as a number. Python refuses to convert thousands of digits."""


def version_of(snapshot: Snapshot, options: PlanOptions, labels: list[str], shard_counts: dict[str, int]) -> str:
    """Return the fingerprint of everything that decides the bytes of a dataset, as 16 hexadecimal digits.

    The codecs are part of it, because they decide which examples are rejected, and encode the examples that are
    converted.
    """
    kind = kind_of(snapshot)
    content = {
        "snapshot": snapshot.fingerprint,
        "labels": labels,
        "texts": snapshot.texts,
        "records": asdict(record_format(options.records, snapshot)),
        "shards": shard_counts,
        "settings": options.in_fingerprint,
        "writer": WRITER_VERSION,
        "schema": SCHEMA_VERSION,
        "codecs": codecs_of(kind, options),
        **kind.fingerprinted(snapshot),
    }
    # The order of the settings in the code must not matter.
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def codecs_of(kind: ExampleKind, options: PlanOptions) -> dict[str, str]:
    """Return the versions of all decoders and encoders that a plan uses."""
    return kind.codecs(gzip=options.records.compression == "gzip", perceptual_hash=options.rules.perceptual_hash)


def record_format(options: RecordOptions, snapshot: Snapshot) -> RecordFormat:
    """Return the format of the records, from the options and the content of the source."""
    offset = options.label_offset
    return RecordFormat(
        feature_keys=options.feature_keys,
        # In the records of ImageNet, 0 is by convention the background, and classes begin at 1.
        label_offset=int(snapshot.source_kind == "imagenet") if offset is None else offset,
        pixels=options.pixels,
        compression=options.compression,
        multi_label=snapshot.multi_label,
        boxes=snapshot.has_boxes,
        synsets=snapshot.source_kind == "imagenet" or bool(snapshot.texts),
    )


def labels_in_order(snapshot: Snapshot) -> list[str]:
    """Return the labels in the order in which new ones get their ids, whatever the order of the rows.

    Labels whose order the source states come first, in that order. The others follow in sorted order. Labels that only
    boxes have come last.
    """
    stated = snapshot.stated_labels
    others = set(snapshot.labels) - set(stated)
    # As numbers, 10 comes after 9. As text, it would come after 1.
    ordered = sorted(others, key=_by_number if all(map(_is_number, others)) else None)
    return [*stated, *ordered, *snapshot.box_labels]


def note_on_ids(labels: Sequence[str], first_id: int) -> str:
    """Say that labels are numbers, and that their ids are other numbers; empty if it is not so.

    `labels` are in the order of their ids, which begin with `first_id` in the records.
    """
    if not all(map(_is_number, labels)):
        return ""
    different = ((label, number) for number, label in enumerate(labels, first_id) if int(label) != number)
    if not (found := next(different, None)):
        return ""
    label, number = found
    return (
        f"the labels are numbers, but their ids in the records are others: the label {label} has the id {number}. "
        "Reports and predictions show the labels. A program that reads records finds the labels in dataset.json"
    )


def _is_number(label: str) -> bool:
    return label.isdecimal() and len(label) <= MAX_NUMBER


def _by_number(label: str) -> tuple[int, str]:
    return int(label), label  # The text decides between "1" and "01".
