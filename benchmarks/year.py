"""What a year of dates does in Airflow: a backfill with failures, late corrections, and what both take.

    make bench-year
    python -m benchmarks.year [--set-up cluster] [--dates 365] [--images 20] [--second-year] [--json FILE]
        [--spare-tasks]

It uses the Airflow of the Python that runs it: `.airflow34/bin/python -m benchmarks.year --spare-tasks` measures 3.4,
after `make env-airflow34`.

The first section backfills `image_dataset` for all dates, as `make backfill` does. Some dates are bad. After a quarter
of the dates, the scheduler is killed. The second section adds a photograph to ten old dates, and backfills these again.
With `--second-year`, a third section backfills as many further dates, while another DAG runs every few minutes.
`retrain` trains after each backfill.

In the embedded Airflow, the operator stops Airflow after the death of the scheduler, starts it, and gives the same
command again. After half of the dates, the process of a running task is killed. With `--set-up cluster`, the database
is PostgreSQL, and tasks run on Celery workers. A worker is killed after half of the dates. What was killed starts again
by itself, as in Compose. PostgreSQL and Redis must run: TENFOLD_TEST_POSTGRES and TENFOLD_TEST_REDIS are their
addresses (by default those of this machine). The benchmark creates a database of its own, and removes it.

Each section is checked: the datasets, the reasons of the bad dates, and the number of trainings. The exit code is 1 if
a check failed. The files of Airflow and of the workspace then stay, for a look at them.
"""

import argparse
import csv
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.harness.cluster import ClusterOperator
from benchmarks.harness.dates import MIN_DATES, Dates, draw_another, draw_dates, plan_dates
from benchmarks.harness.embedded import EmbeddedOperator
from benchmarks.harness.machine import HOME, OtherLoad, machine_line, new_folder, say
from benchmarks.harness.operators import Costs, Operator, pages_s, size_mb
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import name_folder
from pipeline.dataset.manifest import load
from pipeline.dataset.partitions import newest_partitions
from pipeline.dataset.verify import verify
from pipeline.errors import DatasetError

SET_UPS: Mapping[str, type[Operator]] = {"embedded": EmbeddedOperator, "cluster": ClusterOperator}
DAG, TRAINER, NAME = "image_dataset", "retrain", "year"
FIRST_DATE = date(2024, 1, 1)
WINDOW = 30
TINY = f"""
epochs = 1
image_size = 32
batch_size = 8
num_shards = 1
validation_fraction = 0.25
window = {WINDOW}
"""
"""The settings of all runs. The training is as small as it can be: it is not what is measured."""
BESIDE = "TENFOLD_TABULAR_SCHEDULE", "*/3 * * * *"
"""The schedule that is active in the second year. Its DAG trains on a small table, and makes no dataset of a date."""
ROWS_OF_TABLE = 200
POLL_S, PROGRESS_S = 2.0, 30.0
BIG_TABLES = 6
CPU, WALL = "CPU seconds of Airflow and its tasks", "seconds from the first start to the last end"
WAIT = "from the killed scheduler to the next end of a date, s"
SPARE = "kill only the scheduler, because that of 3.4.0b2 ends when a task is killed"
ENDED = "state IN ('success', 'failed')"


@dataclass
class Kill:
    """What was killed."""

    name: str
    at: float
    runs: list[str] = field(default_factory=list)
    """The runs whose tasks were killed."""


@dataclass
class Section:
    """What a backfill did and took."""

    dates: int
    figures: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why dates failed, by the date."""
    kills: list[Kill] = field(default_factory=list)
    checks: dict[str, bool] = field(default_factory=dict)
    pages: dict[str, list[float]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """Rows of each table of Airflow's database at the end."""

    def check(self, what: str, found: object, wanted: object) -> None:
        """Keep whether something is as it should be, and say what it is otherwise."""
        self.checks[what] = found == wanted
        say(f"{'ok' if found == wanted else f'WRONG, {found} instead of {wanted}'}: {what}")


@dataclass
class Year:
    """The Airflow, its source and its dates."""

    operator: Operator
    costs: Costs
    source: Path
    images: int
    spares_tasks: bool
    """Whether only the scheduler is killed."""

    def backfill(self, days: Sequence[date], *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a backfill of days that follow one another."""
        options = ["--from", days[0].isoformat(), "--to", days[-1].isoformat(), "--source", f"{self.source}/{{date}}"]
        return self.operator.start("backfill", *options, "--params", json.dumps({"dataset_name": NAME}), *arguments)

    def runs(self, days: Sequence[date], columns: str, where: str = "TRUE") -> list[Any]:
        """Return columns of the runs of days that follow one another."""
        until = (days[-1] + timedelta(days=1)).isoformat()
        query = f"SELECT {columns} FROM dag_run WHERE dag_id = ? AND logical_date >= ? AND logical_date < ? AND {where}"
        return self.operator.ask(query, DAG, days[0].isoformat(), until)

    def ended(self, days: Sequence[date], since: datetime) -> int:
        """Return how many runs of the days have ended since a time."""
        return sum(moment(end) > since for (end,) in self.runs(days, "end_date", f"{ENDED} AND end_date IS NOT NULL"))

    def trainings(self) -> Counter[str]:
        """Return how many runs of `retrain` trained or not, by the state of the training."""
        query = "SELECT state FROM task_instance WHERE dag_id = ? AND task_id = 'train'"
        return Counter(str(state) for (state,) in self.operator.ask(query, TRAINER))


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    open_unless_set()
    # Otherwise, a benchmark that is ended leaves the processes of Airflow, and a database in PostgreSQL.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder, sections = new_folder("year"), {}
    log = folder.with_name("commands.log")
    with SET_UPS[options.set_up](folder, TINY, log) as operator, OtherLoad() as load, Costs(operator) as costs:
        year = Year(operator, costs, folder / "source", options.images, options.spare_tasks)
        for name, section in measured(year, options):
            sections[name] = section
            say(f"{name}: {json.dumps(asdict(section))}")
            if options.json:
                options.json.write_text(json.dumps({each: asdict(found) for each, found in sections.items()}, indent=1))
    lines = [operator.set_up, machine_line("apache-airflow"), load.sentence(), "", *table(sections)]
    print("\n".join(lines), flush=True)
    if not all(all(section.checks.values()) for section in sections.values()):
        raise SystemExit(f"A check failed. The files are in {folder}, and the output of the commands in {log}")
    shutil.rmtree(HOME / "work", ignore_errors=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.year", description="A year of dates in Airflow.")
    parser.add_argument("--set-up", choices=SET_UPS, default="embedded", help="the Airflow, embedded or that of a team")
    parser.add_argument("--dates", type=int, default=365, help="dates of each backfill")
    parser.add_argument("--images", type=int, default=20, help="photographs of each date")
    parser.add_argument("--second-year", action="store_true", help="backfill as many dates again beside a schedule")
    parser.add_argument("--spare-tasks", action="store_true", help=SPARE)
    parser.add_argument("--json", type=Path, help="file for every figure, written after each section")
    options = parser.parse_args(arguments)
    # Otherwise, all dates may have ended before the second kill.
    fewest = max(MIN_DATES, 3 * SET_UPS[options.set_up].at_once)
    if options.dates < fewest:
        parser.error(f"--dates must be at least {fewest} with --set-up {options.set_up}, got {options.dates}")
    return options


def measured(year: Year, options: argparse.Namespace) -> Any:
    """Yield each section by its name."""
    first = new_dates(year, FIRST_DATE, options.dates)
    say("starting Airflow")
    year.operator.up()
    kills = "a killed scheduler" if year.spares_tasks else "two kills"
    yield f"dates with {kills}", section_of(year, first, lambda section: killed_backfill(year, first, section))
    yield "late corrections", corrections(year, first)
    if options.second_year:
        second = new_dates(year, first.days[-1] + timedelta(days=1), options.dates)
        restart_beside_schedule(year.operator)
        name = f"further dates, {BESIDE[0]}={BESIDE[1]}"
        yield name, section_of(year, second, lambda section: plain_backfill(year, second.days, section))


def new_dates(year: Year, begin: date, count: int) -> Dates:
    """Draw the photographs of dates."""
    dates = plan_dates(begin, count)
    say(f"drawing {year.images} photographs for each of {count} dates")
    draw_dates(year.source, dates, year.images)
    return dates


# --- backfills --------------------------------------------------------------------------------------------------------


def section_of(year: Year, dates: Dates, backfill: Callable[[Section], None]) -> Section:
    """Backfill new dates, and check their datasets and trainings."""
    section, before, cpu_s = Section(len(dates.days)), year.trainings(), year.costs.cpu_s()
    made = versions_made(year.operator.workspace)
    backfill(section)
    measure(year, dates.days, section, cpu_s)
    section.reasons = reasons_in(year.operator.last_output())
    section.check("each bad date is named with a reason", sorted(section.reasons), sorted(map(str, dates.bad)))
    check_datasets(year, dates.good, year.images, made, section)
    check_training(year, before, section)
    return section


def killed_backfill(year: Year, dates: Dates, section: Section) -> None:
    """Backfill the dates. Kill the scheduler after a quarter of them, and a task or worker after half of them."""
    days, since = dates.days, datetime.now(UTC)
    command = year.backfill(days)
    until_ended(year, days, since, len(days) // 4, command)
    kill_scheduler(year, command, section)
    if command.poll() is not None:
        command = year.backfill(days)
    if not year.spares_tasks:
        until_ended(year, days, since, len(days) // 2, command)
        kill_work(year, command, section)
    until_ended(year, days, since, len(days), command)
    section.check("the backfill ends with exit code 1, because dates failed", command.wait(), 1)


def plain_backfill(year: Year, days: Sequence[date], section: Section, *arguments: str, code: int = 1) -> None:
    """Backfill days without any harm."""
    since = datetime.now(UTC)
    command = year.backfill(days, *arguments)
    until_ended(year, days, since, len(days), command)
    section.check(f"the backfill ends with exit code {code}", command.wait(), code)


def until_ended(
    year: Year, days: Sequence[date], since: datetime, count: int, command: "subprocess.Popen[bytes]"
) -> None:
    """Wait until this number of runs of a backfill, or its command, has ended."""
    said = 0.0
    while (ended := year.ended(days, since)) < count and command.poll() is None:
        if time.monotonic() - said > PROGRESS_S:
            said = time.monotonic()
            say(f"{ended} of {len(days)} dates have ended")
        time.sleep(POLL_S)
    if ended < count:
        raise SystemExit("\n".join(["The backfill ended too early:", *year.operator.last_output()[-20:]]))


def kill_scheduler(year: Year, command: "subprocess.Popen[bytes]", section: Section) -> None:
    """Kill the scheduler, and continue as the operator does."""
    year.costs.look()
    say("killing the scheduler")
    section.kills.append(Kill("scheduler", time.time()))
    section.figures |= year.operator.kill_scheduler(command)


def kill_work(year: Year, command: "subprocess.Popen[bytes]", section: Section) -> None:
    """Kill the first task that is seen to run, or its worker. Kill again if the tasks had ended before the kill."""
    operator = year.operator
    columns = f"run_id, task_id, map_index, try_number, {operator.place}"
    running = f"SELECT {columns} FROM task_instance WHERE dag_id = ? AND state = 'running' AND pid > 0"
    year.costs.look()
    while command.poll() is None:
        tasks = operator.ask(running, DAG)
        for run_id, task_id, *_, place in tasks:
            if operator.kill_work(place):
                say(f"killed the {operator.victim} of {task_id} of {run_id}")
                kill = Kill(operator.victim, time.time())
                kill.runs = interrupted(operator, command, [tuple(task) for *task, at in tasks if at == place])
                if kill.runs:
                    section.kills.append(kill)
                    return
                break  # By now, other tasks are running.
        time.sleep(0.1)
    section.check(f"a {operator.victim} was killed in the middle of a task", False, True)


def interrupted(operator: Operator, command: "subprocess.Popen[bytes]", tasks: Sequence[tuple[Any, ...]]) -> list[str]:
    """Wait until each task has ended or has another attempt. Return the runs whose tasks have one.

    A task is a run, the name of a task, its number and that of its attempt.
    """
    query = "SELECT run_id, task_id, map_index, try_number, state FROM task_instance WHERE dag_id = ?"
    runs: list[str] = []
    while command.poll() is None:
        now = {tuple(task): (attempt, state) for *task, attempt, state in operator.ask(query, DAG)}
        states = {task: now[task[:3]] for task in tasks}
        runs = sorted({task[0] for task in tasks if states[task][0] > task[3] or states[task][1] == "up_for_retry"})
        if all(task[0] in runs or state in ("success", "failed") for task, (_, state) in states.items()):
            break
        time.sleep(POLL_S)
    return runs


def corrections(year: Year, dates: Dates) -> Section:
    """Add a photograph to old dates, and backfill them again."""
    days, versions, made = dates.corrected, partitions_of(year), versions_made(year.operator.workspace)
    for day in days:
        draw_another(year.source, day, year.images)
    section, before, cpu_s = Section(len(days)), year.trainings(), year.costs.cpu_s()
    plain_backfill(year, days, section, "--reprocess", "all", code=0)
    measure(year, days, section, cpu_s)
    now = partitions_of(year)
    changed = sorted(day for day in now if now[day] != versions.get(day))
    section.check("the corrected dates have new versions, and no other dates", changed, [str(day) for day in days])
    check_datasets(year, days, year.images + 1, made, section)
    check_training(year, before, section)
    return section


def restart_beside_schedule(operator: Operator) -> None:
    """Start Airflow again, with another DAG that starts by itself."""
    table = operator.settings.with_name("table.csv")
    generator = random.Random(0)
    with open(table, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "color", "label"])
        for _ in range(ROWS_OF_TABLE):
            color = generator.choice(["red", "blue"])
            writer.writerow([generator.random(), color, "yes" if color == "red" else "no"])
    operator.settings.write_text(f'{TINY}\nsource_uri = "{table}"\nlabel_column = "label"\n')
    variable, schedule = BESIDE
    operator.environ[variable] = schedule
    say(f"starting Airflow again with {variable}={schedule}")
    operator.down()
    operator.up()


# --- figures and checks -----------------------------------------------------------------------------------------------


def measure(year: Year, days: Sequence[date], section: Section, cpu_s: float) -> None:
    """Keep what the backfill took, and what Airflow and the workspace hold after it."""
    say("measuring")
    figures = section.figures
    figures[CPU] = year.costs.cpu_s() - cpu_s
    runs = year.runs(days, "run_id, start_date, end_date")
    ends = {run: moment(end).timestamp() for run, _, end in runs}
    figures[WALL] = max(ends.values()) - min(moment(begin).timestamp() for _, begin, _ in runs)
    for kill in section.kills:
        figures |= waits_after(kill, ends)
    for name in year.operator.components:
        figures[f"peak memory of {name} so far, MB"] = year.costs.peak_mb[name]
    figures["database, MB"] = year.operator.database_mb()
    figures["logs of Airflow, MB"] = size_mb(year.operator.home / "logs")
    figures["workspace, MB"] = size_mb(year.operator.workspace)
    section.rows = dict(year.operator.rows().most_common(BIG_TABLES))
    section.pages = pages_s(year.operator, DAG)


def waits_after(kill: Kill, ends: Mapping[str, float]) -> dict[str, float]:
    """Return how long a kill was felt, by the ends of the runs."""
    following = min((end for end in ends.values() if end > kill.at), default=kill.at)
    waits = {f"from the killed {kill.name} to the next end of a date, s": following - kill.at}
    if kill.runs:
        last = max(ends[run] for run in kill.runs)
        waits[f"from the killed {kill.name} to the end of its last date, s"] = last - kill.at
    return waits


def reasons_in(output: Sequence[str]) -> dict[str, str]:
    """Return the reasons of failed dates that a backfill printed at its end."""
    found = (line.partition(": ") for line in output if line[:4].isdecimal() and line[10:12] == ": ")
    return {day: reason for day, _, reason in found}


def partitions_of(year: Year) -> dict[str, str]:
    """Return the versions of all dates."""
    return newest_partitions(name_folder(settings_of(year.operator.workspace)), 10_000)


def settings_of(workspace: Path) -> Settings:
    """Return the settings that say where the datasets are."""
    return settings_from({"workspace": str(workspace), "dataset_name": NAME})


def check_datasets(year: Year, days: Sequence[date], images: int, made: int, section: Section) -> None:
    """Read every record of the newest versions of the days. `made` is the number of versions before the backfill."""
    folder, versions = name_folder(settings_of(year.operator.workspace)), partitions_of(year)
    found = {str(day): records_of(folder / versions[str(day)]) for day in days if str(day) in versions}
    section.check(f"each good date has {images} sound records", found, dict.fromkeys(map(str, days), images))
    section.check("each good date has one new version", versions_made(year.operator.workspace) - made, len(days))


def versions_made(workspace: Path) -> int:
    """Return the number of complete datasets of one date each, of whatever version."""
    folder = Path(str(name_folder(settings_of(workspace))))
    return sum(not load(path.parent).window for path in folder.glob("*/dataset.json"))


def records_of(folder: Any) -> int | str:
    """Return the number of records of a dataset, or what is wrong with it."""
    try:
        found = verify(folder)
    except DatasetError as error:
        return str(error)
    return int(found["records"]) if found["ok"] else str(found["problems"])


def check_training(year: Year, before: Counter[str], section: Section) -> None:
    """Check that one training used the newest dates, and keep how many runs of `retrain` there were."""
    new = year.trainings() - before
    section.figures["runs of retrain"] = new.total()
    section.figures["of them skipped"] = new["skipped"]
    section.check("one training", new.total() - new["skipped"], 1)
    runs = sorted(
        year.operator.workspace.glob(f"runs/{TRAINER}-{NAME}/*/run.json"), key=lambda run: run.stat().st_mtime
    )
    newest = dict(sorted(partitions_of(year).items())[-WINDOW:])
    window = dict(load(Path(json.loads(runs[-1].read_text())["dataset"])).window) if runs else {}
    section.check(f"its window are the newest versions of the last {len(newest)} good dates", window, newest)


def moment(text: str) -> datetime:
    """Return a time of Airflow's database."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def table(sections: dict[str, Section]) -> list[str]:
    """Return a column for each section, with all figures and checks."""
    columns = [cells(section) for section in sections.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    lines = [f"| | {' | '.join(sections)} |", f"|---|{'---|' * len(sections)}"]
    lines += [f"| {name} | {' | '.join(column.get(name, '') for column in columns)} |" for name in names]
    reasons = [f"- {day}: {reason}" for section in sections.values() for day, reason in section.reasons.items()]
    return [*lines, "", "Reasons of failed dates:", "", *reasons]


def cells(section: Section) -> dict[str, str]:
    """Return the cells of a section by their names."""
    figures = section.figures
    waited = figures.get(WAIT, 0.0)
    per_date = {
        "seconds per date, without that wait": f"{(figures[WALL] - waited) / section.dates:.2f}",
        "CPU seconds per date": f"{figures[CPU] / section.dates:.2f}",
    }
    failed = ", ".join(name for name, is_right in section.checks.items() if not is_right)
    return {
        "dates": str(section.dates),
        "dates that failed": str(len(section.reasons)),
        **per_date,
        **{name: f"{value:,.0f}" for name, value in figures.items()},
        **{f"rows of {name}": f"{count:,}" for name, count in section.rows.items()},
        **{f"{name}, s (worst)": f"{middle:.2f} ({worst:.2f})" for name, (middle, worst) in section.pages.items()},
        "checks": f"{sum(section.checks.values())} of {len(section.checks)} right{': not ' + failed if failed else ''}",
    }


if __name__ == "__main__":
    main()
