"""Extract, shard and upload in one go, on all cores of this machine: what the DAG does on many."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from pipeline.config import Settings
from pipeline.dataset import Dataset
from pipeline.extract import take_snapshot
from pipeline.plan_files import Plan, load_plan, make_plan
from pipeline.progress import Advance, progress
from pipeline.shard import images_in_range, write_range
from pipeline.upload import commit, copy_range


def build(settings: Settings) -> dict[str, Any]:
    """Make the data set of `settings`, or find it complete; return what `python -m pipeline build --json` prints."""
    plan_path = write_shards(settings, take_snapshot(settings))
    return publish(settings, plan_path)


def write_shards(settings: Settings, snapshot_path: Path) -> Path:
    """Plan and write all shards of a snapshot; return the file of the plan."""
    # A task costs nothing here, so that a range of one shard gives the finest progress.
    plan_path = make_plan(settings.model_copy(update={"shards_per_task": 1}), snapshot_path)
    _on_all_cores("shard", write_range, load_plan(plan_path).ranges)
    return plan_path


def publish(settings: Settings, plan_path: Path) -> dict[str, Any]:
    """Upload the shards of a plan and commit the data set."""
    plan = load_plan(plan_path)
    _on_all_cores("upload", copy_range, plan.ranges)
    return summary(plan, commit(settings, plan_path))


def summary(plan: Plan, dataset: Dataset) -> dict[str, Any]:
    """A committed data set in a few words, small enough for XCom."""
    return {
        "dataset": plan.dataset,
        "version": dataset.version,
        "examples": {name: split.examples for name, split in dataset.splits.items()},
        "rejected": dataset.rejected["count"],
        "shards": {name: len(split.shards) for name, split in dataset.splits.items()},
        "already_complete": plan.complete,
    }


def _on_all_cores(what: str, work: Callable[[Path, Advance], None], ranges: Sequence[str]) -> None:
    """Run `work` on every plan file. Processes are spawned: a fork of a process with threads may hang."""
    if not ranges:
        return
    paths = [Path(path) for path in ranges]
    images = {path: images_in_range(path) for path in paths}
    workers = max(1, min(os.cpu_count() or 1, len(paths)))
    context = multiprocessing.get_context("spawn")
    with progress(what, sum(images.values())) as advance, ProcessPoolExecutor(workers, context) as pool:
        under_way = {pool.submit(work, path, _silently): path for path in paths}
        try:
            for future in as_completed(under_way):
                future.result()
                advance(images[under_way[future]])
        except BaseException:
            pool.shutdown(cancel_futures=True)  # the first error ends the rest, not a day later
            raise


def _silently(_: int) -> None:
    """The parent shows the progress of all its processes."""
