"""The results of the shards of a plan, after all of them are written."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline import storage
from pipeline.dataset.content_hashes import HASH_BYTES
from pipeline.dataset.manifest import PARALLEL_REQUESTS, is_committed, last_version, load
from pipeline.dataset.shard_lists import Shard
from pipeline.errors import DatasetError, FileSystemError
from pipeline.gate.facts import Quality, written_facts
from pipeline.gate.totals import Totals
from pipeline.plan.plan import Plan
from pipeline.plan.range_plan import RangePlan, ShardSpec, load_range
from pipeline.plan.results import ShardResult, load_hashes, load_result, results_folder
from pipeline.storage import Place, place_of
from pipeline.system.parallel import ordered_map

READERS = 8
"""This many plan files are read at once."""


def finished_shards(plan_path: Place) -> tuple[RangePlan, list[ShardResult]]:
    """Return a range of shards, and the result of each. Raises what `finished_shard` raises."""
    range_plan = load_range(plan_path)
    return range_plan, [finished_shard((plan_path, spec)) for spec in range_plan.shards]


def finished_shard(planned: tuple[Place, ShardSpec]) -> ShardResult:
    """Return the result of a shard, which another host may have written just now.

    Raises FileSystemError if this host does not see that it was written, DatasetError if it lacks examples of the plan.
    """
    plan_path, spec = planned
    result = load_result(plan_path, spec.name)
    if result is None:
        storage.refresh(results_folder(plan_path))
        result = load_result(plan_path, spec.name)
    if result is None:
        raise FileSystemError(
            f"{spec.name} was not written, or this host does not see it yet: run again, or run the shard stage of "
            f"{plan_path} again"
        )
    if result.examples + len(result.rejected) != spec.examples:
        raise DatasetError(
            f"{spec.name} has {result.examples} examples and {len(result.rejected)} rejected examples, but "
            f"{spec.examples} were planned"
        )
    return result


def totals_of(plan: Plan, add_rejected: Callable[[Mapping[str, str]], None]) -> Totals:
    """Add the results of all shards. `add_rejected` gets each rejected example."""
    totals = Totals(add_rejected)
    for result in ordered_map(finished_shard, _shards(plan), PARALLEL_REQUESTS):
        totals.add(result)
    return totals


def _shards(plan: Plan) -> Iterator[tuple[Place, ShardSpec]]:
    """Yield the shards in order, each with its plan file."""
    paths = list(map(place_of, plan.ranges))
    for path, range_plan in zip(paths, ordered_map(load_range, paths, READERS, under_way=READERS), strict=True):
        for spec in range_plan.shards:
            yield path, spec


def hashes_of(plan: Plan, totals: Totals) -> Iterator[bytes]:
    """Yield the content hashes of each shard, in order."""

    def load(item: tuple[Shard, int]) -> bytes:
        shard, crc32c = item
        return load_hashes(place_of(plan.ranges[0]), shard.name, crc32c)

    shards = (pair for split in totals.splits.values() for pair in zip(split.shards, split.hashes_crc32c, strict=True))
    return ordered_map(
        load,
        shards,
        PARALLEL_REQUESTS,
        # More would only wait in memory for their turn.
        under_way=PARALLEL_REQUESTS,
        size_of=lambda item: item[0].examples * HASH_BYTES,
    )


def facts_of(plan: Plan, totals: Totals) -> tuple[Quality, list[dict[str, Any]]]:
    """Return the facts about all examples, and the near-duplicates for `duplicates.jsonl`."""
    before = last_version(place_of(plan.dataset).parent, but=plan.version)
    return written_facts(plan.quality, totals, plan.settings, before)


def quality_of(plan: Plan) -> Mapping[str, Any]:
    """Return the facts about the examples of a plan whose shards are written. Raises what `finished_shard` raises."""
    folder = place_of(plan.dataset)
    if is_committed(folder):
        return load(folder).quality
    return facts_of(plan, totals_of(plan, lambda _row: None))[0]
