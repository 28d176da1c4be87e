"""Copy the shards of a plan to the place where they are published, and commit the dataset."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pipeline.config.settings import Settings
from pipeline.config.workspace import allowed_name_folder, build_folders, require_allowed_folders
from pipeline.dataset.manifest import Dataset
from pipeline.gate.decide import Ask, Gate
from pipeline.gate.findings import gate_options
from pipeline.plan.options import partition_of
from pipeline.plan.plan import Plan, load_plan
from pipeline.sharding.commit import commit
from pipeline.sharding.publish import COPIERS, copy_range, copy_size
from pipeline.sharding.window import dataset_of
from pipeline.storage import Place, place_of
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress


def publish(plan_path: Place, settings: Settings, ask: Ask | None = None) -> dict[str, Any]:
    """Upload the shards of a plan and commit the dataset, unless it exceeds a threshold of the data gate."""
    plan = load_plan(plan_path)
    copy_planned(plan)
    return summary(plan, commit_planned(plan_path, settings, ask))


def copy_planned(plan: Plan) -> None:
    """Copy the shards of a plan to the published folder, and verify every byte there, several ranges at once."""
    if paths := [place_of(path) for path in plan.ranges]:
        sizes = list(ordered_map(copy_size, paths, COPIERS))
        shards, total_bytes = (sum(numbers) for numbers in zip(*sizes, strict=True))
        with progress("upload", shards, "shards", total_bytes) as advance:
            # The bar shows the progress of all workers together.
            copied = ordered_map(partial(copy_range, advance=lambda *_: None), paths, COPIERS)
            for (count, size), _ in zip(sizes, copied, strict=True):
                advance(count, size)


def commit_planned(plan_path: Place, settings: Settings, ask: Ask | None = None) -> Dataset:
    """Commit the dataset of a plan with its card: see `commit`."""
    from pipeline.report.card import write_card  # Here, because a task that only copies shards needs no card.

    require_allowed_folders(settings)
    gate = Gate(gate_options(settings), ask)
    return commit(plan_path, build_folders(settings), partition_of(settings), gate, write_card)


def dataset_of_partitions(settings: Settings, partitions: Mapping[str, str], ask: Ask | None = None) -> Place:
    """Return the folder of the dataset of some partitions, which may be a window of versions: see `dataset_of`."""
    from pipeline.report.card import write_card  # As in `commit_planned`.

    return dataset_of(allowed_name_folder(settings), partitions, Gate(gate_options(settings), ask), write_card)


def summary(plan: Plan, dataset: Dataset) -> dict[str, Any]:
    """Return the facts about a committed dataset that fit into an XCom."""
    return {
        "dataset": plan.dataset,
        "version": dataset.version,
        "examples": {name: split.examples for name, split in dataset.splits.items()},
        "rejected": dataset.rejected["count"],
        "shards": {name: len(split.shards) for name, split in dataset.splits.items()},
        "labels": {"count": len(dataset.labels), "crc32c": dataset.labels_crc32c},
        "already_complete": plan.complete,
    }
