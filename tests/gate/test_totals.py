"""The totals of a dataset, which are added up from the results of its shards one after another."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import storage
from pipeline.config.settings import Settings
from pipeline.dataset.content_hashes import HASH_BYTES
from pipeline.errors import FileSystemError
from pipeline.gate.statistics import Statistics
from pipeline.gate.totals import Totals
from pipeline.plan.plan import Plan, load_plan
from pipeline.plan.range_plan import ShardSpec, load_range, to_header
from pipeline.plan.results import ShardResult, save_result
from pipeline.sharding.finished_shards import quality_of
from tests.published import planned

CLASSES = 1000


def result_of(number: int, split: str = "train", **values: Any) -> ShardResult:
    """Return the result of a shard with 1,000 examples, one of each class, and one rejected image."""
    result = ShardResult(
        name=f"{split}-{number:05d}-of-01000.tfrecord",
        split=split,
        examples=CLASSES,
        bytes=100 + number,
        crc32c=f"{number:08x}",
        ends="0123456789abcdef",
        hashes_crc32c=f"{2**32 - 1 - number:08x}",
        classes={f"class {label}": 1 for label in range(CLASSES)},
        rejected=[{"path": f"{number}.jpg", "reason": "truncated", "advice": ""}],
        misnamed=2,
        statistics=Statistics().to_json(),
    )
    return replace(result, **values)


def test_totals_are_the_sums_of_the_results_in_their_order():
    rows: list[Any] = []
    totals = Totals(rows.append)
    totals.add(result_of(0, profiles={"converted": 3}, perceptual_hashes=[("a.jpg", 7)]))
    totals.add(result_of(1, profiles={"converted": 1, "ignored": 2}, classes={"class 5": 1, "b": 999}))
    totals.add(result_of(0, "validation", examples=1, rejected=[], classes={"b": 1}))
    train, validation, test = totals.splits.values()
    assert (totals.examples, totals.rejected, totals.misnamed) == (2001, 2, 6)
    assert rows == [{"path": f"{number}.jpg", "reason": "truncated", "advice": ""} for number in range(2)]
    assert totals.profiles == {"converted": 4, "ignored": 2}
    assert totals.perceptual_hashes == [("a.jpg", 7, "train")]
    assert (train.examples, train.bytes, train.classes["class 5"], train.classes["b"]) == (2000, 201, 2, 999)
    assert list(train.hashes_crc32c) == [2**32 - 1, 2**32 - 2]
    split = train.as_split()
    assert [(shard.name, shard.bytes, shard.crc32c) for shard in split.shards] == [
        ("train-00000-of-01000.tfrecord", 100, "00000000"),
        ("train-00001-of-01000.tfrecord", 101, "00000001"),
    ]
    assert list(split.classes) == sorted(split.classes)
    assert (validation.examples, validation.classes, len(validation.shards)) == (1, {"b": 1}, 1)
    assert not test.shards


def written(settings: Settings, shards: int) -> Plan:
    """Return a plan with this many shards that have results."""
    plan_path, [first, *_] = planned(settings)
    path = first.parent / "many.jsonl"
    results = [result_of(number) for number in range(shards)]
    specs = [ShardSpec(result.name, result.split, result.examples + 1) for result in results]
    with storage.write_whole(path) as file:
        file.write(to_header(replace(load_range(first), shards=specs)))
    for result in results:
        save_result(path, result, bytes(HASH_BYTES * result.examples))
    return replace(load_plan(plan_path), ranges=[str(path)])


@pytest.mark.long
def test_memory_grows_only_with_the_list_of_shards(settings: Settings):
    peaks = []
    for shards in (150, 400):
        plan = written(settings, shards)
        tracemalloc.start()
        try:
            assert quality_of(plan)["rejected"] == shards
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # A result takes 85 kB. At most 128 of them are in memory at once, in both cases.
    assert peaks[1] - peaks[0] < 250 * 5_000


@pytest.mark.parametrize("lost", [0, 299])
def test_a_shard_without_a_result_is_named(settings: Settings, lost: int):
    plan = written(settings, 300)
    name = f"train-{lost:05d}-of-01000.tfrecord"
    (Path(plan.ranges[0]).parent.parent / "results" / f"{name}.json").unlink()
    with pytest.raises(FileSystemError, match=f"{name} was not written, or .*: run again, or run the shard stage"):
        quality_of(plan)
