"""Build a small dataset up to its commit in one process. In Airflow, the start of further tasks would take longer."""

from pipeline.config.settings import Settings
from pipeline.gate.decide import ask_later
from pipeline.plan.example_kind import kind_of
from pipeline.plan.plan import load_plan
from pipeline.sharding.approval import questions_about
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.stages.shard import in_this_process, plan_shards, write_planned
from pipeline.stages.upload import copy_planned
from pipeline.storage import Place

MAX_BYTES = 128 << 20
"""The examples of a small dataset have at most this many bytes. One core decodes them in one to two seconds."""
MAX_SHARDS = 100
"""A small dataset has at most this many training shards, and as many servers, each of which needs shards."""
_IN_ONE_RANGE = 10_000
"""A range of the plan has up to this many shards, because one process writes all of them."""


def build_small(settings: Settings, snapshot_path: Place) -> Place | None:
    """Plan, write and copy the shards of a small snapshot, and return the file of the plan.

    Returns None if other tasks must do it: the snapshot is not small, it becomes many shards, another engine writes it,
    `shards_per_task` asks for tasks, or the data gate asks a person. In the last case, the shards are written, and
    stay.

    Raises what `plan_shards`, `write_planned` and `copy_planned` do.
    """
    has_few_shards = max(settings.train_shards, settings.num_training_servers) <= MAX_SHARDS
    if settings.engine != "local" or settings.shards_per_task or not has_few_shards or not _is_small(snapshot_path):
        return None
    in_one_range = settings.model_copy(update={"shards_per_task": _IN_ONE_RANGE})
    plan_path = plan_shards(in_one_range, snapshot_path, ask_later)
    write_planned(plan_path, settings, in_this_process)
    if questions_about(plan_path, settings):
        return None
    copy_planned(load_plan(plan_path))
    return plan_path


def _is_small(snapshot_path: Place) -> bool:
    snapshot = load_snapshot(snapshot_path)
    return snapshot.bytes <= MAX_BYTES and snapshot.listed <= kind_of(snapshot).few_examples
