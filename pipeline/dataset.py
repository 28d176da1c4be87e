"""What a data set is: a folder of shards with a `dataset.json`, written last. Without that file nothing reads it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline import example, storage, tfrecord
from pipeline.errors import DatasetError

COMMIT = "dataset.json"
REJECTED = "rejected.jsonl"
SCHEMA_VERSION = 1
SAMPLED_RECORDS = 2000


@dataclass(frozen=True)
class Shard:
    """One published file; `crc32c` is that of the whole file, as eight hexadecimal digits."""

    name: str
    examples: int
    bytes: int
    crc32c: str


@dataclass(frozen=True)
class Split:
    """The examples of train, validation or test, with the number of each class."""

    examples: int
    bytes: int
    classes: Mapping[str, int]
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Dataset:
    """A committed data set: what `dataset.json` says."""

    name: str
    version: str
    labels: tuple[str, ...]
    features: Mapping[str, str]
    splits: Mapping[str, Split]
    rejected: Mapping[str, Any]
    source: Mapping[str, Any]
    settings: Mapping[str, Any]
    software: Mapping[str, str]


def to_json(dataset: Dataset) -> bytes:
    """The content of `dataset.json`."""
    content = {"format": "tenfold", "schema_version": SCHEMA_VERSION, **asdict(dataset)}
    return json.dumps(content, indent=1).encode() + b"\n"


def is_committed(folder: Path) -> bool:
    """Whether a data set exists in `folder`."""
    return (folder / COMMIT).exists()


def load(folder: Path) -> Dataset:
    """The data set in `folder`.

    Raises DatasetError where there is none, or one that this version cannot read.
    """
    if not folder.is_dir():
        raise DatasetError(f"{folder} is no folder: name the folder of a version, which holds {COMMIT}")
    if not is_committed(folder):
        raise DatasetError(f"{folder} holds no data set: there is no {COMMIT}, which is written last")
    try:
        return _parse(storage.read_json(folder / COMMIT))
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{folder / COMMIT} cannot be read: {error}") from error


def require_shards(folder: Path, dataset: Dataset) -> None:
    """Refuse a data set of which a file is missing or has another size than was committed.

    Raises DatasetError naming the file. TensorFlow reads a cut shard as a clean end, so it cannot be left to it.
    """
    sizes = {shard.name: shard.bytes for split in dataset.splits.values() for shard in split.shards}
    for name, size in {**sizes, dataset.rejected["file"]: dataset.rejected["bytes"]}.items():
        found = _size(folder / name)
        if found != size:
            raise DatasetError(
                f"{folder / name} should hold {size} bytes and {'is missing' if found is None else f'holds {found}'}: "
                "bring it back, or remove the data set's folder and build it again"
            )


def sample_images(folder: Path, most: int) -> list[tuple[str, bytes]]:
    """Up to `most` training images as (label, encoded image), as many of each label as can be, ordered by label.

    Reads the first records only: a rare class is not searched for through all the shards.
    """
    dataset = load(folder)
    per_class = max(1, most // max(len(dataset.splits["train"].classes), 1))
    found: dict[str, list[bytes]] = {}
    for label, encoded in islice(_training_images(folder, dataset), SAMPLED_RECORDS):
        images = found.setdefault(label, [])
        if len(images) < per_class:
            images.append(encoded)
        if sum(map(len, found.values())) == most:
            break
    return [(label, encoded) for label in sorted(found) for encoded in found[label]]


def _training_images(folder: Path, dataset: Dataset) -> Iterator[tuple[str, bytes]]:
    for shard in dataset.splits["train"].shards:
        for record in tfrecord.read_records(folder / shard.name):
            features = example.decode(record)
            yield dataset.labels[features["image/class/label"][0]], features["image/encoded"][0]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _parse(content: Any) -> Dataset:
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    if content.pop("format") != "tenfold" or content.pop("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"it is not of schema version {SCHEMA_VERSION}")
    splits = {name: _parse_split(split) for name, split in content.pop("splits").items()}
    return Dataset(splits=splits, labels=tuple(content.pop("labels")), **content)


def _parse_split(content: dict[str, Any]) -> Split:
    shards = tuple(Shard(**shard) for shard in content.pop("shards"))
    return Split(shards=shards, **content)
