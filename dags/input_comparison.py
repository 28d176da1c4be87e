"""The DAG `input_comparison`: the same model trains from raw files and from shards, and a page says what that gains."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, get_current_context, task

from dags.defaults import dag_defaults, long_task_retries
from dags.document import document
from dags.links import InputsLink
from dags.tasks import or_sample_images, settings_of_run
from dags.wiring import on_training_workers
from dags.xcom_keys import COMPARISON_PLACE, SETTINGS
from pipeline.config.settings import settings_from, validated
from pipeline.tuning.options import ComparisonOptions

FIRST = ("source_uri", "dataset_name", "model", "image_size", "epochs", "batch_size", "simulated_step_ms")


@task(execution_timeout=timedelta(minutes=30))
def choose() -> list[dict[str, Any]]:
    """Check the form, and choose the datasets that the contenders need.

    *Cost*: seconds. *A failure* names the setting that does not suit a comparison. It is not retried: trigger the DAG
    again with another value.
    """
    from pipeline.tuning.contenders import dataset_settings
    from pipeline.tuning.measure import require_measurable

    context = get_current_context()
    run, names = context["dag_run"], ComparisonOptions.model_fields
    options = validated(ComparisonOptions, {name: context["params"][name] for name in names})
    settings = or_sample_images(settings_of_run(options=names)).dated(run.logical_date or run.run_after)
    require_measurable(settings, options)
    context["ti"].xcom_push(key=SETTINGS, value=settings.model_dump())
    context["ti"].xcom_push(key="options", value=options.model_dump())
    return [own.model_dump() for own in dataset_settings(settings, options.names).values()]


@task(map_index_template="{{ prepare }}", execution_timeout=timedelta(hours=12))
def build(settings: dict[str, Any]) -> dict[str, str]:
    """Build one dataset that a contender needs. A complete dataset is reused.

    *Cost*: all cores of one worker, about one second per 1,000 photographs on each core.

    *A failure* comes from the source or from the data gate; the message names it. Clear this task after the repair.
    """
    from pipeline.stages.build import build_input

    get_current_context()["prepare"] = settings["prepare"]
    return build_input(settings_from(settings))


@task(execution_timeout=timedelta(days=1))
def measure(settings: dict[str, Any], options: dict[str, Any], built: list[dict[str, str]]) -> str:
    """Train from each contender in turn, on a slot of the pool `gpu`.

    *Cost*: the GPU for contenders x rounds x epochs, and a few seconds for each measurement. If other programs
    disturb a measurement, it is made again, up to twice.

    *A failure* keeps all complete measurements. If the machine is preempted, a retry continues on its own; otherwise,
    clear this task. On hardware of another kind, all is measured again, because such measurements cannot be compared.
    """
    from pipeline.tuning.measure import comparison_of, start_comparison
    from pipeline.tuning.measure import measure as measure_inputs

    context = get_current_context()
    compared = validated(ComparisonOptions, options)
    folder = start_comparison(comparison_of(settings_from(settings), compared, list(built)), context["run_id"])
    context["ti"].xcom_push(key=COMPARISON_PLACE, value=str(folder))  # The tab shows the progress from here on.
    measure_inputs(folder, output=1)  # 1 is the task's own stdout.
    return str(folder)


@task(execution_timeout=timedelta(minutes=30))
def page(folder: str) -> dict[str, Any]:
    """Write the table, the verdict and the page of the comparison.

    *Cost*: seconds. *A failure* does not affect the measurements: clear this task.
    """
    from pipeline.report import inputs_page

    result = inputs_page.write(Path(folder))
    return {name: result[name] for name in ("verdict", "page", "comparison")}


@dag(
    schedule=None,
    **dag_defaults("input_comparison", FIRST, deadline_hours=24, options=validated(ComparisonOptions, {})),
    max_active_runs=1,
    tags=["images", "comparison"],
)
def input_comparison() -> None:
    """The same model trains from raw files and from shards, in turn → a page that says what is worth changing.

    - `choose` checks the form.
    - `build` builds the datasets that the contenders need: images as they are, resized once, and pixels.
    - `measure` trains from each contender in alternating order, and measures each input without a model.
    - `page` writes `inputs.html`: times of epochs and batches, ratios with intervals, utilization, and how many
      accelerators this host can feed.

    **Cost**: under 15 minutes for 600 photographs on 2 cores, with the defaults. Nothing else should run on the worker.

    **Backfill**: there is none, because a comparison belongs to a host and not to a date.
    """
    chosen = choose()
    built = build.expand(settings=chosen)
    measured = measure.override(**on_training_workers(priority=1), **long_task_retries())(
        chosen[SETTINGS], chosen["options"], built
    )
    shown = page(measured)
    shown.operator.operator_extra_links = (InputsLink(),)


document(input_comparison())
