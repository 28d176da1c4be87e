"""The task functions that the DAGs share. Each imports what it needs of `pipeline` when it runs."""

import logging
import os
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue, get_current_context, task

from dags.defaults import long_task_retries
from dags.gpu_pool import GPU_POOL, pool_command
from dags.notify import notify
from dags.schedule import require_zone
from dags.small import plan_of_run, skip_to_commit
from dags.xcom_keys import ANNOUNCED, DATASET_PLACE, PLAN, SETTINGS, WORSE
from pipeline.config.settings import Settings, settings_from
from pipeline.errors import SettingsError
from pipeline.storage import place_of

if TYPE_CHECKING:
    from pipeline.dataset.manifest import Dataset

POLL_S = 10
"""Seconds between two looks at a training that is about to end."""
_log = logging.getLogger(__name__)


@task(execution_timeout=timedelta(hours=12))
def extract(for_training: bool, example_kind: str = "images") -> list[str]:
    """Check the form, fix the data date, and list the images with label, size and checksum, or the rows of a table.

    A large source is only divided into ranges, which the tasks `extract_range` list. A small dataset (up to 1,000
    images or 50,000 rows, and 128 MiB) is also written and copied here, and the tasks up to `commit` are skipped,
    unless a person must be asked or `shards_per_task` is set.

    *Cost*: new images on a disk, and new zip, tar, Parquet and TFRecord files are read once. A bucket is only listed. A
    list of images is read once. A table is read once for its schema. A small dataset takes seconds more.

    *A failure*: a setting or the source is wrong, or a small dataset exceeds a threshold of the data gate. The message
    names it. The task is not retried: trigger the DAG again with another value.
    """
    from pipeline.stages.extract import divide, list_all
    from pipeline.stages.small import build_small

    context = get_current_context()
    run = context["dag_run"]
    settings = or_sample_images(settings_of_run(example_kind))
    require_zone(settings, context["dag"].timetable, run)
    # A manual run without a date, and a run that an asset triggered, have no logical date.
    settings = settings.dated(run.logical_date or run.run_after)
    if for_training:
        from pipeline.runs.continuation import announce_continuation
        from pipeline.runs.requirements import require_before_listing  # Imports SciPy, which takes 0.2 s.

        _require_continued_once(settings, run.run_type)
        require_before_listing(settings)
        if build := announce_continuation(settings, _person(run)):
            context["ti"].xcom_push(key=ANNOUNCED, value=[settings.continues, build.at])
        _warn_of_slots(settings)
    ranges = divide(settings)
    # Airflow maps over the returned value, so the settings and the snapshot are separate XComs.
    context["ti"].xcom_push(key=SETTINGS, value=settings.model_dump())
    snapshot = None if ranges else list_all(settings)
    if for_training and snapshot:
        from pipeline.runs.requirements import require_trainable

        require_trainable(settings, snapshot)
    # Airflow would refuse to start the next task without this XCom.
    context["ti"].xcom_push(key="snapshot", value=str(snapshot or ""))
    if snapshot and (plan_file := build_small(settings, snapshot)):
        skip_to_commit(str(plan_file))
    return ranges


@task(map_index_template="{{ keys }}", execution_timeout=timedelta(hours=12))
def extract_range(range_file: str) -> None:
    """List one range of a large source, and sort its rows for the plan. For a small source, this task is skipped.

    *Cost*: new images on a disk are read once. A bucket is only listed. 0.3 GB of memory, 0.5 GB for a table.

    *A failure*: a file cannot be read, or changed meanwhile. The message names it. Clear this task: the other ranges
    are kept.
    """
    from pipeline.stages.extract import describe_range, list_range_file
    from pipeline.system.progress import progress

    get_current_context()["keys"] = describe_range(range_file)
    list_range_file(range_file, progress)


# If the source is small, the mapped task is skipped, and `extract` has made the snapshot.
@task(trigger_rule="none_failed", execution_timeout=timedelta(hours=2))
def plan(settings: dict[str, Any], snapshot: str, ranges: list[str], for_training: bool) -> list[str]:
    """Decide the split and shard of each example, and write a plan file for each task that writes shards.

    For a small dataset, this task is skipped, and `extract` does its work and that of `write` and `copy`.

    *Cost*: seconds for a million examples, and at most 1 GB of memory. For a complete dataset, no task follows.

    *A failure* comes from the data gate (validation examples that are also in training, classes out of balance): repair
    the source, or change the threshold that the message names.
    """
    from pipeline.gate.decide import ask_later
    from pipeline.plan.plan import load_plan
    from pipeline.stages.extract import join
    from pipeline.stages.shard import plan_shards

    if ranges:
        snapshot = str(join(settings_from(settings), ranges))
        if for_training:
            from pipeline.runs.requirements import require_trainable  # As in `extract`.

            require_trainable(settings_from(settings), place_of(snapshot))
    is_mapped = settings["engine"] == "local"
    # Another engine balances its own tasks, so these may be small.
    of_plan = settings if is_mapped else {**settings, "shards_per_task": 1}
    path = plan_shards(settings_from(of_plan), place_of(snapshot), ask_later)
    # In an XCom of its own, because Airflow maps over the returned value.
    get_current_context()["ti"].xcom_push(key=PLAN, value=str(path))
    # Ranges and not shards: Airflow maps at most 1,024 tasks, and ImageNet has 1,152 shards.
    ranges = load_plan(path).ranges
    # Another engine gets the whole plan, from one task.
    return ranges if is_mapped or not ranges else [str(path)]


@task(map_index_template="{{ shards }}", execution_timeout=timedelta(hours=12))
def write(plan_file: str, settings: dict[str, Any]) -> None:
    """Write the shards of one range. Complete shards are skipped. With another `engine`, one task writes all ranges.

    *Cost*: one core and 0.1 GB of memory. About 1,000 photographs per second (`check: strict`).

    *A failure*: the source changed after it was listed (trigger the DAG again), or the disk is full (free
    some space and clear this task; complete shards stay).
    """
    from pipeline.plan.example_kind import kind_of
    from pipeline.plan.range_plan import load_range
    from pipeline.sharding.write import write_range
    from pipeline.system.progress import progress

    if (engine := settings["engine"]) != "local":
        from dags.engines import write_with_engine

        get_current_context()["shards"] = f"all, with {engine}"
        write_with_engine(plan_file, settings)
        return
    _name_after_range(plan_file)
    range_plan = load_range(place_of(plan_file))
    with progress("shard", range_plan.examples, kind_of(range_plan).nouns) as advance:
        write_range(place_of(plan_file), advance)


@task(map_index_template="{{ shards }}", execution_timeout=timedelta(hours=12))
def copy(plan_file: str, settings: dict[str, Any]) -> None:
    """Copy the shards of one range to the published folder, and verify every byte there.

    *Cost*: the shards are read once, and copied if workspace and published folder are in different stores.

    *A failure*: another file has the name of a shard (it is left untouched: move it away and clear this task), or a
    bucket does not answer (clear this task later; it continues).
    """
    from pipeline.sharding.publish import copy_range, copy_size
    from pipeline.system.progress import progress

    if settings["engine"] != "local":
        from pipeline.plan.plan import load_plan
        from pipeline.stages.upload import copy_planned

        get_current_context()["shards"] = "all"
        copy_planned(load_plan(place_of(plan_file)))
        return
    _name_after_range(plan_file)
    shards, total_bytes = copy_size(place_of(plan_file))
    with progress("upload", shards, "shards", total_bytes) as advance:
        copy_range(place_of(plan_file), advance)


# If there is nothing to write, the mapped tasks are skipped, and the dataset is complete. That is no failure.
@task(
    trigger_rule="none_failed",
    execution_timeout=timedelta(hours=2),
    multiple_outputs=False,  # Otherwise, Airflow also stores each value of the result, with a request for each.
)
def commit(settings: dict[str, Any]) -> dict[str, Any]:
    """Write `dataset.json`. From then on the dataset exists, and the event of the asset has its version.

    *Cost*: seconds.

    *A failure* comes from the data gate (too many rejected examples, drift; the message names the threshold), from a
    count that does not add up, or from labels that a person released in the meantime. For the last two, clear
    `shard.plan` and all tasks after it.
    """
    from pipeline.plan.plan import load_plan
    from pipeline.sharding.approval import answers
    from pipeline.stages.upload import commit_planned, summary

    context = get_current_context()
    plan_file = place_of(plan_of_run(context["ti"]))
    dataset = commit_planned(plan_file, settings_from(settings), answers(plan_file))
    published = summary(load_plan(plan_file), dataset)
    context["ti"].xcom_push(key=DATASET_PLACE, value=published["dataset"])
    for asset in context["task"].outlets:
        context["outlet_events"][asset].extra = {
            **{name: settings[name] for name in ("dataset_name", "data_date")},
            **published,
        }
    return published


@task.sensor(
    mode="reschedule",
    poke_interval=POLL_S,
    timeout=timedelta(days=7).total_seconds(),
    execution_timeout=timedelta(minutes=30),
    **long_task_retries(),
)
def servers(settings: dict[str, Any], dataset: str) -> PokeReturnValue:
    """Check that the training can start, and start a task for each of its servers.

    A training with `continues` waits until the other training has ended its epoch. If that one has failed, clear its
    task `train`: it ends at its next epoch.

    *Cost*: seconds, and no GPU. *A failure*: the dataset or the weights are missing, or the dataset has too few shards
    for the servers. Or the training in `continues` is over, or has other examples or settings. The message says which.
    The log names the pool that the training needs.
    """
    from pipeline.runs.requirements import require_startable

    checked = settings_from(settings)
    content = require_startable(checked, place_of(dataset))
    if checked.continues and not _can_continue(checked, content):
        return PokeReturnValue(is_done=False)
    # A task cannot look up pools, and Airflow 3.3 reports a missing pool only in the scheduler's log.
    _log.info(
        "the training needs %d slots of the pool %r. If `train` stays in the state scheduled, the pool is missing or "
        "full: check it under Admin, Pools, or create it with `%s`",
        checked.num_training_servers,
        GPU_POOL,
        pool_command(checked.num_training_servers),
    )
    _warn_of_slots(checked)
    return PokeReturnValue(is_done=True, xcom_value=list(range(checked.num_training_servers)))


def _person(run: Any) -> str:
    """Return the user who triggered a run, or the id of the run if no user did."""
    # A run that a task has started names the user of the run of that task.
    is_by_task = run.run_type == "operator_triggered"
    return str((not is_by_task and getattr(run, "triggering_user_name", None)) or run.run_id)


def _can_continue(settings: Settings, dataset: "Dataset") -> bool:
    """Request that the training `settings.continues` ends, and return whether it has, or is not needed any more."""
    from pipeline.runs.continuation import end_of, needs_end, request_continuation

    run = get_current_context()["dag_run"]
    if not needs_end(settings, dataset, run.run_id):
        return True
    request = request_continuation(settings, dataset, _person(run))
    _log.info("%s: %s", settings.continues, request)
    return end_of(place_of(settings.continues)) is not None


@task(execution_timeout=timedelta(minutes=30))
def report(runs: list[str]) -> dict[str, str]:
    """Draw the report of a training from its local record.

    If the training waits more for data or is slower than those before it, beyond noise, the log says so, and the
    administrator's notifiers are called.

    *Cost*: seconds. *A failure* does not affect the model: clear this task.
    """
    from pipeline.config.allowed import require_folder
    from pipeline.report import report_run
    from pipeline.watch.predecessors import warning_of

    run = place_of(runs[0])  # All servers of a training return the same run.
    require_folder(run)
    drawn = report_run(run)
    # Last, because a retry of a failed drawing would notify again.
    if worse := warning_of(run):
        _log.warning("worse than the trainings before it: %s", worse)
        context = get_current_context()
        context["ti"].xcom_push(key=WORSE, value=worse)
        notify(context)
    return {"report": str(drawn)}


@task(execution_timeout=timedelta(hours=6))
def promote(settings: dict[str, Any], runs: list[str]) -> dict[str, Any]:
    """Make the model the champion of its dataset name, unless it is worse than the champion on the same examples.

    The log, the returned value and a badge on the tab *Training* say whether it was promoted, and why. If the model is
    worse, the champion stays. If a person must decide, it stays too, and the administrator's notifiers are called. In
    each case, this task succeeds, and the trained model stays available.

    *Cost*: seconds. If a champion was evaluated on another version of the dataset, it is evaluated again, so this task
    uses a slot of the pool `gpu`.

    *A failure*: a champion cannot be evaluated, or the file of the champion is damaged (the message names it). Clear
    this task. It gives the same answer again and promotes nothing twice.
    """
    from pipeline.runs.promotion import promote_if_better

    # 1 is the task's own stdout.
    promotion = promote_if_better(place_of(runs[0]), settings_from(settings), output=1)
    if promotion["decision"] == "asked":
        notify(get_current_context())
    return promotion


def settings_of_run(example_kind: str = "images", options: Collection[str] = ()) -> Settings:
    """Return the settings of this run's form. The DAG decides the kind of examples.

    Args:
        example_kind: Kind of examples.
        options: Names in the form that are options of the DAG, and no settings.

    Raises:
        SettingsError: A name is no setting, or no setting of this DAG.
    """
    context = get_current_context()
    # Airflow accepts an unknown key of a REST call without an error, and leaves it out of `params`.
    conf = context["dag_run"].conf or {}
    values = {**context["params"], **conf, "example_kind": example_kind}
    settings = settings_from({name: value for name, value in values.items() if name not in options})
    form = context["dag"].params
    if foreign := sorted(name for name in conf if name not in form):
        raise SettingsError(
            f"{foreign[0]} is not a setting of {context['dag'].dag_id}: its settings are {', '.join(form)}"
        )
    return settings


def _require_continued_once(settings: Settings, run_type: str) -> None:
    """Raise SettingsError if a run that repeats would continue a training, which ends with the first of them."""
    if settings.continues and run_type in ("scheduled", "backfill", "asset_triggered"):
        raise SettingsError(
            f"continues must be empty in a run of the type {run_type}, got {settings.continues}: only one run can "
            "continue a training, so trigger it by hand"
        )


def _warn_of_slots(settings: Settings) -> None:
    """Warn if the pool was created with fewer slots than the training has servers, or if their number is unknown.

    It is a warning and not an error, because a task cannot look up the current slots of a pool.
    """
    servers, slots = settings.num_training_servers, os.environ.get("TENFOLD_TRAININGS_AT_ONCE", "")
    if servers == 1 or (slots.isdecimal() and servers <= int(slots)):
        return
    created = f", but the pool was created with TENFOLD_TRAININGS_AT_ONCE={slots}" if slots else ""
    _log.warning(
        "num_training_servers=%d needs %d slots of the pool %r at the same time%s: check the slots under Admin, Pools, "
        "or train on fewer servers; with fewer slots, the servers wait for each other for %g minutes "
        "(server_wait_minutes) and fail",
        *(servers, servers, GPU_POOL, created, settings.server_wait_minutes),
    )


def or_sample_images(settings: Settings) -> Settings:
    """Return the settings, with the sample images of `make up` as the source if the form names no source.

    The sample images get a dataset name of their own. Otherwise, their classes would stay in a user's label map.
    """
    samples = os.environ.get("TENFOLD_SAMPLES")
    if settings.source_uri or not samples:
        return settings
    _log.warning("source_uri is empty: using the sample images in %s", samples)
    return settings.model_copy(update={"source_uri": samples, "dataset_name": "samples"})


def _name_after_range(plan_file: str) -> None:
    """Name a mapped task after its shards in Airflow's list."""
    from pipeline.plan.range_plan import describe_range, load_range

    get_current_context()["shards"] = describe_range(load_range(place_of(plan_file)).shards)
