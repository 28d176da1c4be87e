"""The DAG `tabular_dataset`: the table of one date becomes a published dataset and an event of the asset."""

from airflow.sdk import dag

from dags.defaults import dag_defaults
from dags.document import document
from dags.schedule import schedule_from
from dags.wiring import add_tasks

FIRST = (
    *("source_uri", "label_column", "dataset_name", "num_training_servers", "data_date"),
    *("key_column", "on_columns", "workspace"),
)


@dag(
    **schedule_from("TENFOLD_TABULAR_DATASET_SCHEDULE"),
    **dag_defaults("tabular_dataset", FIRST, deadline_hours=24),
    max_active_runs=4,
    tags=["table", "dataset"],
)
def tabular_dataset() -> None:
    """The table of one date (CSV, JSON lines, Parquet, Arrow or TFRecord) → a published dataset.

    - `extract` fills `{date}` (`{year}`, `{month}`, `{day}`, `{hour}`, `{minute}`) in *Source* from the data date of
      the run, and reads the table twice: to find the type of each column, and to encode the rows.
    - `shard` and `upload` write, verify and commit it, as in `tabular_training`. A small dataset (up to 50,000 rows and
      128 MiB) is written by `extract`, and the tasks up to `commit` are skipped.
    - The event of the asset `dataset` has the version and the counts. It starts `retrain`.

    The dates may have different columns. `on_columns` decides what happens if a date lacks a column of the date before
    it. In a training on several dates, such a column is missing in all rows of the date.

    **Cost**: about 2 s for each million values, on one core. No GPU.

    **Backfill**: *Trigger*, *Backfill*, from 0:00 of the first day to 23:59 of the last one in the time zone of the
    schedule, or `make backfill DAG=tabular_dataset` with `SOURCE`, `PARAMS`, `FROM` and `TO`. Each date becomes a
    dataset, and all of them together one training.

    **By schedule**: `TENFOLD_TABULAR_DATASET_SCHEDULE` (a cron expression or `@daily`); a run starts when its interval
    is over.
    """
    add_tasks(for_training=False, example_kind="table")


document(tabular_dataset())
