"""The benchmark of a year of dates: what is wrong with its dates, what it reads from output, and its table."""

import signal
import sqlite3
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, UnidentifiedImageError
from pyarrow import parquet

from benchmarks import year
from benchmarks.harness.cluster import ClusterOperator
from benchmarks.harness.dates import BAD, MAX_CORRECTED, MIN_DATES, draw_another, draw_dates, plan_dates
from benchmarks.harness.operators import Costs, Operator
from standins.cluster.cluster import celery
from standins.cluster.servers import silent
from tests.docker.test_compose import environment

FIRST = date(2024, 1, 1)


@pytest.mark.parametrize(("count", "bad"), [(MIN_DATES, 4), (31, 4), (60, 6), (365, 10)])
def test_bad_dates_are_of_every_kind_and_none_is_corrected_later(count: int, bad: int):
    dates = plan_dates(FIRST, count)
    assert len(dates.days) == count
    assert (len(dates.bad), set(dates.bad.values())) == (bad, set(BAD))
    assert len(dates.good) == count - bad
    assert len(dates.corrected) == MAX_CORRECTED
    assert set(dates.corrected) < set(dates.good[-year.WINDOW :])


def test_each_date_has_its_own_photographs(tmp_path: Path):
    dates = plan_dates(FIRST, MIN_DATES)
    draw_dates(tmp_path, dates, images=4)
    draw_another(tmp_path, dates.good[0], 4)
    found = {day: sorted((tmp_path / str(day)).glob("*/*.jpg")) for day in dates.days}
    counts = {"empty folder": 0, "broken images": 4, "one class": 4, "missing column": 0}
    assert {day: len(found[day]) for day in dates.bad} == {day: counts[kind] for day, kind in dates.bad.items()}
    assert [len(found[day]) for day in dates.good] == [5, *[4] * (len(dates.good) - 1)]
    contents = [path.read_bytes() for paths in found.values() for path in paths]
    assert len(set(contents)) == len(contents)
    for day, kind in dates.bad.items():
        assert (len({path.parent for path in found[day]}) == 1) == (kind == "one class")
        if kind == "broken images":
            with pytest.raises(UnidentifiedImageError):
                Image.open(found[day][0])
        if kind == "missing column":
            [table] = (tmp_path / str(day)).iterdir()
            assert parquet.read_schema(table).names == ["image"]


def test_reasons_are_read_from_the_output_of_a_backfill():
    output = ["2024-01-02  20  0123456789abcdef  new", "2024-01-03: extract failed: no images", "Full log: /logs/2.log"]
    assert year.reasons_in(output) == {"2024-01-03": "extract failed: no images"}


def test_the_table_has_a_column_for_each_section():
    one = year.Section(14, {year.CPU: 70.0, year.WALL: 150.0, year.WAIT: 10.0}, checks={"one training": False})
    other = year.Section(10, {year.CPU: 10.0, year.WALL: 50.0, "only here": 1.0}, reasons={"2024-01-03": "no images"})
    lines = year.table({"one": one, "other": other})
    rows = [line for line in lines if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert "| seconds per date, without that wait | 10.00 | 5.00 |" in rows
    assert "| only here |  | 1 |" in rows
    assert "| checks | 0 of 1 right: not one training | 0 of 0 right |" in rows
    assert lines[-1] == "- 2024-01-03: no images"


class Ended(ClusterOperator):
    """An operator of a benchmark that somebody ends while its Airflow starts."""

    has_stopped = False

    def __enter__(self) -> Operator:
        return self

    def up(self) -> None:
        signal.raise_signal(signal.SIGTERM)

    def down(self) -> None:
        Ended.has_stopped = True


def test_an_ended_benchmark_stops_its_airflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(year, "SET_UPS", {"embedded": Ended})
    monkeypatch.setattr(Ended, "at_once", 1)
    monkeypatch.setattr(year, "new_folder", lambda name: tmp_path / "work" / name)
    monkeypatch.setattr(sys, "argv", ["year", "--dates", str(MIN_DATES), "--images", "1"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            year.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM
    assert Ended.has_stopped


@pytest.mark.parametrize(("set_up", "fewest"), [("embedded", MIN_DATES), ("cluster", 48)])
def test_too_few_dates_for_two_kills_are_refused(set_up: str, fewest: int, capsys: pytest.CaptureFixture[str]):
    assert year.parse(["--set-up", set_up, "--dates", str(fewest)]).dates == fewest
    with pytest.raises(SystemExit):
        year.parse(["--set-up", set_up, "--dates", str(fewest - 1)])
    assert f"at least {fewest} with --set-up {set_up}, got {fewest - 1}" in capsys.readouterr().err


def test_a_kill_is_felt_until_the_dates_end_that_it_struck():
    ends = {"before": 9.0, "struck": 80.0, "other": 12.0, "struck too": 95.0}
    assert year.waits_after(year.Kill("worker", 10.0, ["struck", "struck too"]), ends) == {
        "from the killed worker to the next end of a date, s": 2.0,
        "from the killed worker to the end of its last date, s": 85.0,
    }
    assert year.waits_after(year.Kill("scheduler", 99.0), ends) == {
        "from the killed scheduler to the next end of a date, s": 0.0
    }


class Place:
    """An operator with a task in a database. The first task ends just before it is killed, and the second one after."""

    victim, place = "worker", "hostname"

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:")
        columns = "dag_id, run_id, task_id, map_index, try_number, state, pid, hostname"
        self._database.execute(f"CREATE TABLE task_instance ({columns})")
        self.begin("first")

    def begin(self, run: str) -> None:
        values = (year.DAG, run, "build", -1, 1, "running", 1, "here")
        self._database.execute("INSERT INTO task_instance VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def processes(self) -> dict[str, Any]:
        return {}

    def ask(self, query: str, *values: str) -> list[Any]:
        return self._database.execute(query, values).fetchall()

    def kill_work(self, place: str) -> bool:
        assert place == "here"
        if self.ask("SELECT 1 FROM task_instance WHERE run_id = 'second'"):
            self._database.execute("UPDATE task_instance SET state = 'queued', try_number = 2 WHERE state = 'running'")
        else:
            self._database.execute("UPDATE task_instance SET state = 'success'")
            self.begin("second")
        return True


def test_a_kill_is_repeated_until_it_interrupts_a_task(tmp_path: Path):
    section = year.Section(2)
    operator: Any = Place()
    with subprocess.Popen(["sleep", "60"]) as command:
        try:
            year.kill_work(year.Year(operator, Costs(operator), tmp_path, 1, spares_tasks=False), command, section)
        finally:
            command.kill()
    assert [(kill.name, kill.runs) for kill in section.kills] == [("worker", ["second"])]
    assert section.checks == {}


def test_workers_have_the_settings_of_compose():
    compose, ours = environment("worker"), celery("postgresql://host/name", "prefix:")
    same = [name for name in compose if name.startswith(("AIRFLOW__SCHEDULER__", "AIRFLOW__WORKERS__"))]
    assert len(same) >= 8
    for name in (*same, "AIRFLOW__CORE__EXECUTOR", "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT"):
        assert ours[name] == compose[name], name
    assert not [value for value in ours.values() if "$" in value]


def test_the_database_of_a_team_answers_as_sqlite_does(tmp_path: Path):
    if reasons := silent():
        pytest.skip(f"needs PostgreSQL and Redis: {reasons}")
    with ClusterOperator(tmp_path, "", tmp_path / "log") as operator:
        [row] = operator.ask("SELECT CAST(? AS timestamptz), 1, NULL", "2024-01-01T01:00+01:00")
        assert row == ("2024-01-01T00:00:00+00:00", 1, None)
        assert operator.rows() == {}
        assert operator.database_mb() > 1
        assert operator.processes() == {}
