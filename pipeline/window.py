"""The newest partitions of a data set name as one data set, of which no shard is copied.

A window is a folder `windows/<id>/` beside the versions, with a `dataset.json` and the lists that it names. Its shards
are named from there on, `../../<version>/train-00003-of-00010.tfrecord`, so that whatever joins folder and name finds
them. The id is a hash of the versions: the same ones are the same window, which is written once.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from pipeline import storage
from pipeline.config import Settings
from pipeline.dataset import (
    ASKERS,
    REJECTED,
    Dataset,
    Split,
    file_facts,
    is_committed,
    load,
    require_shards,
    save,
)
from pipeline.errors import DatasetError
from pipeline.parallel import ordered_map
from pipeline.partitions import newest_partitions
from pipeline.plan import SPLITS
from pipeline.quality.facts import DUPLICATES
from pipeline.storage import Place
from pipeline.workspace import name_folder

LISTS = (REJECTED, DUPLICATES)
ID_LENGTH = 16
_log = logging.getLogger(__name__)


def newest_dataset(settings: Settings) -> Place:
    """The folder of the data set to train on: the newest `settings.window` partitions together.

    Raises what `dataset_of` does.
    """
    return dataset_of(settings, newest_partitions(settings, settings.window))


def dataset_of(settings: Settings, partitions: Mapping[str, str]) -> Place:
    """The folder of the data set that some partitions are together: that of a version, or of a window of several.

    `partitions` are versions by partition. Raises DatasetError where there is none, a version is gone or incomplete,
    or two of them cannot be one data set.
    """
    folder = name_folder(settings)
    if not partitions:
        raise DatasetError(f"no partition of {settings.dataset_name!r} is published in {folder}: build one first")
    versions = _distinct(folder, partitions)
    if len(versions) == 1:
        return folder / versions[0].version
    window = folder / "windows" / _fingerprint(versions)[:ID_LENGTH]
    if not is_committed(window):
        _require_alike(versions, partitions)
        _write(window, versions, partitions)
    return window


def _distinct(folder: Place, partitions: Mapping[str, str]) -> list[Dataset]:
    """The data sets of the partitions, each once, ordered by version: the bytes of a window follow from its id."""
    named = sorted({version: partition for partition, version in partitions.items()}.items())
    return list(ordered_map(partial(_load, folder), named, ASKERS))


def _load(folder: Place, named: tuple[str, str]) -> Dataset:
    version, partition = named
    if not is_committed(folder / version):
        raise DatasetError(
            f"partition {partition} is version {version}, and {folder / version} holds no data set: bring it back, "
            f"build the partition again, or remove its file in {folder / 'partitions'}"
        )
    return load(folder / version)


def _fingerprint(versions: Sequence[Dataset]) -> str:
    names = json.dumps([each.version for each in versions])
    return hashlib.blake2b(names.encode(), digest_size=16).hexdigest()


def _require_alike(versions: Sequence[Dataset], partitions: Mapping[str, str]) -> None:
    """Compare all with the one that has the most labels: the labels of any other are the first of these."""
    longest = _longest(versions)
    for each in versions:
        if difference := _difference(each, longest):
            one, other = (_named(dataset, partitions) for dataset in (each, longest))
            raise DatasetError(
                f"{one} and {other} cannot be trained on as one data set: {difference}; build one of them again with "
                "the settings of the other, or set window=1"
            )


def _longest(versions: Sequence[Dataset]) -> Dataset:
    return max(versions, key=lambda dataset: len(dataset.labels))


def _difference(one: Dataset, other: Dataset) -> str:
    """What keeps two versions from being one data set; empty where nothing does."""
    # Where one has fewer labels they are the first of the other's: ids of a name never move.
    pairs = zip(_decisive(one), _decisive(other), strict=False)
    differences = (f"{what} is {a!r} in the first and {b!r} in the second" for (what, a), (_, b) in pairs if a != b)
    return next(differences, "")


def _decisive(dataset: Dataset) -> list[tuple[str, Any]]:
    """Where the sides were decided in two ways, an image of two partitions may be in training and in validation."""
    sides = [(name, dataset.settings.get(name)) for name in ("seed", "validation_fraction")]
    labels = [(f"label {number}", label) for number, label in enumerate(dataset.labels)]
    return [*asdict(dataset.records).items(), *sides, *labels]


def _named(dataset: Dataset, partitions: Mapping[str, str]) -> str:
    names = [name for name, version in partitions.items() if version == dataset.version]
    return f"version {dataset.version} (partition {names[0]})"


def _write(window: Place, versions: Sequence[Dataset], partitions: Mapping[str, str]) -> None:
    folder = window.parent.parent
    for each in versions:
        require_shards(folder / each.version, each)
    lists = {name: b"".join((folder / each.version / name).read_bytes() for each in versions) for name in LISTS}
    dataset = _joined(versions, lists, str(folder), partitions)
    save(window, dataset, lists)
    storage.sweep(window)
    counts = ", ".join(f"{split.examples} {name} examples" for name, split in dataset.splits.items())
    _log.info("window %s of %d partitions: %s", window, len(partitions), counts)


def _joined(
    versions: Sequence[Dataset], lists: Mapping[str, bytes], uri: str, partitions: Mapping[str, str]
) -> Dataset:
    longest, fingerprint = _longest(versions), _fingerprint(versions)
    return Dataset(
        name=longest.name,
        version=fingerprint[:ID_LENGTH],
        labels=longest.labels,
        texts={label: text for each in versions for label, text in each.texts.items()},
        records=longest.records,
        features=longest.features,
        splits={name: _split(name, versions) for name in SPLITS if any(name in each.splits for each in versions)},
        rejected={"count": sum(each.rejected["count"] for each in versions), **file_facts(REJECTED, lists[REJECTED])},
        duplicates={"groups": lists[DUPLICATES].count(b"\n"), **file_facts(DUPLICATES, lists[DUPLICATES])},
        source={
            "uri": uri,
            "kind": "window",
            "listed": sum(each.source["listed"] for each in versions),
            "skipped": _summed(each.source["skipped"] for each in versions),
            "fingerprint": fingerprint,
        },
        # Each version says of itself what decided its bytes, and what is known of its images.
        quality={},
        settings={},
        software={},
        window=dict(partitions),
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
