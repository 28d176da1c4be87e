"""A deep check of a dataset: every byte, every record, every example."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pipeline import storage
from pipeline.config.example_kinds import data_of
from pipeline.dataset.index_files import problem_of_index
from pipeline.dataset.manifest import Dataset, Split, load
from pipeline.dataset.shard_lists import Shard
from pipeline.dataset.unreadable import place_of_record, unreadable_record
from pipeline.errors import DatasetError
from pipeline.records import tfrecord
from pipeline.storage import Place
from pipeline.system.progress import progress

Check = Callable[[bytes, Counter[int]], str]
"""Returns what is wrong with a record, or an empty text, and counts its labels by id."""
ReadWhole = Callable[[Iterable[bytes]], Iterator[tuple[bytes, str]]]
"""Yields each record with the reason why no training can read it. The reason is empty if it can."""


def _without_reading(records: Iterable[bytes]) -> Iterator[tuple[bytes, str]]:
    return ((record, "") for record in records)


def verify(folder: Place, read_whole: ReadWhole = _without_reading) -> dict[str, Any]:
    """Read a whole dataset and return {"ok", "records", "problems"}, with a sentence for each problem.

    `records` counts those in shards without a problem. By default, no image is decoded. `read_whole` of
    `pipeline/input/read_whole.py` decodes them. Raises DatasetError if there is no dataset at all.
    """
    dataset = load(folder)
    kind = data_of(dataset.kind)
    check: Check = kind.check_of(dataset)

    def problems_of_records(path: Place, counted: Counter[int]) -> Iterator[str]:
        for number, (record, unread) in enumerate(read_whole(tfrecord.read_records(path))):
            problem = check(record, counted) or unread
            yield f"{place_of_record(path, number, kind.key_of(dataset, record))}: {problem}" if problem else ""

    problems: list[str] = []
    records = 0
    with progress("verify", sum(split.examples for split in dataset.splits.values()), "examples") as advance:
        for name, split in dataset.splits.items():
            counted, before = Counter[int](), len(problems)
            for shard in split.shards:
                path = folder / shard.name
                shard_problems = list(_problems_of_shard(path, shard, problems_of_records(path, counted)))
                problems += shard_problems
                records += shard.examples if not shard_problems else 0
                advance(shard.examples)
            # With a damaged shard, the counts differ too, and the same problem would be reported twice.
            if len(problems) == before:
                problems += _problems_of_split(name, split, {dataset.labels[id_]: n for id_, n in counted.items()})
    problems += filter(None, (problem_of_index(folder, shard) for shard in dataset.shards))
    problems += [*_problems_of_lists(folder, dataset), *_problems_of_counts(dataset)]
    return {"ok": not problems, "records": records, "problems": problems}


def first_unreadable(
    folder: Place, dataset: Dataset, read_whole: ReadWhole, heartbeat: Callable[[], object]
) -> DatasetError | None:
    """Return an error that names the first record that no training can read; None if all can be read.

    `heartbeat` is called after each record. Raises DatasetError or FileNotFoundError if a shard is damaged or missing.
    """
    kind = data_of(dataset.kind)
    check: Check = kind.check_of(dataset)
    with progress("search", sum(shard.examples for shard in dataset.shards), "examples") as advance:
        for path in (folder / shard.name for shard in dataset.shards):
            for number, (record, unread) in enumerate(read_whole(tfrecord.read_records(path))):
                if unread:
                    reason = check(record, Counter()) or unread
                    return unreadable_record(dataset, path, number, reason, kind.key_of(dataset, record))
                heartbeat()
                advance(1)
    return None


def first_damage(folder: Place, dataset: Dataset, heartbeat: Callable[[], object]) -> str:
    """Return a sentence with file and offset of the first record that is damaged; empty if all are sound.

    `heartbeat` is called after each record.
    """
    for shard in dataset.shards:
        records = 0
        try:
            for _ in tfrecord.read_records(folder / shard.name):
                heartbeat()
                records += 1
        except DatasetError as error:
            return str(error)
        except FileNotFoundError:
            return f"{folder / shard.name} is missing"
        if records != shard.examples:
            return f"{folder / shard.name} holds {records} records, but {shard.examples} were committed"
    return ""


def _problems_of_shard(path: Place, shard: Shard, problems_of_records: Iterator[str]) -> Iterator[str]:
    if not path.exists():
        yield f"{path} is missing"
        return
    if path.stat().st_size != shard.bytes:
        yield f"{path} holds {path.stat().st_size} bytes, but {shard.bytes} were committed"
    elif f"{storage.crc32c_of(path):08x}" != shard.crc32c:
        yield f"{path} does not have the CRC32C that was committed"
    # The records are read even if the CRC32C of the file is wrong, because they show the offset of the damage.
    sound = 0
    try:
        for problem in problems_of_records:
            sound += 1
            if problem:
                yield problem
    except DatasetError as error:
        yield str(error)
    if sound != shard.examples:
        yield f"{path} holds {sound} readable records, but {shard.examples} were committed"


def _problems_of_split(name: str, split: Split, counted: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each way in which dataset.json contradicts the sound shards of a split."""
    if split.bytes != sum(shard.bytes for shard in split.shards):
        yield f"{name}: the bytes of the shards do not add up to {split.bytes}"
    for label in sorted({*split.classes, *counted}):
        committed, actual = split.classes.get(label, 0), counted.get(label, 0)
        if committed != actual:
            yield f"{name} holds {actual} examples of {label!r}, but {committed} were committed"


def _problems_of_lists(folder: Place, dataset: Dataset) -> Iterator[str]:
    for listed in dataset.lists:
        path = folder / listed["file"]
        if not path.exists():
            yield f"{path} is missing"
        elif f"{storage.crc32c_of(path):08x}" != listed["crc32c"]:
            yield f"{path} does not have the CRC32C that was committed"


def _problems_of_counts(dataset: Dataset) -> Iterator[str]:
    for name, split in dataset.splits.items():
        if split.examples != sum(shard.examples for shard in split.shards):
            yield f"{name}: the examples of the shards do not add up to {split.examples}"
    written = sum(split.examples for split in dataset.splits.values())
    if written + dataset.rejected["count"] != dataset.source["listed"]:
        yield (
            f"{written} examples were written and {dataset.rejected['count']} were rejected, but "
            f"{dataset.source['listed']} were listed"
        )
