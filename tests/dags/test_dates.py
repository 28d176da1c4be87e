"""Dates as people have them: the rows of the table in docs/how-to/airflow.md, each checked by Airflow's own objects."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.data_date import zone_of_schedule
from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import name_folder
from pipeline.dataset.partitions import Partition, newest_partitions, save_partition
from pipeline.errors import SettingsError
from scripts.airflow.request import Backfill, read_backfill
from tests.conftest import MakeImages
from tests.dags.conftest import Ran, RunDag

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings

DAYS, HOURS, MONTHS = "/data/{date}", "/data/{date}/{hour}", "/data/{year}-{month}"
NOW = datetime(2026, 12, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Dates:
    """The runs of a DAG, by Airflow's timetable, with the data dates that its first task gives them."""

    monkeypatch: pytest.MonkeyPatch
    dags: dict[str, Any]
    """All DAGs, as Airflow reads them from the folder."""
    workspace: Path

    def dag(self, schedule: str = "", **environ: str) -> Any:
        """Return a DAG with these variables of the environment, as the scheduler reads it from its database."""
        from airflow.sdk import DAG
        from airflow.serialization.serialized_objects import DagSerialization

        from dags.schedule import schedule_from

        for name in ("BACKFILL_SCHEDULE", "START_DATE", "CATCHUP", "TIMEZONE"):
            self.monkeypatch.delenv(f"TENFOLD_{name}", raising=False)
        for name, value in {"SOME_SCHEDULE": schedule, **environ}.items():
            self.monkeypatch.setenv(name, value)
        return DagSerialization.from_dict(DagSerialization.to_dict(DAG("dates", **schedule_from("SOME_SCHEDULE"))))

    def request(self, first: str, last: str, source: str) -> Backfill:
        """Return the backfill of FROM and TO."""
        return read_backfill("dates", first, last, "", {"source_uri": source}, NOW)

    def backfilled(self, dag: Any, first: str, last: str, source: str) -> list[Any]:
        """Return the runs of a backfill of FROM and TO."""
        body = self.request(first, last, source).body()
        begin, end = (datetime.fromisoformat(body[name]) for name in ("from_date", "to_date"))
        return list(dag.iter_dagrun_infos_between(begin, end))

    def scheduled(self, dag: Any, last: str, now: str) -> list[Any]:
        """Return the runs that the scheduler creates until `now`, if the last one was that of the interval `last`."""
        from airflow.timetables import interval

        # The only clock of a timetable. Airflow 3.3 has no argument for it.
        self.monkeypatch.setattr(interval, "utcnow", lambda: moment(now))
        [before] = dag.iter_dagrun_infos_between(moment(last), moment(last))
        runs: list[Any] = []
        while (run := dag.next_dagrun_info(last_automated_run_info=[before, *runs][-1])).run_after <= moment(now):
            runs.append(run)
        return runs


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def settings_of(run: Any, source: str) -> Settings:
    """Return the settings of a run, after its first task has filled in the data date."""
    return settings_from({"source_uri": source}).dated(run.logical_date or run.run_after)


def partitions(runs: Sequence[Any], source: str) -> list[str]:
    return [settings_of(run, source).data_date for run in runs]


def starts(runs: Sequence[Any]) -> list[str]:
    """Return when runs are due, in UTC."""
    return [run.run_after.strftime("%m-%dT%H:%M") for run in runs]


def hours_of(day: str, first: int, count: int) -> list[str]:
    """Return the names of `count` partitions of hours from an hour of a day on, in UTC."""
    begin = moment(day) + timedelta(hours=first)
    return [(begin + timedelta(hours=number)).strftime("%Y-%m-%dT%H:00") for number in range(count)]


@pytest.mark.parametrize(
    ("worker", "source", "run_type", "is_refused"),
    [
        ({}, DAYS, "backfill", True),
        ({"TENFOLD_TIMEZONE": "America/New_York"}, DAYS, "scheduled", True),
        ({"TENFOLD_TIMEZONE": "Europe/Berlin"}, DAYS, "scheduled", False),
        ({"TENFOLD_BACKFILL_SCHEDULE": "@hourly"}, DAYS, "backfill", False),  # a run of an earlier schedule
        ({}, HOURS, "backfill", False),
        ({}, DAYS, "manual", True),
        ({}, "/data", "backfill", False),
    ],
)
def test_a_worker_with_another_time_zone_refuses_a_run(
    monkeypatch: pytest.MonkeyPatch, worker: dict[str, str], source: str, run_type: str, is_refused: bool
) -> None:
    from dags.schedule import require_zone, schedule_from

    dates = Dates(monkeypatch, {}, Path())
    # All days of a quarter, with the night in which clocks skip an hour.
    runs = dates.backfilled(dates.dag(TENFOLD_TIMEZONE="Europe/Berlin"), "2026-02-01", "2026-04-30", DAYS)
    dates.dag(**worker)
    timetable = schedule_from("SOME_SCHEDULE")["schedule"]
    refused = []
    for each in runs:
        begin, end = each.data_interval
        run = SimpleNamespace(run_type=run_type, data_interval_start=begin, data_interval_end=end)
        try:
            require_zone(settings_from({"source_uri": source}), timetable, run)
        except SettingsError as error:
            refused.append(str(error))
    # Without a logical date, a run has no interval.
    require_zone(settings_from({"source_uri": source}), timetable, SimpleNamespace(data_interval_start=None))
    # A day of 23 hours says nothing.
    assert (len(refused) >= len(runs) - 2) is bool(refused) is is_refused
    assert all("set TENFOLD_TIMEZONE of the worker, and its TENFOLD_*_SCHEDULE" in each for each in refused)


@pytest.mark.parametrize(("worker", "is_refused"), [({}, True), ({"schedule": "0 7 * * *"}, False)])
def test_a_worker_without_the_schedule_refuses_a_run(
    monkeypatch: pytest.MonkeyPatch, worker: dict[str, str], is_refused: bool
) -> None:
    """For the worker, a day from 07:00 in UTC may be one from midnight in another time zone."""
    from dags.schedule import require_zone, schedule_from

    dates = Dates(monkeypatch, {}, Path())
    [run] = dates.backfilled(dates.dag("0 7 * * *"), "2026-03-01", "2026-03-01", DAYS)
    begin, end = run.data_interval
    dates.dag(**worker)
    timetable = schedule_from("SOME_SCHEDULE")["schedule"]
    refusal = pytest.raises(SettingsError, match=r"\(backfills only \(0 0 .*, and its TENFOLD_\*_SCHEDULE, to those of")
    with refusal if is_refused else nullcontext():
        of_run = SimpleNamespace(data_interval_start=begin, data_interval_end=end)
        require_zone(settings_from({"source_uri": DAYS}), timetable, of_run)


# --- the rows of which the timetable decides --------------------------------------------------------------------------


def days(dates: Dates) -> None:
    runs = dates.backfilled(dates.dag(), "2026-01-01", "2026-01-03", DAYS)
    assert partitions(runs, DAYS) == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert starts(runs) == ["01-02T00:00", "01-03T00:00", "01-04T00:00"]


def hours(dates: Dates) -> None:
    dag = dates.dag(TENFOLD_BACKFILL_SCHEDULE="@hourly")
    runs = dates.backfilled(dag, "2026-01-01T00", "2026-01-02T23", HOURS)
    assert partitions(runs, HOURS) == hours_of("2026-01-01", 0, 48)
    assert settings_of(runs[7], HOURS).source_uri == "/data/2026-01-01/07"
    assert partitions(dates.backfilled(dag, "2026-01-01T22", "2026-01-02T01", HOURS), HOURS) == hours_of(
        "2026-01-01", 22, 4
    )


def hours_of_days(dates: Dates) -> None:
    dag = dates.dag(TENFOLD_BACKFILL_SCHEDULE="@hourly")
    runs = dates.backfilled(dag, "2026-01-01", "2026-01-02", HOURS)
    assert partitions(runs, HOURS) == hours_of("2026-01-01", 0, 48)


def hours_without_a_schedule_for_them(dates: Dates) -> None:
    for schedule, first, last, is_right in (
        ("@daily", "2026-01-01T00", "2026-01-02T23", False),
        ("@daily", "2026-01-01T07", "2026-01-01T09", False),
        ("@daily", "2026-01-01", "2026-01-02", False),  # Each {hour} would be 00.
        ("0 7 * * *", "2026-01-01", "2026-01-02", True),
        ("0 */6 * * *", "2026-01-01T00", "2026-01-01T23", False),
        ("*/30 * * * *", "2026-01-01T00", "2026-01-01T23", True),
    ):
        dag, request = dates.dag(schedule), dates.request(first, last, HOURS)
        moments = [run.logical_date for run in dates.backfilled(dag, first, last, HOURS)]
        assert request.has_runs_of_its_hours(moments) is is_right, (schedule, first)


def in_the_ui(dates: Dates) -> None:
    for schedule, zone, first, last in (
        ("@daily", "UTC", "2026-01-01", "2026-01-30"),
        ("@daily", "Europe/Berlin", "2026-01-02", "2026-01-30"),
        ("@daily", "America/New_York", "2026-01-01", "2026-01-29"),
        ("@hourly", "UTC", "2026-01-01T00:00", "2026-01-30T00:00"),
    ):
        dag = dates.dag(schedule, TENFOLD_TIMEZONE=zone)
        runs = list(dag.iter_dagrun_infos_between(moment("2026-01-01"), moment("2026-01-30")))
        made = partitions(runs, HOURS if schedule == "@hourly" else DAYS)
        assert (made[0], made[-1]) == (first, last), (schedule, zone)


def other_zones(dates: Dates) -> None:
    dag = dates.dag("@daily", TENFOLD_TIMEZONE="America/New_York")
    runs = dates.backfilled(dag, "2026-01-31", "2026-02-01", DAYS)
    assert partitions(runs, DAYS) == ["2026-01-31", "2026-02-01"]
    assert starts(runs) == ["02-01T05:00", "02-02T05:00"]
    # `make backfill` compares it with its own.
    assert zone_of_schedule(dag.timetable.summary) == "America/New_York"
    dag = dates.dag(TENFOLD_TIMEZONE="America/New_York")
    assert dag.timetable.summary == "backfills only (0 0 * * * in America/New_York)"
    assert zone_of_schedule(dag.timetable.summary) == "America/New_York"
    assert zone_of_schedule(dates.dag().timetable.summary) == "UTC"


def summer_time_begins(dates: Dates) -> None:
    runs = dates.backfilled(dates.dag(TENFOLD_TIMEZONE="Europe/Berlin"), "2026-03-28", "2026-03-30", DAYS)
    assert partitions(runs, DAYS) == ["2026-03-28", "2026-03-29", "2026-03-30"]
    assert starts(runs) == ["03-28T23:00", "03-29T22:00", "03-30T22:00"]


def summer_time_ends(dates: Dates) -> None:
    runs = dates.backfilled(dates.dag(TENFOLD_TIMEZONE="Europe/Berlin"), "2026-10-24", "2026-10-26", DAYS)
    assert partitions(runs, DAYS) == ["2026-10-24", "2026-10-25", "2026-10-26"]
    assert starts(runs) == ["10-24T22:00", "10-25T23:00", "10-26T23:00"]


def two_o_clock(dates: Dates) -> None:
    dag = dates.dag("0 2 * * *", TENFOLD_TIMEZONE="Europe/Berlin")
    spring = dates.backfilled(dag, "2026-03-28", "2026-03-30", DAYS)
    assert partitions(spring, DAYS) == ["2026-03-28", "2026-03-29", "2026-03-30"]
    assert starts(spring) == ["03-29T01:00", "03-30T00:00", "03-31T00:00"]
    autumn = dates.backfilled(dag, "2026-10-24", "2026-10-26", DAYS)
    assert partitions(autumn, DAYS) == ["2026-10-24", "2026-10-25", "2026-10-26"]
    assert starts(autumn) == ["10-25T01:00", "10-26T01:00", "10-27T01:00"]


def day_before_a_skipped_time(dates: Dates) -> None:
    """Airflow's own timetable leaves out the day before a time of the schedule that clocks skip."""
    dag = dates.dag("0,30 2 * * *", TENFOLD_TIMEZONE="Europe/Berlin")
    runs = dag.iter_dagrun_infos_between(moment("2026-03-28T01:30"), moment("2026-03-30T00:00"))
    assert starts(list(runs)) == ["03-29T01:00", "03-30T00:00", "03-30T00:30"]
    dag = dates.dag("30 2 * * *", TENFOLD_TIMEZONE="Europe/Berlin")
    runs = dates.scheduled(dag, "2026-03-27T01:30", "2026-03-29T05:00")
    assert partitions(runs, DAYS) == ["2026-03-28"]


def every_second_hour(dates: Dates) -> None:
    dag = dates.dag("0 */2 * * *", TENFOLD_TIMEZONE="Europe/Berlin")
    spring = dates.backfilled(dag, "2026-03-29", "2026-03-29", HOURS)[:4]
    assert starts(spring) == ["03-29T01:00", "03-29T02:00", "03-29T04:00", "03-29T06:00"]
    autumn = dates.backfilled(dag, "2026-10-25", "2026-10-25", HOURS)[:4]
    assert starts(autumn) == ["10-25T01:00", "10-25T03:00", "10-25T05:00", "10-25T07:00"]


def midnight_that_does_not_exist(dates: Dates) -> None:
    for zone, first, last in (
        ("America/Santiago", "2026-09-05", "2026-09-07"),
        ("Africa/Cairo", "2026-04-23", "2026-04-25"),
        ("Africa/Cairo", "2026-10-29", "2026-10-31"),
        ("America/Havana", "2026-10-31", "2026-11-02"),  # This midnight comes twice.
    ):
        runs = dates.backfilled(dates.dag(TENFOLD_TIMEZONE=zone), first, last, DAYS)
        assert partitions(runs, DAYS) == dates.request(first, last, DAYS).names, zone


def hours_when_summer_time_changes(dates: Dates) -> None:
    dag = dates.dag("@hourly", TENFOLD_TIMEZONE="Europe/Berlin")
    autumn = dates.backfilled(dag, "2026-10-25", "2026-10-25", HOURS)
    assert partitions(autumn, HOURS) == hours_of("2026-10-24", 22, 25)  # Both hours from 2 to 3 are among them.
    assert [settings_of(run, HOURS).source_uri for run in autumn[2:4]] == ["/data/2026-10-25/00", "/data/2026-10-25/01"]
    spring = dates.backfilled(dag, "2026-03-29", "2026-03-29", HOURS)
    assert partitions(spring, HOURS) == hours_of("2026-03-28", 23, 23)
    by_hours = dates.backfilled(dag, "2026-10-25T00", "2026-10-25T23", HOURS)
    assert partitions(by_hours, HOURS) == hours_of("2026-10-25", 0, 24)


def window_of_hours(dates: Dates) -> None:
    dag = dates.dag("@hourly", TENFOLD_TIMEZONE="Europe/Berlin")
    names = partitions(dates.backfilled(dag, "2026-10-24", "2026-10-25", HOURS), HOURS)
    assert len(names) == 49
    folder = name_folder(settings_from({"workspace": str(dates.workspace), "dataset_name": "images"}))
    names.remove("2026-10-25T12:00")
    for number, name in enumerate(names):
        save_partition(folder, Partition(name, f"{number:016x}", number), lambda _: 0)
    # The day in Berlin has 25 hours. Those from 00:00 and from 01:00 in UTC are both from 2:00 to 3:00.
    present = [name for name in hours_of("2026-10-24", 22, 25) if name in names]
    assert list(newest_partitions(folder, 24)) == present[::-1]


def day_again_each_hour(dates: Dates) -> None:
    dag = dates.dag("@hourly", TENFOLD_TIMEZONE="Europe/Berlin")
    runs = dates.backfilled(dag, "2026-10-25", "2026-10-25", DAYS)
    assert partitions(runs, DAYS) == ["2026-10-25"] * 25


def months(dates: Dates) -> None:
    dag = dates.dag("@monthly")
    runs = dates.backfilled(dag, "2026-01-01", "2026-04-30", MONTHS)
    assert partitions(runs, MONTHS) == ["2026-01-01", "2026-02-01", "2026-03-01", "2026-04-01"]
    assert starts(runs) == ["02-01T00:00", "03-01T00:00", "04-01T00:00", "05-01T00:00"]
    assert settings_of(runs[1], MONTHS).source_uri == "/data/2026-02"
    by_days = dates.backfilled(dates.dag(), "2026-02-01", "2026-02-28", MONTHS)
    assert partitions(by_days, MONTHS) == ["2026-02-01"] * 28


def the_31st(dates: Dates) -> None:
    runs = dates.backfilled(dates.dag("0 0 31 * *"), "2026-01-01", "2026-05-31", DAYS)
    assert partitions(runs, DAYS) == ["2026-01-31", "2026-03-31", "2026-05-31"]
    assert starts(runs) == ["03-31T00:00", "05-31T00:00", "07-31T00:00"]


def overlap(dates: Dates) -> None:
    makers = [dates.dags[name] for name in ("image_dataset", "tabular_dataset", "image_training", "tabular_training")]
    assert {dag.max_active_runs for dag in makers} == {4}
    # The runs from 00:00 to 03:00 go on until 09:30. Airflow computes the next date each time it reads the DAG.
    runs = dates.scheduled(dates.dag("@hourly"), "2026-01-01T03:00", "2026-01-01T09:30")
    assert partitions(runs, HOURS) == ["2026-01-01T08:00"]
    runs = dates.scheduled(dates.dag("@hourly", TENFOLD_CATCHUP="true"), "2026-01-01T03:00", "2026-01-01T09:30")
    assert partitions(runs, HOURS) == hours_of("2026-01-01", 4, 5)


def catchup(dates: Dates) -> None:
    dag = dates.dag("@daily", TENFOLD_CATCHUP="true")
    runs = dates.scheduled(dag, "2026-01-01", "2026-01-09T09:00")
    assert partitions(runs, DAYS) == [f"2026-01-0{day}" for day in range(2, 9)]


def no_catchup(dates: Dates) -> None:
    dag = dates.dag("@daily")
    runs = dates.scheduled(dag, "2026-01-01", "2026-01-09T09:00")
    assert partitions(runs, DAYS) == ["2026-01-08"]
    missed = dates.backfilled(dag, "2026-01-02", "2026-01-07", DAYS)
    assert partitions(missed, DAYS) == [f"2026-01-0{day}" for day in range(2, 8)]


def catchup_over_a_change(dates: Dates) -> None:
    dag = dates.dag("@daily", TENFOLD_CATCHUP="true", TENFOLD_TIMEZONE="Europe/Berlin")
    runs = dates.scheduled(dag, "2026-10-22T22:00", "2026-10-27T09:00")
    assert partitions(runs, DAYS) == ["2026-10-24", "2026-10-25", "2026-10-26"]


def manual_interval(dates: Dates) -> None:
    """The interval of a manual run ends before it. Tenfold does not use it."""
    dag = dates.dag("@daily", TENFOLD_TIMEZONE="Europe/Berlin")
    interval = dag.timetable.infer_manual_data_interval(run_after=_pendulum("2026-02-01T23:30"))
    assert [interval.start.isoformat(), interval.end.isoformat()] == [
        "2026-01-31T23:00:00+00:00",
        "2026-02-01T23:00:00+00:00",
    ]


def _pendulum(text: str) -> Any:
    import pendulum

    return pendulum.instance(moment(text))


BY_TIMETABLE: dict[str, Callable[[Dates], None]] = {
    "`make backfill FROM=2026-01-01 TO=2026-01-03`": days,
    "`make backfill FROM=2026-01-01T00 TO=2026-01-02T23`, a source with `{hour}`": hours,
    "`make backfill FROM=2026-01-01 TO=2026-01-02`, a source with `{hour}`": hours_of_days,
    "the same, with an Airflow whose DAG has no run for each hour": hours_without_a_schedule_for_them,
    "a backfill in the UI, from 1 January 0:00 to 30 January 0:00 in UTC": in_the_ui,
    "`TENFOLD_TIMEZONE=America/New_York`": other_zones,
    "`@daily` in Berlin, the day on which summer time begins": summer_time_begins,
    "`@daily` in Berlin, the day on which summer time ends": summer_time_ends,
    "`0 2 * * *` in Berlin, on these days": two_o_clock,
    "`0 */2 * * *` in Berlin, on these days": every_second_hour,
    "`@daily` where midnight does not exist, or comes twice": midnight_that_does_not_exist,
    "`@hourly` in Berlin, a source with `{hour}`, on these days": hours_when_summer_time_changes,
    "`window = 24`, hours from such a night, one of them missing": window_of_hours,
    "`@hourly`, a source with `{date}` and without `{hour}`": day_again_each_hour,
    "`@monthly`, a source with `{year}` and `{month}`": months,
    "`0 0 31 * *`": the_31st,
    "a schedule fires while earlier runs go on": overlap,
    "a week of downtime, `TENFOLD_CATCHUP=true`": catchup,
    "a week of downtime, without `TENFOLD_CATCHUP`": no_catchup,
}


@pytest.fixture
def dates(monkeypatch: pytest.MonkeyPatch, dags: dict[str, Any], tmp_path: Path) -> Dates:
    return Dates(monkeypatch, dags, tmp_path)


@pytest.mark.parametrize("row", BY_TIMETABLE)
def test_a_date_by_its_timetable(row: str, dates: Dates) -> None:
    BY_TIMETABLE[row](dates)


@pytest.mark.parametrize("check", [catchup_over_a_change, day_before_a_skipped_time, manual_interval])
def test_more_of_the_timetables(check: Callable[[Dates], None], dates: Dates) -> None:
    check(dates)


# --- the rows of which runs decide ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """Runs of `image_dataset` on the images of some days, in this process."""

    run_dag: RunDag
    source: Path
    workspace: Path
    monkeypatch: pytest.MonkeyPatch

    def run(self, logical_date: str | None, **values: object) -> Ran:
        """Run the DAG with a logical date, or without one, as a trigger over the REST API can."""
        self.monkeypatch.setenv("TENFOLD_TIMEZONE", "Europe/Berlin")
        conf = {"source_uri": str(self.source / "{date}"), "dataset_name": "images", "num_shards": 1, **values}
        date = moment(logical_date) if logical_date else None
        ran = self.run_dag("image_dataset", conf, date)
        assert ran.state == "success"
        return ran

    def version(self, logical_date: str | None, **values: object) -> str:
        """Run the DAG, and return the version of its dataset."""
        return str(self.run(logical_date, **values).returned("upload.commit")["version"])

    def window(self, count: int = 9) -> dict[str, str]:
        settings = settings_from({"workspace": str(self.workspace), "dataset_name": "images"})
        return newest_partitions(name_folder(settings), count)

    def command(self, *arguments: str) -> None:
        from pipeline.__main__ import main

        places = [f"workspace={self.workspace}", "dataset_name=images"]
        assert main(["partition", *arguments, *(word for place in places for word in ("--set", place))]) == 0

    def add_image(self, day: str) -> None:
        label = self.source / day / "cats"
        (label / "new.jpg").write_bytes(sorted(label.iterdir())[0].read_bytes() + b"\0")


def manual_with_a_date(runs: Runs) -> None:
    runs.run("2026-01-30T23:30")
    assert list(runs.window()) == ["2026-01-31"]


def manual_without_a_date(runs: Runs) -> None:
    days = today_and_tomorrow()
    (runs.source / "2026-01-31").rename(runs.source / "today")
    for day in days:
        (runs.source / day).symlink_to(runs.source / "today")
    runs.run(None)
    [made] = runs.window()
    assert made in days


def today_and_tomorrow() -> list[str]:
    """Return this day and the next one in Berlin: a run may begin after midnight."""
    from zoneinfo import ZoneInfo

    today = datetime.now(ZoneInfo("Europe/Berlin"))
    return [str((today + timedelta(days=days)).date()) for days in range(2)]


def same_again(runs: Runs) -> None:
    first = runs.run("2026-01-30T23:30").returned("upload.commit")
    again = runs.run("2026-01-31T08:00").returned("upload.commit")
    assert (first["already_complete"], again["already_complete"]) == (False, True)
    assert runs.window() == {"2026-01-31": first["version"]}


def other_settings(runs: Runs) -> None:
    first = runs.version("2026-01-31T08:00")
    second = runs.version("2026-01-31T08:00", num_shards=2)
    assert first != second
    assert runs.window() == {"2026-01-31": second}
    assert (runs.workspace / "datasets" / "images" / first / "dataset.json").exists()
    runs.command("2026-01-31", first)
    assert runs.window() == {"2026-01-31": first}


def gap(runs: Runs) -> None:
    made = {day: runs.version(f"{day}T08:00") for day in ("2026-01-28", "2026-01-30", "2026-01-31")}
    assert runs.window(2) == {day: made[day] for day in ("2026-01-31", "2026-01-30")}
    assert runs.window(3) == made


def withdrawn(runs: Runs) -> None:
    made = {day: runs.version(f"{day}T08:00") for day in ("2026-01-28", "2026-01-30", "2026-01-31")}
    runs.command("2026-01-31", "--withdraw")
    assert runs.window(2) == {day: made[day] for day in ("2026-01-30", "2026-01-28")}
    assert runs.version("2026-01-31T08:00") == made["2026-01-31"]
    assert "2026-01-31" not in runs.window()  # The run found the same images.
    runs.add_image("2026-01-31")
    corrected = runs.version("2026-01-31T08:00")
    assert runs.window(1) == {"2026-01-31": corrected}


BY_RUN: dict[str, Callable[[Runs], None]] = {
    "a manual run with a logical date": manual_with_a_date,
    "a manual run without a logical date": manual_without_a_date,
    "a date again, with the same images and settings": same_again,
    "a date again, with other images, or with settings that change the shards": other_settings,
    "a window over dates that have no dataset": gap,
    "a date withdrawn: `tenfold partition 2026-01-31 --withdraw`": withdrawn,
}


@pytest.fixture
def runs(run_dag: RunDag, make_images: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    days = ("2026-01-28", "2026-01-30", "2026-01-31")
    source = make_images({f"{day}/{label}": 6 for day in days for label in ("cats", "dogs")})
    return Runs(run_dag, source, tmp_path / "workspace", monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("row", BY_RUN)
def test_a_date_by_its_runs(row: str, runs: Runs) -> None:
    BY_RUN[row](runs)


def test_the_documentation_has_the_same_rows() -> None:
    page = Path("docs/how-to/airflow.md").read_text("utf-8")
    table = page.partition("| input | outcome |\n")[2].partition("\n\n")[0]
    inputs = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[1:]]
    assert inputs == [*BY_TIMETABLE, *BY_RUN]
