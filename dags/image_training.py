"""The DAG `image_training`: raw images become a published dataset, a trained model, a champion and a report."""

from airflow.sdk import dag

from dags.defaults import dag_defaults
from dags.document import document
from dags.schedule import schedule_from
from dags.wiring import add_tasks

FIRST = (
    *("source_uri", "dataset_name", "num_training_servers"),
    *("model", "image_size", "epochs", "batch_size", "learning_rate"),
)


@dag(
    **schedule_from("TENFOLD_TRAINING_SCHEDULE"),
    **dag_defaults("image_training", FIRST, deadline_hours=7 * 24),
    max_active_runs=4,
    tags=["images", "training"],
)
def image_training() -> None:
    """Raw images → TFRecord shards → a trained model and its report.

    - `extract` checks the form and lists the images. If there are many, `extract_range` lists them in several tasks.
      If there are few (up to 1,000 images and 128 MiB), `extract` also writes them, and the tasks up to `commit` are
      skipped.
    - `shard` plans, then writes ranges of shards in parallel. Complete shards are skipped.
    - `upload` asks a person if the data gate is set to `ask`, copies the shards to the published folder, verifies every
      byte, and commits `dataset.json` last.
    - `train` trains in a process of its own, on a slot of the pool `gpu`, from the last checkpoint if there is one.
    - `promote` makes the model the champion of its dataset name, unless it is worse on the same images. A first model
      must surely beat the baseline. If a person must decide, the champion stays.
    - `report` draws the run from its local record.

    **Cost**: about 1,000 photographs per second and core until the shards are written, then the GPU. The *Docs* of each
    task list its cost and the reasons of a failure.

    **Again**: clearing any task is safe, and complete work is not repeated. With the same images and settings, the
    dataset is complete, and the training starts at once.

    **By date**: with `{date}` (`{year}`, `{month}`, `{day}`, `{hour}`, `{minute}`) in *Images*, each run takes the
    images of its data date. Backfill: *Trigger*, *Backfill*, from 0:00 of the first day to 23:59 of the last one in the
    time zone of the schedule. Each date becomes a dataset **and a model**. For one model on all of them, backfill
    `image_dataset`. A schedule: `TENFOLD_TRAINING_SCHEDULE`.
    """
    add_tasks(for_training=True)


document(image_training())
