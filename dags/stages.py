"""The stages as Airflow tasks, written once. Each hands its work to `pipeline`, imported when the task runs."""

from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, ExceptionRetryPolicy, RetryAction, RetryRule, get_current_context, task

from pipeline.config import Settings, settings_from
from pipeline.storage import place_of

GPU_POOL = "gpu"
RETRIES: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=15),
    "retry_policy": ExceptionRetryPolicy(
        rules=[
            RetryRule("pipeline.errors.BadInput", RetryAction.FAIL, reason="bad input: a retry would fail alike"),
            RetryRule("pipeline.errors.Preempted", RetryAction.RETRY, timedelta(0), reason="goes on at the checkpoint"),
        ]
    ),
}


@task(multiple_outputs=True, execution_timeout=timedelta(hours=12))
def extract() -> dict[str, Any]:
    """Check the form, fix the data date, and take the snapshot of the source."""
    from pipeline.extract import take_snapshot
    from pipeline.train import require_trainable

    context = get_current_context()
    run = context["dag_run"]
    # The form's own values, and what a REST call added: Airflow takes an unknown key without a word.
    settings = settings_from({**context["params"], **(run.conf or {})})
    dated = settings.dated(run.logical_date or run.run_after)
    snapshot = take_snapshot(dated)
    require_trainable(snapshot)
    return {"settings": dated.model_dump(), "snapshot": str(snapshot)}


@task(execution_timeout=timedelta(hours=2))
def plan(settings: dict[str, Any], snapshot: str) -> list[str]:
    """Decide which image goes where; return a plan file for each task. A complete data set leaves nothing to write.

    The file of the whole plan goes under a key of its own: Airflow maps over the returned value only.
    """
    from pipeline.plan_files import load_plan, make_plan

    path = make_plan(settings_from(settings), place_of(snapshot))
    get_current_context()["ti"].xcom_push(key="plan", value=str(path))
    return load_plan(path).ranges


@task(map_index_template="{{ shards }}", execution_timeout=timedelta(hours=12))
def write(plan_file: str) -> None:
    """Write the shards of one range that are not finished yet."""
    from pipeline.progress import progress
    from pipeline.ranges import load_range
    from pipeline.shard import write_range

    _name_after_range(plan_file)
    with progress("shard", load_range(place_of(plan_file)).images) as advance:
        write_range(place_of(plan_file), advance)


@task(map_index_template="{{ shards }}", execution_timeout=timedelta(hours=12))
def copy(plan_file: str) -> None:
    """Bring the shards of one range to the published place and verify every byte."""
    from pipeline.progress import progress
    from pipeline.upload import copy_range, copy_size

    _name_after_range(plan_file)
    shards, total_bytes = copy_size(place_of(plan_file))
    with progress("upload", shards, "shards", total_bytes) as advance:
        copy_range(place_of(plan_file), advance)


# Nothing to write is no failure: the mapped tasks are then skipped, and the data set is found complete.
@task(trigger_rule="none_failed", execution_timeout=timedelta(hours=2))
def commit(plan_file: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Pass the data gate and write `dataset.json`, last: from then on the data set exists."""
    from pipeline.build import summary
    from pipeline.plan_files import load_plan
    from pipeline.upload import commit as commit_dataset

    dataset = commit_dataset(place_of(plan_file), settings_from(settings))
    return summary(load_plan(place_of(plan_file)), dataset)


@task(execution_timeout=timedelta(minutes=30))
def report(run: str) -> dict[str, str]:
    """Draw the report of a training from its local record."""
    from pipeline.report import report_run

    return {"report": str(report_run(place_of(run)))}


class TrainOperator(BaseOperator):
    """Trains in a process of its own, which frees the GPU at its end and is asked for a checkpoint when the task is
    killed. Returns {"run", "metrics", "model", "comet", "verdict", "epochs"}.

    :param settings: the settings, as `extract` returned them
    :param dataset: folder of the published data set
    """

    template_fields = ("settings", "dataset")

    def __init__(self, *, settings: dict[str, Any], dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings = settings
        self.dataset = dataset
        self._process: Any = None

    def execute(self, context: Any) -> dict[str, Any]:
        """Start the process, or find its result complete, and wait."""
        from pipeline.train import TrainingProcess, prepare_run

        settings: Settings = settings_from(self.settings)
        run = prepare_run(settings, place_of(self.dataset), context["run_id"])
        self._process = TrainingProcess(run, output=1)  # the task's own stdout, which Airflow shows as it comes
        result: dict[str, Any] = self._process.wait()
        return result

    def on_kill(self) -> None:
        """Ask for a checkpoint; the wait in `execute` then ends."""
        if self._process is not None:
            self._process.ask_to_stop()


def _name_after_range(plan_file: str) -> None:
    """Let Airflow's list show a mapped task by the shards that it works on."""
    from pipeline.ranges import load_range, range_words

    get_current_context()["shards"] = range_words(load_range(place_of(plan_file)).shards)
