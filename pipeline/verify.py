"""A deep check of a data set: every byte, every record, every example."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import example, storage, tfrecord
from pipeline.dataset import Dataset, Shard, load
from pipeline.errors import DatasetError
from pipeline.progress import progress


def verify(folder: Path) -> dict[str, Any]:
    """Read a whole data set; return {"ok", "records", "problems"}, a sentence for each problem.

    Raises DatasetError where there is no data set at all.
    """
    dataset = load(folder)
    problems: list[str] = []
    records = 0
    with progress("verify", sum(split.examples for split in dataset.splits.values())) as advance:
        for shard in _shards(dataset):
            found = list(_problems_of_shard(folder / shard.name, shard, dataset))
            problems += found
            records += shard.examples if not found else 0
            advance(shard.examples)
    problems += [*_problems_of_rejected(folder, dataset), *_problems_of_counts(dataset)]
    return {"ok": not problems, "records": records, "problems": problems}


def first_damage(folder: Path, dataset: Dataset) -> str:
    """A sentence with file and offset of the first record that cannot be read; empty where all can."""
    for shard in _shards(dataset):
        try:
            deque(tfrecord.read_records(folder / shard.name), maxlen=0)
        except DatasetError as error:
            return str(error)
    return ""


def _shards(dataset: Dataset) -> Iterator[Shard]:
    for split in dataset.splits.values():
        yield from split.shards


def _problems_of_shard(path: Path, shard: Shard, dataset: Dataset) -> Iterator[str]:
    if not path.exists():
        yield f"{path} is missing"
        return
    if path.stat().st_size != shard.bytes:
        yield f"{path} holds {path.stat().st_size} bytes, {shard.bytes} were committed"
    elif f"{storage.crc32c_of_file(path):08x}" != shard.crc32c:
        yield f"{path} has another CRC32C than was committed"
    yield from _problems_of_records(path, shard, dataset)


def _problems_of_records(path: Path, shard: Shard, dataset: Dataset) -> Iterator[str]:
    number = 0
    try:
        for number, record in enumerate(tfrecord.read_records(path), start=1):
            problem = _problem_of_example(record, dataset)
            if problem:
                yield f"{path}: record {number} {problem}"
    except DatasetError as error:
        yield str(error)
    if number != shard.examples:
        yield f"{path} holds {number} readable records, {shard.examples} were committed"


def _problem_of_example(record: bytes, dataset: Dataset) -> str:
    try:
        features = example.decode(record)
    except ValueError as error:
        return str(error)
    missing = [name for name in dataset.features if len(features.get(name, [])) != 1]
    if missing:
        return f"lacks {', '.join(missing)}"
    label = features["image/class/label"][0]
    if not 0 <= label < len(dataset.labels):
        return f"has label {label}, outside 0 to {len(dataset.labels) - 1}"
    return ""


def _problems_of_rejected(folder: Path, dataset: Dataset) -> Iterator[str]:
    path = folder / dataset.rejected["file"]
    if not path.exists():
        yield f"{path} is missing"
    elif f"{storage.crc32c_of_file(path):08x}" != dataset.rejected["crc32c"]:
        yield f"{path} has another CRC32C than was committed"


def _problems_of_counts(dataset: Dataset) -> Iterator[str]:
    for name, split in dataset.splits.items():
        if split.examples != sum(shard.examples for shard in split.shards):
            yield f"{name}: the examples of the shards do not add up to {split.examples}"
    written = sum(split.examples for split in dataset.splits.values())
    if written + dataset.rejected["count"] != dataset.source["listed"]:
        yield f"{written} written and {dataset.rejected['count']} rejected are not {dataset.source['listed']} listed"
