"""Extract, shard and upload in one go, on all cores of this machine: what the DAG does on many."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from pipeline.config import Settings
from pipeline.dataset.manifest import Dataset
from pipeline.report import write_card
from pipeline.sharding.gate import Ask, ask_terminal
from pipeline.sharding.plan_files import Plan, load_plan, make_plan
from pipeline.sharding.publish import COPIERS, commit, copy_range, copy_size
from pipeline.sharding.ranges import load_range
from pipeline.sharding.write import write_range
from pipeline.snapshot.extract import take_snapshot
from pipeline.storage import Place, place_of
from pipeline.system.cores import usable_cores
from pipeline.system.parallel import ordered_map
from pipeline.system.process import start_worker
from pipeline.system.progress import progress

FEW_IMAGES = 64
"""So many are written here, in the time that processes would take to start."""


def build(settings: Settings) -> dict[str, Any]:
    """Make the data set of `settings`, or find it complete; return what `python -m pipeline build --json` prints."""
    ask = ask_terminal()
    return publish(write_shards(settings, take_snapshot(settings), ask), settings, ask)


def write_shards(settings: Settings, snapshot_path: Place, ask: Ask | None = None) -> Place:
    """Plan and write all shards of a snapshot; return the file of the plan."""
    # A task costs nothing here, so that a range of one shard gives the finest progress.
    plan_path = make_plan(settings.model_copy(update={"shards_per_task": 1}), snapshot_path, ask)
    _write_all(load_plan(plan_path).ranges)
    return plan_path


def publish(plan_path: Place, settings: Settings, ask: Ask | None = None) -> dict[str, Any]:
    """Upload the shards of a plan and commit the data set, unless it is over a threshold of `settings`."""
    plan = load_plan(plan_path)
    _copy_all(plan.ranges)
    return summary(plan, commit(plan_path, settings, write_card, ask))


def summary(plan: Plan, dataset: Dataset) -> dict[str, Any]:
    """A committed data set in a few words, small enough for XCom."""
    return {
        "dataset": plan.dataset,
        "version": dataset.version,
        "examples": {name: split.examples for name, split in dataset.splits.items()},
        "rejected": dataset.rejected["count"],
        "shards": {name: len(split.shards) for name, split in dataset.splits.items()},
        "labels": {"count": len(dataset.labels), "crc32c": dataset.labels_crc32c},
        "already_complete": plan.complete,
    }


def _write_all(ranges: Sequence[str]) -> None:
    """Write every range."""
    if not ranges:
        return
    images = {place_of(path): load_range(place_of(path)).images for path in ranges}
    written = _written_here if sum(images.values()) <= FEW_IMAGES else _written_on_all_cores
    with progress("shard", sum(images.values())) as advance:
        for path in written(list(images)):
            advance(images[path])


def _written_here(ranges: Sequence[Place]) -> Iterator[Place]:
    """Each range as it is written."""
    for path in ranges:
        write_range(path, _silently)
        yield path


def _written_on_all_cores(ranges: Sequence[Place]) -> Iterator[Place]:
    """The same, in whatever order."""
    with _pool(min(usable_cores(), len(ranges))) as pool:
        under_way = {pool.submit(write_range, path, _silently): path for path in ranges}
        try:
            for future in as_completed(under_way):
                future.result()
                yield under_way[future]
        except BaseException:
            pool.shutdown(cancel_futures=True)  # the first error ends the rest, not a day later
            raise


def _pool(workers: int) -> ProcessPoolExecutor:
    """Processes that are spawned, since a fork of a process with threads may hang."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, start_worker, (os.getpid(),))


def _copy_all(ranges: Sequence[str]) -> None:
    """Copy and verify every range, some at once: here a range is a shard."""
    if not ranges:
        return
    paths = [place_of(path) for path in ranges]
    sizes = list(ordered_map(copy_size, paths, COPIERS))
    shards, total_bytes = (sum(numbers) for numbers in zip(*sizes, strict=True))
    with progress("upload", shards, "shards", total_bytes) as advance:
        for (count, size), _ in zip(sizes, ordered_map(_copy, paths, COPIERS), strict=True):
            advance(count, size)


def _copy(plan_path: Place) -> None:
    copy_range(plan_path, _silently)


def _silently(_count: int, _size: int = 0) -> None:
    """The caller shows the progress of all its workers."""
