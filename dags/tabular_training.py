"""The DAG `tabular_training`: a table becomes a published dataset, a trained model, a champion and a report."""

from airflow.sdk import dag

from dags.defaults import dag_defaults
from dags.document import document
from dags.schedule import schedule_from
from dags.wiring import add_tasks

FIRST = (
    *("source_uri", "label_column", "dataset_name", "num_training_servers"),
    *("model", "epochs", "batch_size", "learning_rate"),
)


@dag(
    **schedule_from("TENFOLD_TABULAR_SCHEDULE"),
    **dag_defaults("tabular_training", FIRST, deadline_hours=7 * 24),
    max_active_runs=4,
    tags=["table", "training"],
)
def tabular_training() -> None:
    """A table (CSV, JSON lines, Parquet, Arrow or TFRecord) → TFRecord shards → a trained model and its report.

    - `extract` reads the table twice: to find the type of each column, and to encode the rows. Up to 50,000 rows and
      128 MiB, it also writes the shards, and the tasks up to `commit` are skipped.
    - `shard` plans, then writes ranges of shards in parallel. Complete shards are skipped.
    - `upload`, `train`, `promote` and `report` are those of `image_training`.

    *Source* is a file or a folder of files. *Label column* is what the model learns: a class or a number. The model
    prepares the other columns by itself: the exported model takes the values of the table.

    **Cost**: about 2 s for each million values until the shards are written, on one core; then the GPU.

    **Backfill**: with `{date}` in *Source*, each date becomes a dataset **and a model**.

    **Again**: clearing any task is safe, and complete work is not repeated.
    """
    add_tasks(for_training=True, example_kind="table")


document(tabular_training())
