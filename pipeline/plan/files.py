"""Plan files: one for each task that writes shards."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

from pipeline import storage
from pipeline.plan.assign import shard_ranges
from pipeline.plan.example_kind import kind_of
from pipeline.plan.merge import Piece, to_line
from pipeline.plan.options import PlanOptions
from pipeline.plan.order import Order
from pipeline.plan.plan import Plan
from pipeline.plan.range_plan import RangePlan, ShardSpec, to_header
from pipeline.plan.version import codecs_of
from pipeline.snapshot.snapshot import Snapshot


def write_plan_files(
    options: PlanOptions, snapshot: Snapshot, whole_plan: Plan, order: Order, specs: Sequence[ShardSpec]
) -> Iterator[str]:
    """Write the plan file of each range of shards, and yield its path."""
    folder = options.folders.work_of(whole_plan.version) / "plans"
    kind, ranges = kind_of(snapshot), shard_ranges(specs, options.shards_per_task)
    for of_range, pieces in zip(ranges, _pieces(order, ranges), strict=True):
        header = RangePlan(
            version=whole_plan.version,
            kind=snapshot.kind,
            origin=snapshot.origin,
            labels=whole_plan.labels,
            texts=snapshot.texts,
            records=whole_plan.records,
            rules=kind.rules(options.rules),
            shards=list(of_range),
            written=whole_plan.written,
            published=whole_plan.dataset,
            codecs=codecs_of(kind, options),
            table=kind.facts_of_writer(snapshot),
        )
        path = folder / f"{of_range[0].name}--{of_range[-1].name}.jsonl"
        with storage.write_whole(path, synced=True) as file:
            file.write(to_header(header))
            file.writelines(map(to_line, pieces))
        yield str(path)
    # `plan.json` names these files and is written next, so their names must be on the disk first.
    storage.sync_folder(folder)


def _pieces(order: Order, ranges: Sequence[Sequence[ShardSpec]]) -> Iterator[list[Piece]]:
    """Yield the pieces of each range. A range may have shards of several splits."""
    splits = dict.fromkeys(spec.split for of_range in ranges for spec in of_range)
    of_splits = []
    for split in splits:
        examples = (sum(spec.examples for spec in of_range if spec.split == split) for of_range in ranges)
        of_splits.append(order.pieces(split, [0, *accumulate(examples)]))
    for of_range in zip(*of_splits, strict=True):
        yield list(chain.from_iterable(of_range))
