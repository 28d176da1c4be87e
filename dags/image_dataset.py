"""The DAG `image_dataset`: the raw images of one date become a published dataset and an event of its asset."""

from airflow.sdk import dag

from dags.defaults import dag_defaults
from dags.document import document
from dags.schedule import schedule_from
from dags.wiring import add_tasks

FIRST = (
    *("source_uri", "dataset_name", "num_training_servers", "data_date"),
    *("workspace", "publish_uri", "validation_fraction"),
)


@dag(
    **schedule_from("TENFOLD_DATASET_SCHEDULE"),
    **dag_defaults("image_dataset", FIRST, deadline_hours=24),
    max_active_runs=4,
    tags=["images", "dataset"],
)
def image_dataset() -> None:
    """The raw images of one date → a published dataset.

    - `extract` fills `{date}` (`{year}`, `{month}`, `{day}`, `{hour}`, `{minute}`) in *Source* from the data date of
      the run, and lists the images. If there are many, `extract_range` lists them in several tasks.
    - `shard` and `upload` write, verify and commit it, as in `image_training`. A small dataset (up to 1,000 images and
      128 MiB) is written by `extract`, and the tasks up to `commit` are skipped.
    - The event of the asset `dataset` has the version, the counts and the checksum of the labels. It starts
      `retrain`.

    **Cost**: about 1,000 photographs per second and core. No GPU.

    **Backfill**: *Trigger*, *Backfill*, from 0:00 of the first day to 23:59 of the last one in the time zone of the
    schedule, or `make backfill FROM=2026-01-01 TO=2026-01-30`. Each date becomes a dataset, and all of them together
    one training. In another backfill, unchanged dates are complete, and changed dates get a new version. With
    `Reprocess Behavior: All Runs`, dates that succeeded run again.

    **By schedule**: `TENFOLD_DATASET_SCHEDULE` (a cron expression or `@daily`); a run starts when its interval is over.
    """
    add_tasks(for_training=False)


document(image_dataset())
