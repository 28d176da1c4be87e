"""How long a training takes to open in Airflow's UI, for a short record and a long one, and what ten open pages take.

    make bench-plugin
    python -m benchmarks.plugin [--hours N] [--seconds N] [--only SECTION] [--quick] [--json FILE]

The benchmark starts an Airflow of its own and pauses its runs before their first task. Their trainings are simulated
records that still grow (benchmarks/harness/growing.py), one of ten minutes and one of ten hours. It sends the requests
of the page over HTTP with a log-in; "cold" is a record that the server never read before. The table also shows the
share of a core that the api-server used, because other programs on the machine delay an answer but do not raise its
cost. With Chromium it also measures the time until the page shows something. Then ten pages stay open, five of each
kind, and each asks every five seconds. The list is measured with thousands of ended runs: while the server reads them
for the first time, and then page by page and search by search.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import httpx
import psutil

from benchmarks.harness.growing import growing
from benchmarks.harness.machine import machine_line, measure_sections, new_folder, say
from benchmarks.harness.rounds import ROOT
from dags.xcom_keys import TRAINING_PLACE
from pipeline.config.allowed import open_unless_set
from scripts.airflow.client import Login
from scripts.airflow.commands import own_airflow
from scripts.airflow.embedded import Embedded
from scripts.airflow.record import exclusive_home
from scripts.airflow.settings import Layout, environment
from scripts.airflow.signals import Signals
from scripts.chromium import CHROMIUM

DAG = "image_training"
MINUTES, OPEN, EVERY_S = 10, 5, 5.0
"""Length of the short record, pages of each record that are open at once, and how often a page asks."""
LOOKS = 10
VERSION = "/api/v2/version"
WANTED_S = 1.0
Query = Mapping[str, Any]


@dataclass
class Server:
    """An Airflow with trainings: their run ids, by the length of their records in words."""

    airflow: Embedded
    trainings: Mapping[str, Sequence[str]]
    newcomer: str
    """One more, for the first look at anything after the start."""

    @contextmanager
    def http(self) -> Iterator[httpx.Client]:
        """Requests with a log-in."""
        login = Login(self.airflow.url, self.airflow.password)
        with httpx.Client(base_url=self.airflow.url, auth=login, timeout=60, trust_env=False) as http:
            http.get("/api/v2/dags", params={"limit": 1}).raise_for_status()
            yield http

    @cached_property
    def processes(self) -> list[psutil.Process]:
        """Those of the api-server, which stay the same."""
        root = psutil.Process(self.airflow.record.processes["api-server"].pid)
        return [root, *root.children(recursive=True)]

    def environment(self) -> dict[str, str]:
        """Return the environment of the processes of the Airflow."""
        airflow = self.airflow
        return environment(airflow.layout, airflow.keys, airflow.record.port, os.environ)

    def cpu_s(self) -> float:
        """Return seconds of a core that they had so far."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def memory_mb(self) -> float:
        """That they hold now."""
        return sum(process.memory_info().rss for process in self.processes) / 1e6


@dataclass
class Answers:
    """Of one kind: of each its seconds, those of a core that the server took meanwhile, and bytes over the wire."""

    server: Server
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def ask(self, http: httpx.Client, path: str, query: Query) -> httpx.Response:
        """Ask once more."""
        begin, begin_cpu = time.perf_counter(), self.server.cpu_s()
        with http.stream("GET", path, params=query) as response:
            response.read()
        self.seconds.append(time.perf_counter() - begin)
        self.cpu_s.append(self.server.cpu_s() - begin_cpu)
        self.bytes.append(response.num_bytes_downloaded)
        return response.raise_for_status()

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"seconds": self.seconds, "cpu_s": self.cpu_s, "bytes": self.bytes}


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    open_unless_set()
    chosen = {name: measure for name, measure in SECTIONS.items() if options.only in ("", name)}
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # standard output is for the tables alone
        server = stack.enter_context(serving(options))
        stack.enter_context(redirect_stdout(sys.__stdout__))
        sections = {name: lambda given, measure=measure: measure(server, given) for name, measure in chosen.items()}
        measure_sections([machine_line("apache-airflow", "pandas", "bokeh"), load_line()], sections, options)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plugin", description="What the pages in Airflow take.")
    parser.add_argument("--hours", type=float, default=10, help="of the long record; ten are made in two minutes")
    parser.add_argument("--seconds", type=float, default=60, help="for which ten pages are open")
    parser.add_argument("--runs", type=int, default=10_000, help="ended runs in the list")
    parser.add_argument("--only", default="", choices=SECTIONS, help="of the sections")
    parser.add_argument("--quick", action="store_true", help="one hour, ten seconds and 500 runs, to see that all runs")
    parser.add_argument("--json", type=Path, help="file for every figure")
    options = parser.parse_args(arguments)
    if options.quick:
        options.hours, options.seconds, options.runs = 1, 10, 500
    return options


def load_line() -> str:
    """Return what else the machine does."""
    return f"Load of the machine before: {', '.join(f'{each:.1f}' for each in os.getloadavg())} (1, 5, 15 minutes)."


# --- what is watched --------------------------------------------------------------------------------------------------


@contextmanager
def serving(options: argparse.Namespace) -> Iterator[Server]:
    """The Airflow with the trainings, which grow."""
    folder = new_folder("plugin")
    short = [folder / f"short-{number}" for number in range(OPEN + 1)]
    long = [folder / f"long-{number}" for number in range(OPEN)]
    say(f"making a record of {options.hours:g} hours")
    layout = Layout(home=folder / "airflow", workspace=folder / "workspace", dags=ROOT / "dags")
    with ExitStack() as stack:
        stack.enter_context(growing([(options.hours, long[:1]), (MINUTES / 60, short)]))
        for other in long[1:]:
            other.symlink_to(long[0])  # another path is another record to the server
        signals = stack.enter_context(Signals())
        stack.enter_context(exclusive_home(layout.home))
        airflow, _ = stack.enter_context(own_airflow(layout, DAG, signals))
        names = {f"{MINUTES} minutes": short[1:], f"{options.hours:g} hours": long}
        ids = {name: [path.name for path in paths] for name, paths in names.items()}
        server = Server(airflow, ids, short[0].name)
        add_runs(server, [*short, *long])
        yield server


def add_runs(server: Server, trainings: Sequence[Path]) -> None:
    """Add a run for each, as the task that trains leaves it while it goes on; none of their tasks ever starts."""
    dag = f"/api/v2/dags/{DAG}"
    with server.http() as http:
        http.patch(dag, json={"is_paused": True}).raise_for_status()
        for training in trainings:
            run: dict[str, Any] = {"dag_run_id": training.name, "logical_date": None, "conf": {}}
            http.post(f"{dag}/dagRuns", json=run).raise_for_status()
            left = {"key": TRAINING_PLACE, "value": str(training)}
            entries = f"{dag}/dagRuns/{training.name}/taskInstances/report/xcomEntries"
            http.post(entries, json=left).raise_for_status()


def run_query(run_id: str, **further: float | str) -> dict[str, Any]:
    """Return what names a run, as the page does it."""
    return {"dag_id": DAG, "run_id": run_id, **further}


# --- the page ---------------------------------------------------------------------------------------------------------


def page_results(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a page asks when it opens, refreshes and looks closer; and how long a browser takes to draw it."""
    with server.http() as http:
        say("page: the first look after the start of Airflow")
        first = {"the first look of all": first_look(server, http)}
        say("page: each record")
        again = {name: looks(server, http, ids) for name, ids in server.trainings.items()}
    drawn = browser_results(server)
    tables = [answer_table(first | again), drawn_table(drawn), page_conclusion(options.hours, again, drawn)]
    print("\n".join(line for lines in tables for line in ["", *lines]), flush=True)
    plain = {name: {kind: each.plain() for kind, each in kinds.items()} for name, kinds in (first | again).items()}
    return {"answers": plain, "drawn": drawn}


def first_look(server: Server, http: httpx.Client) -> dict[str, Answers]:
    """Ask once, so that the server imports what it needs."""
    found = {kind: Answers(server) for kind in ("page", "all")}
    for (_, answers), path in zip(found.items(), ("run", "data"), strict=True):
        answers.ask(http, f"/tenfold/{path}", run_query(server.newcomer))
    return found


def looks(server: Server, http: httpx.Client, run_ids: Sequence[str]) -> dict[str, Answers]:
    """Every run opened once, cold; then one of them again and again."""
    kinds = ("page", "all, cold", "all", "a refresh", "a minute, closer")
    page, cold, whole, refresh, closer = (Answers(server) for _ in kinds)
    for run_id in run_ids:
        page.ask(http, "/tenfold/run", run_query(run_id))
        cold.ask(http, "/tenfold/data", run_query(run_id))
    for number in range(LOOKS):
        status = whole.ask(http, "/tenfold/data", run_query(run_ids[0])).json()
        settled, shown = status["settled"], status["frames"]
        refresh.ask(http, "/tenfold/data", run_query(run_ids[0], after=settled, shown=shown))
        start = settled * number / LOOKS  # never the same minute twice
        closer.ask(http, "/tenfold/data", run_query(run_ids[0], start=start, end=start + 60_000, shown=shown))
    return dict(zip(kinds, (page, cold, whole, refresh, closer), strict=True))


def answer_table(found: Mapping[str, Mapping[str, Answers]]) -> list[str]:
    """Return a line each kind of answer."""
    lines = [
        "| record | requested | median, ms | worst, ms | of a core, ms | KB over the wire |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {name} | {kind} | {1000 * median(each.seconds):,.0f} | {1000 * max(each.seconds):,.0f} | "
        f"{1000 * mean(each.cpu_s):,.0f} | {median(each.bytes) / 1000:,.1f} |"
        for name, kinds in found.items()
        for kind, each in kinds.items()
    ]


# --- a browser --------------------------------------------------------------------------------------------------------

DRAWN = (
    """document.querySelector("section[data-drawn]") && !document.querySelector("article section:not([data-drawn])")"""
)
MARKS = "performance.getEntriesByType('mark').map(({name, startTime}) => [name, startTime / 1000])"
"""What the page says of itself, by the browser's clock, which begins with the call of the page."""
IN_VIEW = {"numbers shown": "its numbers", "waiting drawn": "the first figures", "machine drawn": "all figures"}
Drawn = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]
"""Seconds by what is seen, of each visit, by the record and by the kind of visit."""


def browser_results(server: Server, visits: int = 6) -> Drawn:
    """Return seconds until something is seen; nothing if there is no Chromium."""
    if CHROMIUM is None:
        return {}
    from playwright.sync_api import sync_playwright

    say("page: in Chromium")
    with sync_playwright() as playwright:
        return {name: visited(playwright, server, ids[0], visits) for name, ids in server.trainings.items()}


def visited(playwright: Any, server: Server, run_id: str, visits: int) -> dict[str, list[dict[str, float]]]:
    """Visits of a browser that was never there, and of the same one again, which keeps what it compiled."""
    found: dict[str, list[dict[str, float]]] = {"first visit": [], "again": []}
    for _ in range(2):
        with (
            tempfile.TemporaryDirectory() as profile,
            playwright.chromium.launch_persistent_context(
                profile,
                executable_path=CHROMIUM,
                args=["--no-sandbox"],
                base_url=server.airflow.url,
                viewport={"width": 1400, "height": 1000},
            ) as context,
        ):
            log_in(context, server.airflow.password)
            found["first visit"].append(seen_s(context, run_id))
            found["again"] += [seen_s(context, run_id) for _ in range(visits)]
    return found


def log_in(context: Any, password: str) -> None:
    """Through Airflow's page."""
    page = context.new_page()
    page.goto("/")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", password)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda address: "login" not in address)
    page.close()


def seen_s(context: Any, run_id: str) -> dict[str, float]:
    """Return seconds from the call of the page until its numbers, its first figures and all of them are seen."""
    page = context.new_page()
    page.goto(f"/tenfold/run?{httpx.QueryParams(run_query(run_id))}", wait_until="commit")
    while not page.evaluate(DRAWN):  # the page's policy forbids the waiting that Playwright does in it
        time.sleep(0.1)
    marks = dict(page.evaluate(MARKS))
    page.close()
    return {name: float(marks[mark]) for mark, name in IN_VIEW.items()}


def drawn_table(drawn: Drawn) -> list[str]:
    """Return a line each record and kind of visit."""
    if not drawn:
        return ["Not seen in a browser: there is no Chromium."]
    lines = [f"| seen after, s (worst) | visit | {' | '.join(IN_VIEW.values())} |", "|---|---|---|---|---|"]
    for name, kinds in drawn.items():
        for kind, visits in kinds.items():
            seconds = [[visit[name] for visit in visits] for name in IN_VIEW.values()]
            cells = (f"{median(each):.2f} ({max(each):.2f})" for each in seconds)
            lines.append(f"| {name} | {kind} | {' | '.join(cells)} |")
    return lines


def page_conclusion(hours: float, answers: Mapping[str, Mapping[str, Answers]], drawn: Drawn) -> list[str]:
    """Whether the long record opens in time."""
    name = f"{hours:g} hours"
    opened = sum(median(answers[name][kind].seconds) for kind in ("page", "all, cold"))
    seen = (
        f"{section} after {median([each[section] for each in drawn[name]['again']]):.2f} s"
        for section in IN_VIEW.values()
    )
    shown = f", and shows {', '.join(seen)}" if drawn else ""
    return [f"Wanted: a long record opens in {WANTED_S:.0f} s; that of {name} is answered in {opened:.2f} s{shown}."]


# --- ten pages --------------------------------------------------------------------------------------------------------


@dataclass
class Busy:
    """What the api-server did for a while."""

    core_pct: float
    memory_mb: float
    others: Answers
    """To an ordinary call of Airflow meanwhile."""
    refreshes: Answers

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        answers = {"others": self.others.plain(), "refreshes": self.refreshes.plain()}
        return {"core_pct": self.core_pct, "memory_mb": self.memory_mb, **answers}


def load_results(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the api-server while nobody looks, and while ten pages are open."""
    say(f"load: {options.seconds / 2:.0f} s at rest")
    found = {"no page": watched(server, options.seconds / 2, [])}
    say(f"load: {options.seconds:.0f} s with {2 * OPEN} pages")
    found[f"{2 * OPEN} pages"] = watched(server, options.seconds, [i for ids in server.trainings.values() for i in ids])
    print("\n".join(["", *load_table(found)]), flush=True)
    return {name: busy.plain() for name, busy in found.items()}


def watched(server: Server, seconds: float, run_ids: Sequence[str]) -> Busy:
    """Open the pages, one after the other within the time after which each asks again; then measure for a while."""
    over, refreshes, others = threading.Event(), Answers(server), Answers(server)
    pages = [threading.Thread(target=stay_open, args=(server, run_id, refreshes, over)) for run_id in run_ids]
    for page in pages:
        page.start()
        time.sleep(EVERY_S / len(pages))
    time.sleep(EVERY_S)
    refreshes.seconds.clear()
    begin, begin_cpu = time.perf_counter(), server.cpu_s()
    with httpx.Client(base_url=server.airflow.url, trust_env=False, timeout=60) as http:
        while time.perf_counter() < begin + seconds:
            others.ask(http, VERSION, {})
            time.sleep(0.1)
    core_pct = 100 * (server.cpu_s() - begin_cpu) / (time.perf_counter() - begin)
    over.set()
    for page in pages:
        page.join()
    return Busy(core_pct, server.memory_mb(), others, refreshes)


def stay_open(server: Server, run_id: str, refreshes: Answers, over: threading.Event) -> None:
    """As static/run.js does: all of it, and then what is new."""
    with server.http() as http:
        found = Answers(server).ask(http, "/tenfold/data", run_query(run_id)).json()
        while not over.wait(EVERY_S):
            query = run_query(run_id, after=found["settled"], shown=found["frames"])
            found = refreshes.ask(http, "/tenfold/data", query).json()


def load_table(found: Mapping[str, Busy]) -> list[str]:
    """Return a line at rest, and one under load."""
    lines = [
        "| open | api-server, % of a core | its memory, MB | a refresh, ms: median (p95) | "
        f"`{VERSION}`, ms: median (p95) |",
        "|---|---|---|---|---|",
    ]
    for name, busy in found.items():
        cells = (f"{busy.core_pct:.1f}", f"{busy.memory_mb:,.0f}", spread(busy.refreshes), spread(busy.others))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    rest, full = found.values()
    more = (full.core_pct - rest.core_pct) / (2 * OPEN)
    calls = [f"{1000 * median(busy.others.seconds):.1f} ms" for busy in (rest, full)]
    sentence = f"Each open page takes {more:.1f}% of a core; an ordinary call of Airflow is answered in {calls[1]}"
    return [*lines, "", f"{sentence}, not {calls[0]}."]


def spread(answers: Answers) -> str:
    """In ms."""
    if len(answers.seconds) < 2:
        return ""
    return f"{1000 * median(answers.seconds):,.0f} ({1000 * quantiles(answers.seconds, n=20)[-1]:,.0f})"


# --- the list ---------------------------------------------------------------------------------------------------------

SEARCHES: Mapping[str, Query] = {
    "newest page": {},
    "a word": {"search": "resnet50"},
    "no match": {"search": "no-such-word"},
    "filters": {"search": "dataset:flowers accuracy>0.5 wait<5 epochs>=10"},
    "by accuracy": {"sort": "accuracy"},
    "by accuracy within each dataset": {"sort": "accuracy", "within": True},
    "last page, by model": {"sort": "model", "offset": 9900},
}
LIST_S = 0.5
"""Wanted: each request for the list is answered in this time."""


def list_results(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the list with thousands of ended runs."""
    say(f"list: adding {options.runs:,} runs")
    folder, before = new_folder("runs"), server.memory_mb()
    command = [sys.executable, "-m", "benchmarks.harness.ended_runs", str(options.runs), str(folder / "ended"), DAG]
    subprocess.run(command, cwd=ROOT, env=server.environment(), check=True, stdout=subprocess.DEVNULL)
    cold = Answers(server)
    found = {name: Answers(server) for name in (*SEARCHES, "the trend")}
    with server.http() as http:
        say("list: the first search")
        while cold.ask(http, "/tenfold/trainings.json", {"search": "no-such-word", "limit": 100}).json()["later"]:
            pass
        say("list: each page and search")
        for _ in range(LOOKS):
            for name, query in SEARCHES.items():
                found[name].ask(http, "/tenfold/trainings.json", {"limit": 100, **query})
            found["the trend"].ask(http, "/tenfold/trend.json", {"dataset_name": "flowers"})
    kinds = {"each part of the first search": cold, **found}
    name, worst = f"{options.runs:,} runs", max(max(each.seconds) for each in kinds.values())
    first = f"the first search took {len(cold.seconds)} requests and {sum(cold.seconds):.1f} s"
    memory = f"the server took {server.memory_mb() - before:,.0f} MB more"
    wanted = f"Wanted: each request in {LIST_S} s; the slowest one took {worst:.2f} s; {first}; {memory}."
    print("\n".join(["", *answer_table({name: kinds}), "", wanted]), flush=True)
    return {kind: each.plain() for kind, each in kinds.items()}


SECTIONS: dict[str, Callable[[Server, argparse.Namespace], Any]] = {
    "page": page_results,
    "load": load_results,
    "list": list_results,
}

if __name__ == "__main__":
    main()
