"""Plan the shards of a snapshot, and write them with the engine of the settings."""

from collections.abc import Sequence

from pipeline.config.allowed import allowlists
from pipeline.config.settings import Settings
from pipeline.config.workspace import require_allowed_folders
from pipeline.engines import Engine, engine_named
from pipeline.engines.task import Task
from pipeline.gate.decide import Ask, Gate
from pipeline.gate.findings import gate_options
from pipeline.plan.example_kind import kind_named
from pipeline.plan.options import plan_options
from pipeline.plan.plan import load_plan
from pipeline.plan.range_plan import load_range
from pipeline.sharding.planning import make_plan
from pipeline.sharding.write import write_plan_file
from pipeline.storage import Place, place_of
from pipeline.system.progress import Advance, progress

FEW_EXAMPLES = 64
"""Up to this number, examples are written in this process, because the start of others would take longer."""


def write_shards(
    settings: Settings, snapshot_path: Place, ask: Ask | None = None, engine: Engine | None = None
) -> Place:
    """Plan and write all shards of a snapshot; return the file of the plan. See `write_planned`."""
    # Tasks cost nothing here, and ranges of one shard give the finest progress.
    plan_path = plan_shards(settings.model_copy(update={"shards_per_task": 1}), snapshot_path, ask)
    write_planned(plan_path, settings, engine)
    return plan_path


def plan_shards(settings: Settings, snapshot_path: Place, ask: Ask | None = None) -> Place:
    """Plan the shards of a snapshot: see `make_plan`. Return the file of the plan."""
    require_allowed_folders(settings)
    return make_plan(plan_options(settings), Gate(gate_options(settings), ask), snapshot_path)


def write_planned(plan_path: Place, settings: Settings, engine: Engine | None = None) -> None:
    """Write the missing shards of a plan, with an opened engine, or else with that of the settings."""
    ranges = load_plan(plan_path).ranges
    if not ranges:  # The dataset is complete.
        return
    examples = sum(load_range(place_of(path)).examples for path in ranges)
    is_here = settings.engine == "local"
    engine = in_this_process if is_here and examples <= FEW_EXAMPLES else engine or engine_named(settings.engine)
    with progress("shard", examples, kind_named(settings.example_kind).nouns) as advance:
        engine(Task(write_plan_file, allowlists()), ranges, advance)


def in_this_process(task: Task, places: Sequence[str], advance: Advance) -> None:
    """Call the task for each place: see `Engine`."""
    for place in places:
        advance(task.function(place))
