"""Extract, shard and upload without Airflow. The engine of the settings writes the shards."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.allowed import allowlists
from pipeline.config import Settings
from pipeline.dataset.manifest import Dataset
from pipeline.engines import engine_named
from pipeline.engines.task import Task
from pipeline.errors import SettingsError
from pipeline.gate.checks import gate_options
from pipeline.gate.decide import Ask, ask_terminal
from pipeline.plan.kinds import kind_named
from pipeline.plan.options import plan_options
from pipeline.plan.plan import Plan, load_plan
from pipeline.plan.range_plan import load_range
from pipeline.preflight import preflight_without_source
from pipeline.report import write_card
from pipeline.runs.launch import require_trainable
from pipeline.sharding.approval import questions
from pipeline.sharding.commit import commit
from pipeline.sharding.planning import make_plan
from pipeline.sharding.publish import COPIERS, copy_range, copy_size
from pipeline.sharding.window import dataset_of
from pipeline.sharding.write import write_allowed_plan_file, write_plan_file
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.stages.extract import extract
from pipeline.storage import Place, place_of
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import Advance, progress
from pipeline.workspace import name_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW_IMAGES = 64
"""Up to this number, images are written in this process, because the start of others would take longer."""


def build(settings: Settings) -> dict[str, Any]:
    """Build the dataset of the settings, unless it is complete. Return the result that `build --json` prints."""
    engine_named(settings.engine)  # A missing package is reported before hours of listing.
    ask = ask_terminal()
    return publish(write_shards(settings, extract(settings), ask), settings, ask)


def build_dataframe(frame: "DataFrame", settings: Settings) -> dict[str, Any]:
    """Build the dataset of the rows of a Spark DataFrame, as `build` does for a table. Its session writes the shards.

    `label_column` must be set, and `dataset_name`, because a DataFrame has none. The workspace must be a place that all
    executors reach.

    Raises:
        SettingsError: If one of these settings is missing or cannot be used, or the table does not fit them.
    """
    from pipeline.tables.dataframe import list_dataframe

    if not settings.dataset_name:
        raise SettingsError("dataset_name is empty: name the dataset of the DataFrame")
    settings = settings.model_copy(update={"example_kind": "table", "engine": "spark"})
    preflight_without_source(settings)
    snapshot, ask = list_dataframe(frame, settings), ask_terminal()
    return publish(write_shards(settings, snapshot, ask), settings, ask)


def build_input(settings: Settings) -> dict[str, str]:
    """Build a dataset for a comparison of inputs, unless it is complete.

    Returns:
        {"prepare", "dataset", "source_root"}: the setting, the place of the dataset, and the folder that the keys of
        the raw images are relative to.

    Raises:
        SettingsError: If the model, or a setting of the training, does not fit the images.
    """
    settings = settings.model_copy(update={"engine": "local"})  # A comparison measures this machine.
    ask, snapshot = ask_terminal(), extract(settings)
    require_trainable(settings, snapshot)
    dataset = publish(write_shards(settings, snapshot, ask), settings, ask)["dataset"]
    return {"prepare": settings.prepare, "dataset": dataset, "source_root": load_snapshot(snapshot).origin.root}


def write_shards(settings: Settings, snapshot_path: Place, ask: Ask | None = None) -> Place:
    """Plan and write all shards of a snapshot; return the file of the plan."""
    # Tasks cost nothing here, and ranges of one shard give the finest progress.
    plan_path = plan_shards(settings.model_copy(update={"shards_per_task": 1}), snapshot_path, ask)
    write_planned(plan_path, settings)
    return plan_path


def plan_shards(settings: Settings, snapshot_path: Place, ask: Ask | None = None) -> Place:
    """Plan the shards of a snapshot: see `make_plan`. Return the file of the plan."""
    return make_plan(plan_options(settings), gate_options(settings), snapshot_path, ask)


def write_planned(plan_path: Place, settings: Settings) -> None:
    """Write the missing shards of a plan, with the engine of the settings."""
    ranges = load_plan(plan_path).ranges
    if not ranges:  # The dataset is complete.
        return
    images = sum(load_range(place_of(path)).examples for path in ranges)
    is_here = settings.engine == "local"
    engine = _in_this_process if is_here and images <= FEW_IMAGES else engine_named(settings.engine)
    # The person who starts this process is its administrator. A cluster may have another administrator.
    function = write_plan_file if is_here else write_allowed_plan_file
    with progress("shard", images, kind_named(settings.example_kind).nouns) as advance:
        engine(Task(function, allowlists(settings)), ranges, advance)


def publish(plan_path: Place, settings: Settings, ask: Ask | None = None) -> dict[str, Any]:
    """Upload the shards of a plan and commit the dataset, unless it exceeds a threshold of the data gate."""
    plan = load_plan(plan_path)
    copy_planned(plan)
    return summary(plan, commit_planned(plan_path, settings, ask))


def commit_planned(plan_path: Place, settings: Settings, ask: Ask | None = None) -> Dataset:
    """Commit the dataset of a plan with its card: see `commit`."""
    return commit(plan_path, plan_options(settings), gate_options(settings), write_card, ask)


def questions_about(plan_path: Place, settings: Settings) -> list[str]:
    """Return what to ask a person before the dataset of a plan is published: see `questions`."""
    return questions(plan_path, gate_options(settings))


def newest_dataset(settings: Settings, partitions: Mapping[str, str], ask: Ask | None = None) -> Place:
    """Return the folder of the dataset of some partitions, which may be a window of versions: see `dataset_of`."""
    return dataset_of(name_folder(settings), partitions, gate_options(settings), write_card, ask)


def copy_planned(plan: Plan) -> None:
    """Copy the shards of a plan to the published folder, and verify every byte there, several ranges at once."""
    if paths := [place_of(path) for path in plan.ranges]:
        sizes = list(ordered_map(copy_size, paths, COPIERS))
        shards, total_bytes = (sum(numbers) for numbers in zip(*sizes, strict=True))
        with progress("upload", shards, "shards", total_bytes) as advance:
            copied = ordered_map(partial(copy_range, advance=_no_progress), paths, COPIERS)
            for (count, size), _ in zip(sizes, copied, strict=True):
                advance(count, size)


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


def _in_this_process(task: Task, places: Sequence[str], advance: Advance) -> None:
    """Call the task for each place: see `Engine`."""
    for place in places:
        advance(task.function(place))


def _no_progress(_count: int, _size: int = 0) -> None:
    """Show nothing, because the caller shows the progress of all its workers."""
