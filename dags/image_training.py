"""The DAG `image_training`: a folder of raw images becomes a published data set, a trained model and a report."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import dag, task_group

from dags import stages
from dags.form import form
from pipeline.config import settings_of_command_line

# The one place of the schedule: a cron expression or preset, off unless it is set. Scheduled and backfilled runs have
# no form, so that what they train on is in a TOML or JSON file of settings, whose values the form shows as defaults.
SCHEDULE = os.environ.get("TENFOLD_SCHEDULE") or None
SETTINGS = Path(os.environ["TENFOLD_SETTINGS"]) if os.environ.get("TENFOLD_SETTINGS") else None


@dag(
    schedule=SCHEDULE,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=4,
    params=form(settings_of_command_line(SETTINGS, [])),
    default_args=stages.RETRIES,
    tags=["images", "training"],
)
def image_training() -> None:
    """
    Raw images → TFRecord shards → a trained model and its report.

    - `extract` checks the form and lists the images with label, size and CRC32C. A field or a source that is wrong is
      named by the error, and not retried.
    - `shard` plans, then writes ranges of shards in parallel; finished ones are skipped. Where an image changed while
      the run was going on, trigger it again. The data gate stops here where validation images are in training too, or
      classes are out of balance.
    - `upload` copies to the published place, verifies every byte, asks the data gate about what was rejected and what
      drifted, and commits `dataset.json` last. Where another file stands at a shard's name, move it away.
    - `train` trains in a process of its own, from the last checkpoint if there is one.
    - `report` draws the run from its local record.

    Clearing any task is safe: what is complete is not done again. To backfill, set a schedule (`TENFOLD_SCHEDULE`) and
    write `{date}` into *Images*: each date makes a data set and a model of its own.
    """
    extracted = stages.extract()

    @task_group
    def shard(settings, snapshot):  # type: ignore[no-untyped-def]
        planned = stages.plan(settings, snapshot)
        return planned, stages.write.expand(plan_file=planned)

    @task_group
    def upload(planned, written, settings):  # type: ignore[no-untyped-def]
        copied = stages.copy.expand(plan_file=planned)
        committed = stages.commit(planned["plan"], settings)
        written >> copied >> committed
        return committed

    planned, written = shard(extracted["settings"], extracted["snapshot"])
    committed = upload(planned, written, extracted["settings"])
    trained = stages.TrainOperator(
        task_id="train",
        settings=extracted["settings"],
        dataset=committed["dataset"],
        pool=stages.GPU_POOL,
        multiple_outputs=True,
        execution_timeout=timedelta(days=7),
    )
    stages.report(trained.output["run"])


image_training()
