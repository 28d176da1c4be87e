"""The dates of the DAGs. In a file of its own, because the plugin registers them and must not read a DAG."""

from datetime import datetime
from typing import Any

from airflow.sdk.timezone import convert_to_utc, make_naive
from airflow.timetables.interval import CronDataIntervalTimetable
from croniter import croniter

from pipeline.config.data_date import schedule_in


class Dates(CronDataIntervalTimetable):
    """The intervals of a cron expression in a time zone.

    If summer time begins at a time of the schedule, clocks skip it, and its run is due later. For such a moment,
    Airflow 3.3.2 finds the moment itself when it looks for the one before it. A backfill that begins one interval
    earlier, and a scheduler without catchup, would then leave out that interval. Airflow 3.4 steps back by itself:
    remove `_get_prev` when 3.3 is no longer supported.
    """

    @property
    def summary(self) -> str:
        """The schedule in Airflow's UI. The `timezone` in the REST API of Airflow 3.3.2 is UTC for every DAG."""
        return schedule_in(str(self._timezone), super().summary)

    def _get_prev(self, current: Any) -> Any:
        before = super()._get_prev(current)
        if before >= current:
            cron = croniter(self._expression, start_time=make_naive(current, self._timezone))
            while before >= current:
                # As Airflow does: of an hour that comes twice, the second one.
                local = cron.get_prev(datetime).replace(fold=1)
                before = convert_to_utc(self._timezone.convert(local))
        return before


class BackfillDates(Dates):
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
