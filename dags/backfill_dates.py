"""Dates for backfills only. In a file of its own, because the plugin registers it and must not read a DAG."""

from typing import Any

from airflow.timetables.interval import CronDataIntervalTimetable


class BackfillDates(CronDataIntervalTimetable):
    """The intervals of a cron expression. None of them starts by itself.

    Airflow cannot backfill a DAG without a schedule. A start date in the future is no solution, because a run that is
    triggered with a date before it has no tasks, and counts as a success.
    """

    @property
    def summary(self) -> str:
        """The schedule in Airflow's UI."""
        return f"backfills only ({super().summary})"

    def next_dagrun_info(self, *, last_automated_data_interval: Any, restriction: Any) -> Any:
        """Return the next date of a backfill, which catches up; None for the scheduler, which does not."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
