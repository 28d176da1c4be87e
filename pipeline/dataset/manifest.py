"""A dataset: a folder of shards with a `dataset.json`, which is written last. No reader accepts a folder without it."""

import json
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import google_crc32c

from pipeline import storage
from pipeline.config.allowed import Outputs, require_output
from pipeline.config.dataset_name import PATTERN
from pipeline.config.example_kinds import IMAGES, KINDS, TABLE, data_of
from pipeline.dataset.index_files import load_sizes, records_at
from pipeline.dataset.shard_lists import MAX_LISTED_SHARDS, Shard, read_shard_lists, shard_to_json, write_shard_lists
from pipeline.dataset.unreadable import read_record
from pipeline.errors import BadInput, ConflictError, DatasetError, require_format
from pipeline.records import tfrecord
from pipeline.records.format import RecordedImage, RecordFormat, as_file, read_image
from pipeline.storage import BucketPath, ObjectStat, Place
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map

COMMIT = "dataset.json"
CARD = "card.html"
REJECTED, SKIPPED = "rejected.jsonl", "skipped.jsonl"
"""Rejected examples, and files of the source that are not examples."""
DUPLICATES = "duplicates.jsonl"
"""Groups of equal and similar examples."""
SCHEMA_VERSION = 5
"""The format of `dataset.json` and of the files that it lists. It is part of the fingerprint of a dataset, so that a
dataset that is built again in a new format has a folder of its own."""
SAMPLED_RECORDS = 2000
"""At most this many records are read for sample images."""
PARALLEL_REQUESTS = 32
"""This many requests are sent at once, if each of many files takes a request."""
_LIST = ("file", "bytes", "crc32c")
_REQUIRED_FIELDS = {"rejected": ("count", *_LIST), "duplicates": _LIST, "source": ("uri", "listed")}
"""Fields within fields that readers rely on."""
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_NAME = re.compile(PATTERN)
_VERSION = re.compile("[A-Za-z0-9][A-Za-z0-9_-]*")
_FILE = re.compile(_PLAIN)
# The shards of a window are in the folders of its versions.
_SHARD = re.compile(rf"(\.\./\.\./{_VERSION.pattern}/)?{_PLAIN}")
_CRC32C = re.compile("[0-9a-f]{8}")
_Content = TypeVar("_Content")
_UNREADABLE = "an example cannot be read: %s"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """The examples of train, validation or test, with the number of each class."""

    examples: int
    bytes: int
    classes: Mapping[str, int]
    shards: tuple[Shard, ...]
    shard_lists: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)
    """The files that list the shards, each with its size and CRC32C, if there are too many for `dataset.json`."""


@dataclass(frozen=True)
class Dataset:
    """A committed dataset: the content of `dataset.json`."""

    name: str
    version: str
    labels: tuple[str, ...]
    """Ordered by id, from 0."""
    texts: Mapping[str, str]
    """Names for people, by label, if labels are codes."""
    records: RecordFormat
    features: Mapping[str, str]
    splits: Mapping[str, Split]
    rejected: Mapping[str, Any]
    """The number of rejected images, and the file that names them with its size and CRC32C."""
    duplicates: Mapping[str, Any]
    """The same for groups of equal images, and of images that look alike if the settings ask for them."""
    source: Mapping[str, Any]
    quality: Mapping[str, Any]
    """The facts on which the data gate decides, and which the dataset card shows."""
    settings: Mapping[str, Any]
    software: Mapping[str, str]
    window: Mapping[str, str] = field(default_factory=dict)
    """The version of each partition, of a dataset that is made of several (pipeline/sharding/window.py)."""
    hashes: Mapping[str, Any] = field(default_factory=dict)
    """The file of the hashes of all examples (`content_hashes.py`): its size and CRC32C. Empty in a window."""
    files: Sequence[Mapping[str, Any]] = ()
    """Further files, which TensorFlow Datasets reads, each with its size and CRC32C."""
    table: Mapping[str, Any] = field(default_factory=dict)
    """What the records do not say themselves. For a table, its schema (pipeline/tables/schema.py), and `preprocessing`
    by column (pipeline/kinds/table/facts.py). Empty for images."""
    kind: str = IMAGES
    """The kind of examples: a value of `example_kind`."""

    def class_counts(self, split: str) -> list[int]:
        """Return the number of examples of each label in a split, ordered by id. A number may be 0."""
        classes = self.splits[split].classes
        return [classes.get(label, 0) for label in self.labels]

    @property
    def judged_split(self) -> str:
        """The split on which the best model is evaluated, shown and compared: test if it has examples, else validation.

        The best epoch is chosen on the validation split, so that its figures there are too good.
        """
        return "test" if "test" in self.splits and self.splits["test"].examples else "validation"

    @property
    def shards(self) -> list[Shard]:
        """The shards of all splits."""
        return [shard for split in self.splits.values() for shard in split.shards]

    @property
    def unit(self) -> str:
        """What the examples are called in messages: "images" or "rows"."""
        return str(data_of(self.kind).nouns)

    @property
    def lists(self) -> list[Mapping[str, Any]]:
        """The files beside the shards, each with its size and CRC32C."""
        of_shards = (listed for split in self.splits.values() for listed in split.shard_lists)
        return [listed for listed in (self.rejected, self.duplicates, self.hashes, *self.files, *of_shards) if listed]

    @property
    def names(self) -> list[str]:
        """The names of the classes for people, by id."""
        return [self.texts.get(label, label) for label in self.labels]

    @property
    def labels_crc32c(self) -> str:
        """CRC32C of the label map, one label per line. Datasets with the same map have the same ids."""
        lines = "".join(f"{label}\n" for label in self.labels)
        return f"{google_crc32c.value(lines.encode('utf-8', 'surrogateescape')):08x}"


class WriteCard(Protocol):
    """Writes the dataset card, `CARD`, into the folder of a dataset whose shards are there."""

    def __call__(
        self,
        folder: Place,
        dataset: Dataset,
        rejected: Iterable[Mapping[str, Any]],
        duplicates: Iterable[Mapping[str, Any]],
        skipped: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Write the card. `rejected`, `duplicates` and `skipped` are the rows of the files with these names.

        The card may iterate over them several times.
        """


def list_shards(folder: Place, dataset: Dataset, max_listed: int = MAX_LISTED_SHARDS) -> Dataset:
    """Write the lists of the shards of each split that has more than `max_listed`; return the dataset with their facts.

    Raises ConflictError if a list exists with other content.
    """
    return replace(
        dataset,
        splits={
            name: replace(split, shard_lists=write_shard_lists(folder, name, split.shards, max_listed))
            for name, split in dataset.splits.items()
        },
    )


def to_json(dataset: Dataset) -> bytes:
    """Return the content of `dataset.json`."""
    content = {"format": "tenfold", "schema_version": SCHEMA_VERSION, **asdict(replace(dataset, splits={}))}
    content["splits"] = {name: _split_to_json(split) for name, split in dataset.splits.items()}
    for name in ("window", "hashes", "files", "table"):
        if not content[name]:
            del content[name]
    return json.dumps({**content, "checksum": checksum(content)}, indent=1).encode() + b"\n"


def _split_to_json(split: Split) -> dict[str, Any]:
    content = asdict(replace(split, shards=()))  # `asdict` would copy a million shards.
    if split.shard_lists:
        del content["shards"]
    else:
        del content["shard_lists"]
        content["shards"] = list(map(shard_to_json, split.shards))
    return content


def checksum(content: Mapping[str, Any]) -> str:
    """Return the CRC32C of the content of `dataset.json` without its own checksum. White space does not matter."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{google_crc32c.value(canonical.encode()):08x}"


def save(folder: Place, dataset: Dataset, lists: Mapping[str, bytes]) -> None:
    """Write the lists of a dataset by their names, then `dataset.json`, with which it exists. Nothing is replaced.

    Raises ConflictError if a file exists with other content.
    """
    for name, content in lists.items():
        _write_new(folder / name, content)
    # The names of the shards and lists must be on the disk before the name of `dataset.json`, which promises them.
    storage.sync_folder(folder)
    try:
        _write_new(folder / COMMIT, to_json(dataset))
    except ConflictError:
        # Equal images in two places give the same version, and the first commit has stored its own place as source.
        if load(folder).splits != dataset.splits:
            raise
    storage.sync_folder(folder)


def _write_new(path: Place, content: bytes) -> None:
    with storage.write_new(path, synced=True) as file:
        file.write(content)


def is_committed(folder: Place) -> bool:
    """Whether a dataset exists in `folder`."""
    return (folder / COMMIT).exists()


def load(folder: Place) -> Dataset:
    """Return the dataset in `folder`.

    The caller chose the folder, so no allowlist is asked for it. If a file or an XCom named it, use `load_allowed`.

    Raises DatasetError if there is none or it is damaged, FormatError if another version of Tenfold wrote it, and
    SettingsError if a file that it names or links to is outside of it, and the administrator does not allow that.
    """
    outputs = Outputs(_own_folder(folder))
    outputs.require(folder / COMMIT)
    if not folder.is_dir():
        raise DatasetError(f"{folder} is not a folder: name the folder of a version, which contains {COMMIT}")
    if not is_committed(folder):
        versions = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{COMMIT}"))[:5])
        hint = (
            f"name one of its versions ({versions})" if versions else "complete the build, which writes this file last"
        )
        raise DatasetError(f"{folder} contains no dataset, because it has no {COMMIT}: {hint}")
    try:
        dataset = _parse(folder, storage.read_json(folder / COMMIT))
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{folder / COMMIT} cannot be read: {error}") from error
    names = (*(listed["file"] for listed in dataset.lists), *(shard.name for shard in dataset.shards))
    # A window has shards in other folders, and another user of a folder can make a link in place of a file.
    for name in names:
        outputs.require(f"{folder}/{name}" if isinstance(folder, Path) else folder / name)
    return dataset


def load_allowed(folder: Place) -> Dataset:
    """Return the dataset in a folder that a file or an XCom names. Raises what `load` and `require_output` do."""
    require_output(folder)
    return load(folder)


def _own_folder(folder: Place) -> Place:
    """Return the folder that holds all files of a dataset. A window in `windows/` has the shards of its versions."""
    return folder.parent.parent if folder.parent.name == "windows" else folder


def require_shards(folder: Place, dataset: Dataset) -> None:
    """Refuse a dataset if one of its files is missing or differs from the committed file.

    In a bucket, the CRC32C of every object is compared. On a disk, the size of every file is compared, and the first
    and last record of every shard. Reading whole shards would take as long as an epoch; `verify` does that. TensorFlow
    reads a truncated shard as a clean end, and a swapped shard as if it belonged there.

    Raises DatasetError with the name of the file.
    """
    if isinstance(folder, BucketPath):
        committed_objects(folder, dataset)
        return
    shards = dataset.shards
    lists = {listed["file"]: listed["bytes"] for listed in dataset.lists}
    for name, size in {**{shard.name: shard.bytes for shard in shards}, **lists}.items():
        stat = _stat(folder / name)
        if stat is None or stat.st_size != size:
            state = f"holds {stat.st_size}" if stat else "is missing"
            raise _other_file(folder / name, f"should hold {size} bytes, but {state}")
    ends = ordered_map(lambda shard: tfrecord.ends_of(folder / shard.name).hex(), shards, PARALLEL_REQUESTS)
    for shard, actual_ends in zip(shards, ends, strict=True):
        if actual_ends != shard.ends:
            raise _other_file(
                folder / shard.name, "has the size of the committed shard, but another first or last record"
            )


def _other_file(path: Place, what: str) -> DatasetError:
    return DatasetError(
        f"{path} {what}: restore the file, or remove the folder {path.parent} and build the dataset again"
    )


def committed_objects(folder: BucketPath, dataset: Dataset) -> dict[str, ObjectStat]:
    """Return the objects of a dataset in a bucket by name, from one listing of each of its folders.

    Raises DatasetError with the file that is missing, or that has other bytes than the committed ones.
    """
    committed = {shard.name: shard.crc32c for shard in dataset.shards}
    committed |= {listed["file"]: listed["crc32c"] for listed in dataset.lists}
    objects = _objects(folder, committed)
    checksums = {name: f"{stat.crc32c:08x}" for name, stat in objects.items()}
    for name, crc32c in committed.items():
        if checksums.get(name) != crc32c:
            what = "is missing"
            if name in checksums:
                what = f"has CRC32C {checksums[name]}: it was overwritten after the commit"
            raise DatasetError(
                f"{folder / name} was committed with CRC32C {crc32c} and {what}; restore it, or remove all objects "
                f"below {(folder / name).parent} and build the dataset again"
            )
    return objects


def _objects(folder: BucketPath, names: Iterable[str]) -> dict[str, ObjectStat]:
    """Return all objects in the folders of these files: `folder`, and for a window the folders of its versions."""
    prefixes = sorted({name[: name.rfind("/") + 1] for name in names})
    listings = ordered_map(lambda prefix: list(storage.objects(folder / prefix)), prefixes, PARALLEL_REQUESTS)
    pairs = zip(prefixes, listings, strict=True)
    return {prefix + key: stat for prefix, listing in pairs for key, stat in listing}


def last_version(folder: Place, but: str) -> Dataset | None:
    """Return the version that was committed last in the `folder` of a dataset name, except the version `but`."""
    if not folder.is_dir():  # Nothing was published yet.
        return None
    commits = [version / COMMIT for version in storage.folders(folder) if version.name != but]
    # In a bucket, each time takes a request. One after another, a year of versions would take half a minute.
    stats = zip(ordered_map(_stat, commits, PARALLEL_REQUESTS), commits, strict=True)
    times = [(stat.st_mtime_ns, commit) for stat, commit in stats if stat]
    for _, path in sorted(times, reverse=True):
        with suppress(BadInput):  # It is damaged, or another version of Tenfold wrote it.
            return load(path.parent)
    return None


def sample_images(folder: Place, dataset: Dataset, count: int) -> list[tuple[str, bytes]]:
    """Return up to `count` training images as (label, JPEG or PNG file), equally many of each label, ordered by label.

    Only the first records are read, so a rare class may be missing: a search could read all shards.
    """
    per_class = max(1, count // max(len(dataset.splits["train"].classes), 1))
    images_of: dict[str, list[bytes]] = {}
    for image in islice(read_images(folder, dataset, "train"), SAMPLED_RECORDS):
        images = images_of.setdefault(dataset.labels[image.labels[0]], [])
        if len(images) < per_class:
            images.append(as_file(image))
        if sum(map(len, images_of.values())) == count:
            break
    return [(label, encoded) for label in sorted(images_of) for encoded in images_of[label]]


def read_images(folder: Place, dataset: Dataset, split: str) -> Iterator[RecordedImage]:
    """Yield all images of a split, in the order of its shards.

    Raises:
        DatasetError: A shard is damaged, or a record cannot be read. It names the record.
    """
    for path in (folder / shard.name for shard in dataset.splits[split].shards):
        for number, record in enumerate(tfrecord.read_records(path)):
            yield read_record(
                lambda each: read_image(each, dataset.records), record, dataset=dataset, path=path, number=number
            )


def images_at(folder: Place, dataset: Dataset, split: str, positions: Sequence[int]) -> list[tuple[str, bytes]]:
    """Return images as (key, JPEG or PNG file), by their positions through all shards of the split, from 0.

    Only these records are read. A shard without an index is read up to the last of them, and in a bucket copied first.
    """
    return _read_at(folder, dataset, split, positions, lambda record: named_image(dataset, record))


def named_image(dataset: Dataset, record: bytes) -> tuple[str, bytes]:
    """Return a record of the dataset as (key, JPEG or PNG file). Raises ValueError if it cannot be read."""
    image = read_image(record, dataset.records)
    return image.filename.decode("utf-8", "surrogateescape"), as_file(image)


def key_at(folder: Place, dataset: Dataset, split: str, position: int) -> str:
    """Return the key of an example by its position through all shards of the split, from 0; empty if it has none."""
    [key] = _read_at(
        folder, dataset, split, [position], lambda record: str(data_of(dataset.kind).key_of(dataset, record))
    )
    return key


def _read_at(
    folder: Place, dataset: Dataset, split: str, positions: Sequence[int], read: Callable[[bytes], _Content]
) -> list[_Content]:
    """Return what `read` returns for some records. Raises DatasetError if it raises ValueError for one of them."""
    found: dict[int, _Content] = {}
    for shard, before, numbers in _shards_with(folder, dataset, split, positions):
        for number, record in records_at(folder, shard, numbers):
            path = folder / shard.name
            found[before + number] = read_record(read, record, dataset=dataset, path=path, number=number)
    return [found[position] for position in positions]


def readable_at(
    folder: Place, dataset: Dataset, split: str, positions: Sequence[int], read: Callable[[bytes], _Content]
) -> dict[int, _Content]:
    """Return what `read` returns for each of these records that is sound, by its position in the split, from 0.

    A damaged or missing record is logged and left out. Without an index, so are the records of its shard behind it. One
    record is in memory at a time.

    Raises DatasetError if the split has fewer examples.
    """
    found: dict[int, _Content] = {}
    for shard, before, numbers in _shards_with(folder, dataset, split, positions):
        path = folder / shard.name
        for number, record in _sound_records(folder, shard, numbers):
            try:
                found[before + number] = read_record(read, record, dataset=dataset, path=path, number=number)
            except DatasetError as error:
                _log.warning(_UNREADABLE, error)
    return found


def _sound_records(folder: Place, shard: Shard, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    left = deque(numbers)
    while left:
        try:
            for number, record in records_at(folder, shard, left):
                left.popleft()
                yield number, record
        except DatasetError as error:
            _log.warning(_UNREADABLE, error)
            left.popleft()
            if load_sizes(folder, shard) is None:
                return
        except FileNotFoundError as error:
            _log.warning(_UNREADABLE, error)
            return


def _shards_with(
    folder: Place, dataset: Dataset, split: str, positions: Sequence[int]
) -> Iterator[tuple[Shard, int, list[int]]]:
    """Yield each shard with some of these records, the position of its first record, and their numbers in the shard.

    The numbers are ascending. Raises DatasetError if the split has fewer examples.
    """
    if (last := max(positions, default=-1)) >= (count := dataset.splits[split].examples):
        raise DatasetError(f"{folder} has {count} {split} examples, so it has no example {last} (from 0)")
    before = 0
    for shard in dataset.splits[split].shards:
        if numbers := sorted({each - before for each in positions if 0 <= each - before < shard.examples}):
            yield shard, before, numbers
        before += shard.examples


def _stat(path: Place) -> os.stat_result | ObjectStat | None:
    return unless_missing(lambda: path.stat())


def _parse(folder: Place, content: Any) -> Dataset:
    if not isinstance(content, dict):
        raise ValueError("it does not contain a JSON object")
    if content["format"] != "tenfold":
        raise ValueError(f"its format is {content['format']!r} instead of 'tenfold'")
    require_format(content.get("schema_version"), SCHEMA_VERSION, folder / COMMIT, "build the dataset again")
    if content.pop("checksum", None) != checksum(content):
        raise ValueError("it was changed after the commit: its content does not match its checksum")
    del content["format"], content["schema_version"]
    # Some datasets of this format were written without the kind.
    if content.setdefault("kind", TABLE if "table" in content else IMAGES) not in KINDS:
        raise ValueError(f"its kind of examples is {content['kind']!r} instead of {' or '.join(KINDS)}")
    for name, fields in _REQUIRED_FIELDS.items():
        if not isinstance(content[name], dict):
            raise ValueError(f"{name} is no JSON object")
        if missing := [field for field in fields if field not in content[name]]:
            raise ValueError(f"{name} lacks {missing[0]}")
    splits = {name: _parse_split(folder, split) for name, split in content.pop("splits").items()}
    records = RecordFormat(**content.pop("records"))
    dataset = Dataset(splits=splits, labels=tuple(content.pop("labels")), records=records, **content)
    _require_plain_names(dataset)
    return dataset


def _require_plain_names(dataset: Dataset) -> None:
    """Refuse names that become part of a path and could lead elsewhere. Anyone may have written the `dataset.json`.

    Raises ValueError with the name.
    """
    _require_match(_NAME, [dataset.name])
    _require_match(_VERSION, [dataset.version, *dataset.window.values()])
    _require_match(_SHARD, (shard.name for shard in dataset.shards))
    _require_match(_FILE, (listed["file"] for listed in dataset.lists))
    _require_match(_CRC32C, (shard.crc32c for shard in dataset.shards))


def _require_match(pattern: re.Pattern[str], values: Iterable[str]) -> None:
    for value in values:
        if not pattern.fullmatch(value):
            raise ValueError(f"Tenfold never gives the name {value!r}")


def _parse_split(folder: Place, content: dict[str, Any]) -> Split:
    lists = tuple(content.pop("shard_lists", ()))
    if not lists:
        shards = tuple(Shard(**shard) for shard in content.pop("shards"))
        return Split(shards=shards, **content)
    # Before a list is read, because its name becomes part of a path.
    _require_match(_FILE, (listed["file"] for listed in lists))
    outputs = Outputs(_own_folder(folder))
    for listed in lists:
        outputs.require(folder / listed["file"])
    return Split(shards=tuple(read_shard_lists(folder, lists)), shard_lists=lists, **content)
