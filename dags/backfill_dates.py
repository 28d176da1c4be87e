"""Dates for backfills alone. In a file of its own, since the plugin that registers it must not read a DAG."""

from typing import Any

from airflow.timetables.interval import CronDataIntervalTimetable


class BackfillDates(CronDataIntervalTimetable):
    """The intervals of a cron expression, of which none starts by itself.

    Airflow backfills no DAG without a schedule. A start date in the future would do for backfills; but a run that is
    triggered with a date before it has no tasks, and counts as a success.
    """

    @property
    def summary(self) -> str:
        """What Airflow's UI shows as the schedule."""
        return f"backfills only ({super().summary})"

    def next_dagrun_info(self, *, last_automated_data_interval: Any, restriction: Any) -> Any:
        """The next date of a backfill, which catches up; None for the scheduler, as the DAG does not."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
