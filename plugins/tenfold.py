"""What Airflow has to know of Tenfold beside its DAGs."""

from airflow.plugins_manager import AirflowPlugin

from dags.backfill_dates import BackfillDates
from dags.queued import RunQueued


class TenfoldPlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow ships no types that could be followed
    """Registers what DAGs have of ours: Airflow reads a DAG back from its database only with classes that it knows."""

    name = "tenfold"
    timetables = (BackfillDates,)
    deadline_references = (RunQueued,)
