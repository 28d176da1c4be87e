"""Snapshot -> plan files. They decide everything; writing shards only follows them.

A plan file is what one task reads, however many images there are: a line that says what to write, then the rows of the
snapshot in the very order in which the shards hold them, so that a task streams both.
"""

import hashlib
import json
import logging
import mmap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import PIL
from numpy.typing import NDArray

from pipeline import plan, storage
from pipeline.config import Settings
from pipeline.dataset import is_committed, load, require_shards
from pipeline.errors import SettingsError, SourceError
from pipeline.plan import ShardSpec
from pipeline.snapshot import Snapshot, from_line, key_bytes, load_snapshot
from pipeline.workspace import dataset_folder, shards_folder, work_folder

WRITER_VERSION = 1  # goes up whenever the same images would give other bytes
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What is to be written of a version, or that it stands already."""

    version: str
    dataset_name: str
    dataset: str
    """Folder in which the version is published."""
    written: str
    """Folder in which shards are written; the same one where that lies in the workspace."""
    snapshot: str
    settings: dict[str, Any]
    """The settings that decided the bytes."""
    complete: bool
    """Whether the data set was committed before: then `ranges` is empty."""
    ranges: list[str]
    """Plan files, one a task."""


@dataclass(frozen=True)
class RangePlan:
    """The first line of a plan file."""

    version: str
    source_uri: str
    labels: list[str]
    max_pixels: int
    shards: list[ShardSpec]
    written: str
    """Folder in which shards are written."""
    published: str
    """Folder in which they are read; the same one where that lies in the workspace."""

    @property
    def images(self) -> int:
        """How many images the shards hold together."""
        return sum(spec.images for spec in self.shards)


def make_plan(settings: Settings, snapshot_path: Path) -> Path:
    """Decide the version, the split, the order and the shards, and write a plan file for each range of shards;
    return the file of the whole plan.

    Raises SourceError where no image is left for training, DatasetError where the version stands but lost a shard.
    """
    snapshot = load_snapshot(snapshot_path)
    with open(snapshot.rows, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as rows:
        index = _index_rows(rows, snapshot.listed, settings.seed)
        arranged = _arrange(index, settings)
        version = version_of(snapshot, settings, arranged.shards)
        if _is_complete(settings, version):
            return _save_plan(settings, version, snapshot_path, complete=True, ranges=[])
        _say(arranged, version, settings)
        files = list(_write_plan_files(settings, snapshot, version, arranged, index.offsets, rows))
    return _save_plan(settings, version, snapshot_path, complete=False, ranges=files)


def _is_complete(settings: Settings, version: str) -> bool:
    folder = dataset_folder(settings, version)
    storage.sweep(work_folder(settings, version))
    storage.sweep(folder)
    if not is_committed(folder):
        return False
    require_shards(folder, load(folder))
    _log.info("data set %s is complete already", folder)
    return True


def _save_plan(settings: Settings, version: str, snapshot_path: Path, *, complete: bool, ranges: list[str]) -> Path:
    made = Plan(
        version=version,
        dataset_name=settings.dataset_name,
        dataset=str(dataset_folder(settings, version)),
        written=str(shards_folder(settings, version)),
        snapshot=str(snapshot_path),
        settings=settings_of_bytes(settings),
        complete=complete,
        ranges=ranges,
    )
    path = work_folder(settings, version) / "plan.json"
    with storage.write_whole(path) as file:
        file.write(json.dumps(asdict(made), indent=1).encode())
    return path


def load_plan(path: Path) -> Plan:
    """The plan that `make_plan` wrote to `path`.

    Raises SettingsError where the file holds none.
    """
    try:
        return Plan(**storage.read_json(path))
    except (ValueError, TypeError) as error:
        raise SettingsError(f"{path} holds no plan: give the path that `shard` returned") from error


def version_of(snapshot: Snapshot, settings: Settings, shard_counts: dict[str, int]) -> str:
    """Fingerprint of everything that decides the bytes of a data set, as 16 hexadecimal digits.

    Pillow is part of it, since it decides what is rejected and encodes what is not 8-bit RGB.
    """
    content = {
        "snapshot": snapshot.fingerprint,
        "labels": list(snapshot.classes),
        "shards": shard_counts,
        **settings_of_bytes(settings),
        "writer": WRITER_VERSION,
        "pillow": PIL.__version__,
    }
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def settings_of_bytes(settings: Settings) -> dict[str, Any]:
    """The settings that decide the bytes of a data set, beside the number of shards."""
    names = ("seed", "validation_fraction", "max_megapixels")
    return {name: getattr(settings, name) for name in names}


@dataclass(frozen=True)
class _RowIndex:
    """Columns over the rows of a snapshot: where each line lies, its hashes, its stated split and its size in bytes."""

    offsets: NDArray[np.int64]
    split_hashes: NDArray[np.uint64]
    order_hashes: NDArray[np.uint64]
    given: NDArray[np.int8]
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class _Arranged:
    """What was decided: images and shards of each split, training bytes, and the rows in the order of the shards."""

    images: dict[str, int]
    shards: dict[str, int]
    train_bytes: int
    order: NDArray[np.intp]


def _arrange(index: _RowIndex, settings: Settings) -> _Arranged:
    splits = plan.assign_splits(index.given, index.split_hashes, settings.validation_fraction)
    images = {split: int((splits == number).sum()) for number, split in enumerate(plan.SPLITS)}
    _require_training_images(images, settings)
    shards = plan.shard_counts(images, settings.train_shards, settings.num_training_servers)
    order = np.concatenate([plan.split_order(splits, index.order_hashes, split) for split in shards])
    train_bytes = int(index.sizes[splits == plan.SPLITS.index(plan.TRAIN)].sum())
    return _Arranged(images, shards, train_bytes, order)


def _index_rows(rows: mmap.mmap, count: int, seed: int) -> _RowIndex:
    index = _RowIndex(
        np.zeros(count + 1, np.int64),
        np.zeros(count, np.uint64),
        np.zeros(count, np.uint64),
        np.full(count, -1, np.int8),
        np.zeros(count, np.int64),
    )
    stated = {split: number for number, split in enumerate(plan.SPLITS)}
    for number, line in enumerate(iter(rows.readline, b"")):
        row = from_line(line)
        index.offsets[number + 1] = index.offsets[number] + len(line)
        index.split_hashes[number], index.order_hashes[number] = plan.hash_key(key_bytes(row.key), seed)
        index.given[number] = stated.get(row.split, -1)
        index.sizes[number] = row.size
    return index


def _require_training_images(images: dict[str, int], settings: Settings) -> None:
    if not images[plan.TRAIN]:
        raise SourceError(
            f"no image of {settings.source_uri!r} is left for training ({images}): add images, "
            f"or lower validation_fraction ({settings.validation_fraction})"
        )


def _say(arranged: _Arranged, version: str, settings: Settings) -> None:
    for split, shards in arranged.shards.items():
        _log.info("version %s: %d %s images into %d shards", version, arranged.images[split], split, shards)
    for advice in (
        plan.size_advice(arranged.train_bytes, settings.train_shards),
        plan.fewer_images_advice(arranged.images[plan.TRAIN], settings.train_shards),
    ):
        if advice:
            _log.warning(advice)


def _write_plan_files(
    settings: Settings,
    snapshot: Snapshot,
    version: str,
    arranged: _Arranged,
    offsets: NDArray[np.int64],
    rows: mmap.mmap,
) -> Iterator[str]:
    specs_of_all = plan.shard_specs(arranged.images, arranged.shards)
    start = 0
    for specs in plan.shard_ranges(specs_of_all, settings.shards_per_task):
        header = RangePlan(
            version,
            snapshot.source_uri,
            list(snapshot.classes),
            int(settings.max_megapixels * 1e6),
            list(specs),
            str(shards_folder(settings, version)),
            str(dataset_folder(settings, version)),
        )
        end = start + sum(spec.images for spec in specs)
        path = work_folder(settings, version) / "plans" / f"{specs[0].name}--{specs[-1].name}.jsonl"
        with storage.write_whole(path) as file:
            file.write(json.dumps(asdict(header)).encode() + b"\n")
            file.writelines(rows[offsets[i] : offsets[i + 1]] for i in arranged.order[start:end])
        yield str(path)
        start = end


def load_range(path: Path) -> RangePlan:
    """The first line of a plan file alone."""
    with open(path, "rb") as file:
        return read_range(file)


def read_range(file: IO[bytes]) -> RangePlan:
    """The first line of a plan file; the rows follow."""
    content = json.loads(file.readline())
    content["shards"] = [ShardSpec(**spec) for spec in content["shards"]]
    return RangePlan(**content)
