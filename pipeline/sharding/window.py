"""A window: the newest partitions of a dataset name as one dataset, without copying a shard.

A window is a folder `windows/<id>/` beside the versions, with a `dataset.json`, the lists that it names and a card. The
names of its shards are relative to this folder (`../../<version>/train-00003-of-00010.tfrecord`), so that any reader
that joins folder and name finds them. The id is a hash of the versions. The same versions are the same window, which is
written once.

Each version has passed the data gate by itself. Here the gate checks all versions together: an example may be in
training in one version and in validation in another, and so may the examples of a group. Hashes find both.

The versions of a table may have different columns. The window has the union of them (pipeline/kinds/table/union.py).
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import storage
from pipeline.config.allowed import require_folder
from pipeline.dataset.groups import load_hashes
from pipeline.dataset.lists import JsonLines, ListWriter, new_list
from pipeline.dataset.manifest import (
    CARD,
    DUPLICATES,
    PARALLEL_REQUESTS,
    REJECTED,
    Dataset,
    Split,
    WriteCard,
    is_committed,
    key_at,
    list_shards,
    load,
    require_shards,
    save,
)
from pipeline.dataset.partitions import warn_about_ignored_latest
from pipeline.errors import DatasetError
from pipeline.gate.decide import Gate
from pipeline.gate.facts import Quality
from pipeline.gate.shared_examples import Examples, shared_facts
from pipeline.plan.example_kind import kind_of
from pipeline.snapshot.part import SPLITS, TEST, TRAIN
from pipeline.storage import Place
from pipeline.system.parallel import ordered_map
from pipeline.system.wording import counted

LISTS = (REJECTED, DUPLICATES)
ID_LENGTH = 16
"""The id of a window has this many hexadecimal digits, as many as a version."""
_log = logging.getLogger(__name__)


def dataset_of(folder: Place, partitions: Mapping[str, str], gate: Gate, write_card: WriteCard) -> Place:
    """Return the folder of the dataset of some partitions: that of a version, or of a window of several versions.

    `partitions` are versions by partition. Raises DatasetError if there is none, if a version is missing or
    incomplete, or if two of them cannot be one dataset. Raises GateError if a window has more leaks than `gate` allows,
    and SettingsError if the administrator does not allow a folder or a link in it.
    `folder` is that of the dataset name.
    """
    if not partitions:
        raise DatasetError(
            f"no partition of {folder.name!r} is published in {folder}, or all are withdrawn: build one first, or "
            "bring one back with `tenfold partition DATE VERSION`"
        )
    warn_about_ignored_latest(folder)
    # Each version counts once, in the order of the versions: windows with the same id must have the same bytes.
    named = sorted({version: partition for partition, version in partitions.items()}.items())
    versions = list(ordered_map(partial(_load, folder), named, PARALLEL_REQUESTS))
    _require_test_examples(versions, len(partitions))
    if len(versions) == 1:
        return folder / versions[0].version
    window = folder / "windows" / _fingerprint(versions)[:ID_LENGTH]
    require_folder(window)
    # The gate also decides about a window that exists, because the settings of this run may allow fewer leaks.
    if is_committed(window):
        gate.decide(load(window).quality)
    else:
        _require_alike(versions, partitions)
        _write(window, versions, partitions, gate, write_card)
    return window


def _load(folder: Place, named: tuple[str, str]) -> Dataset:
    version, partition = named
    if not is_committed(folder / version):
        raise DatasetError(
            f"partition {partition} is version {version}, but {folder / version} has no dataset: restore it, build the "
            f"partition again, or remove its file in {folder / 'partitions'}"
        )
    return load(folder / version)


def _require_test_examples(versions: Sequence[Dataset], partitions: int) -> None:
    """Raise DatasetError if the sources state test examples, but all of them were rejected."""
    # A test split by `test_fraction` may have no example at all, so it may also lose its only one.
    states_test = any(TEST in each.splits and not each.settings.get("test_fraction") for each in versions)
    if states_test and not any(each.splits[TEST].examples for each in versions if TEST in each.splits):
        nouns = kind_of(versions[0]).nouns
        raise DatasetError(
            f"no usable test {nouns} in {counted(partitions, 'partition')} of {versions[0].name!r}: all were rejected, "
            f"and {REJECTED} of each version says why; repair or replace them, or set a larger window"
        )


def _fingerprint(versions: Sequence[Dataset]) -> str:
    names = json.dumps([each.version for each in versions])
    return hashlib.blake2b(names.encode(), digest_size=16).hexdigest()


def _require_alike(versions: Sequence[Dataset], partitions: Mapping[str, str]) -> None:
    """Raise DatasetError if two versions differ in what must be equal.

    All are compared with the version that has the most labels, because those of any other must be its first ones.
    """
    longest = _longest(versions)
    for each in versions:
        if difference := _difference(each, longest):
            raise _refusal(each, longest, difference, partitions)
    if conflict := kind_of(longest).find_conflict(versions):
        first, second = versions[conflict.first], versions[conflict.second]
        raise _refusal(first, second, conflict.difference, partitions)


def _refusal(one: Dataset, other: Dataset, difference: str, partitions: Mapping[str, str]) -> DatasetError:
    first, second = (
        f"version {dataset.version} (partition {_partition(dataset, partitions)})" for dataset in (one, other)
    )
    return DatasetError(
        f"{first} and {second} cannot be trained on as one dataset: {difference}; build one of them again with "
        "the settings of the other, or set window=1"
    )


def _longest(versions: Sequence[Dataset]) -> Dataset:
    return max(versions, key=lambda dataset: len(dataset.labels))


def _difference(one: Dataset, other: Dataset) -> str:
    """Return why two versions cannot be one dataset; empty if they can."""
    # If one version has fewer labels, they are the first ones of the other: ids of a dataset name never change.
    pairs = zip(_decisive(one), _decisive(other), strict=False)
    differences = (f"{what} is {a!r} in the first and {b!r} in the second" for (what, a), (_, b) in pairs if a != b)
    return next(differences, "")


def _decisive(dataset: Dataset) -> list[tuple[str, Any]]:
    """Return the values that must be equal in two versions of a window.

    With other record formats or labels, one reader could not read both versions. With another seed or shares of the
    split, many examples and groups (a person, a scene) would be on both sides.
    """
    sides = [(name, dataset.settings[name]) for name in ("split_seed", "validation_fraction")]
    sides.append(("test_fraction", dataset.settings.get("test_fraction", 0.0)))  # It is left out if it has no effect.
    kind = ("the kind of examples", kind_of(dataset).nouns)
    labels = [(f"label {number}", label) for number, label in enumerate(dataset.labels)]
    return [kind, *asdict(dataset.records).items(), *sides, *labels]


def _partition(dataset: Dataset, partitions: Mapping[str, str]) -> str:
    return next(name for name, version in partitions.items() if version == dataset.version)


def _write(
    window: Place,
    versions: Sequence[Dataset],
    partitions: Mapping[str, str],
    gate: Gate,
    write_card: WriteCard,
) -> None:
    folder = window.parent.parent
    for each in versions:
        require_shards(folder / each.version, each)
    quality = _facts(folder, versions, partitions)
    gate.report(quality)
    quality["findings"] = gate.decide(quality)
    if isinstance(window, Path):
        window.mkdir(parents=True, exist_ok=True)  # The card reads shards relative to this folder.
    lists = {name: _join_list(window, versions, name) for name in LISTS}
    dataset = list_shards(window, replace(_joined(versions, lists, str(folder), partitions), quality=quality))
    write_card(window, dataset, *(JsonLines(window / name) for name in LISTS))
    save(window, dataset, {})
    storage.sweep(window)
    counts = ", ".join(f"{split.examples} {name} examples" for name, split in dataset.splits.items())
    _log.info("window %s of %d partitions: %s", window, len(partitions), counts)
    _log.info("dataset card: %s", window / CARD)


def _join_list(window: Place, versions: Sequence[Dataset], name: str) -> ListWriter:
    """Write the list of a window that has the lines of all versions, and return its writer."""
    with new_list(window / name) as joined:
        # The order of the versions is fixed, so that the same window has the same bytes wherever it is written.
        for each in versions:
            joined.copy_lines(window.parent.parent / each.version / name)
    return joined


def _facts(folder: Place, versions: Sequence[Dataset], partitions: Mapping[str, str]) -> Quality:
    """Return the facts about all versions together on which the data gate decides."""
    kind = kind_of(versions[0])
    parts = [(number, split) for number, each in enumerate(versions) for split in each.splits]
    counts = [versions[number].splits[split].examples for number, split in parts]
    ends = np.cumsum(counts)
    hashes, groups = _hashes(folder, versions)
    examples = Examples(
        hashes=hashes,
        groups=groups,
        held_back=np.repeat([split != TRAIN for _, split in parts], counts),
        versions=np.repeat(np.array([number for number, _ in parts], np.int16), counts),
    )

    def name(index: int) -> str:
        part = int(np.searchsorted(ends, index, side="right"))
        number, split = parts[part]
        dataset, position = versions[number], index - int(ends[part]) + counts[part]
        key = key_at(folder / dataset.version, dataset, split, position) or f"{kind.noun} {position} of {split}"
        return f"{_partition(dataset, partitions)}: {key}"

    return {"unit": kind.noun, **shared_facts(examples, name)}


def _hashes(folder: Place, versions: Sequence[Dataset]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the content hashes of all examples, each as two numbers, and the hashes of their groups.

    The examples are in the order of the versions.
    """
    total = sum(split.examples for each in versions for split in each.splits.values())
    contents, groups = np.empty((total, 2), "<u8"), np.empty(total, "<u8")
    start = 0
    for each in versions:
        of_version = load_hashes(folder / each.version, each)
        end = start + len(of_version)
        contents[start:end], groups[start:end] = of_version["content"], of_version["group"]
        start = end
    return contents, groups


def _joined(
    versions: Sequence[Dataset], lists: Mapping[str, ListWriter], uri: str, partitions: Mapping[str, str]
) -> Dataset:
    longest, fingerprint = _longest(versions), _fingerprint(versions)
    splits = {name: _split(name, versions) for name in SPLITS if any(name in each.splits for each in versions)}
    kind = kind_of(longest)
    table = kind.union_of(versions, splits[TRAIN].examples)
    return Dataset(
        name=longest.name,
        version=fingerprint[:ID_LENGTH],
        labels=longest.labels,
        texts={label: text for each in versions for label, text in each.texts.items()},
        records=longest.records,
        features=kind.features(longest.records, table),
        splits=splits,
        rejected={"count": lists[REJECTED].lines, **lists[REJECTED].facts(REJECTED)},
        duplicates={"groups": lists[DUPLICATES].lines, **lists[DUPLICATES].facts(DUPLICATES)},
        source={
            "uri": uri,
            "kind": "window",
            "listed": sum(each.source["listed"] for each in versions),
            "skipped": _summed(each.source["skipped"] for each in versions),
            "fingerprint": fingerprint,
        },
        quality={},
        # Each version has its own settings and software, which decided its bytes.
        settings={},
        software={},
        window=dict(partitions),
        table=table,
        kind=longest.kind,
    )


def _split(name: str, versions: Sequence[Dataset]) -> Split:
    members = [(each.version, each.splits[name]) for each in versions if name in each.splits]
    return Split(
        examples=sum(split.examples for _, split in members),
        bytes=sum(split.bytes for _, split in members),
        classes=_summed(split.classes for _, split in members),
        shards=tuple(
            replace(shard, name=f"../../{version}/{shard.name}") for version, split in members for shard in split.shards
        ),
    )


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
