"""A backfill over a real HTTP connection to a server whose database is locked now and then."""

import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import httpx
import pytest

from scripts.airflow import client as asking
from scripts.airflow import follow as following
from scripts.airflow.backfill import BackfillRuns, Outcome, aligned, date_of, row_of, summary
from scripts.airflow.client import BACKFILL_TIMEOUT_S, Client
from scripts.airflow.errors import Failed, Interrupted, Refused
from scripts.airflow.follow import follow, naming
from scripts.airflow.patience import ANSWER_S, Patience
from scripts.airflow.progress import Lines
from scripts.airflow.ready import end_forgotten_runs
from scripts.airflow.remote import Airflow
from scripts.airflow.request import Backfill, read_backfill
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals
from tests.scripts.answering import Alive, Answering, PausedTime

NOW = datetime(2026, 1, 9, tzinfo=UTC)
WANTED = read_backfill("dag", "2026-01-01", "2026-01-02", "", {"source_uri": "/data/{date}", "seed": 1}, NOW)
BY_HOUR = read_backfill("dag", "2026-01-01T07", "2026-01-01T08", "", {"source_uri": "/data/{date}/{hour}"}, NOW)
ALL_HOURS = read_backfill("dag", "2026-01-01", "2026-01-02", "", {"source_uri": "/data/{date}/{hour}"}, NOW)


def now() -> str:
    return datetime.now(UTC).isoformat()


class Server(ThreadingHTTPServer):
    """A server that creates a backfill of two runs, which end after `looks_to_the_end` requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.creations: list[int] = []
        """The status codes of the next creations. Later ones succeed."""
        self.made_though_it_failed = False
        self.answers_creations = True
        """Whether a creation is answered before the client gives up."""
        self.backfills: list[dict[str, Any]] = []
        self.cancelled: list[int] = []
        """The backfills that the client has cancelled."""
        self.runs: dict[int, dict[str, Any]] = {}
        self.days = [1, 2]
        self.dates: list[str] = []
        """The dates of a backfill that were never run, according to the schedule."""
        self.schedule = "backfills only (0 0 * * *)"
        self.looks_without_runs = 0
        """Looks at the runs until those of the first backfill appear: Airflow stores a backfill before its runs."""
        self.refusals_until_closed = 0
        """Creations that are refused until Airflow closes a backfill. Without it, only the client closes one."""
        self.looks_to_the_end = 3
        self.starts_late = False
        """Whether the scheduler, which has read the runs, starts one of them after they were marked as failed."""

    def create(self, body: dict[str, Any]) -> tuple[int, Any]:
        if any(not made["completed_at"] for made in self.backfills):
            self.refusals_until_closed -= 1
            if not self.refusals_until_closed:
                self.backfills[-1]["completed_at"] = now()
            return 409, {"detail": "There is already a running backfill for dag dag."}
        code = self.creations.pop(0) if self.creations else 200
        if code == 200 or self.made_though_it_failed:
            self.make(body)
        return code, self.backfills[-1] if code == 200 else {"detail": "Database is locked."}

    def make(self, body: dict[str, Any]) -> None:
        self.backfills.append({**body, "id": len(self.backfills), "created_at": now(), "completed_at": None})
        for day in self.days:
            self.runs[day] = {
                "dag_id": "dag",
                "dag_run_id": f"run{day}",
                "logical_date": f"2026-01-0{day}T00:00:00Z",
                "run_type": "backfill",
                "queued_at": now(),
                "start_date": now(),
                "end_date": None,
                "duration": None,
                "state": "queued",
            }

    def look(self) -> list[dict[str, Any]]:
        if self.backfills and self.looks_without_runs:
            self.looks_without_runs -= 1
            return []
        self.looks_to_the_end -= bool(self.runs)
        seen = [dict(run) for run in self.runs.values()]
        if self.starts_late:
            if self.backfills and self.backfills[-1]["completed_at"]:
                self.runs[2]["state"], self.starts_late = "running", False
            return seen
        self.move("queued", "running")
        if self.looks_to_the_end <= 0:
            self.move("running", "success")
        return list(self.runs.values())

    def move(self, before: str, after: str) -> None:
        for run in self.runs.values():
            if run["state"] == before:
                run |= {"state": after, "end_date": now(), "duration": 1.0}


class Handler(Answering):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/auth/token":
            self.answer(200, {"access_token": "t"})
            return
        if self.path.endswith("/dry_run"):
            self.answer(200, {"backfills": [{"logical_date": moment} for moment in self.server.dates]})
            return
        created = self.server.create(body)
        if not self.server.answers_creations:
            self.wait_for_hang_up()
        self.answer(*created)

    def do_GET(self) -> None:
        if self.path.startswith("/api/v2/backfills"):
            self.answer(200, {"backfills": self.server.backfills})
        elif self.path.endswith("/dags/dag"):
            self.answer(200, {"timetable_summary": self.server.schedule})
        else:
            runs = self.server.look()
            query = parse_qs(urlsplit(self.path).query)
            begin, count = (int(query[name][0]) for name in ("offset", "limit"))
            self.answer(200, {"dag_runs": runs[begin : begin + count], "total_entries": len(runs)})

    def do_PUT(self) -> None:
        backfill = int(self.path.split("/")[-2])
        self.server.cancelled.append(backfill)
        self.server.backfills[backfill]["completed_at"] = "2026-02-01T00:00:00Z"
        self.server.move("queued", "failed")
        self.answer(200, {})

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.runs[int(self.path[-1])]["state"] = body["state"]
        self.answer(200, {})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Interrupting(Signals):
    """A person who presses Ctrl-C as soon as there are runs."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def check(self) -> None:
        if self._server.runs:
            raise Interrupted(2)


def client_of(server: Server, dag_id: str = "dag") -> Client:
    return Client(f"http://127.0.0.1:{server.server_port}", "password", dag_id, PausedTime().patience())


def backfill(server: Server, signals: Signals) -> Outcome:
    with closing(client_of(server)) as client:
        return outcome_of(client, signals)


def outcome_of(client: Client, signals: Signals) -> Outcome:
    dates = BackfillRuns(client, WANTED)
    follow(Alive(), dates, Lines(io.StringIO()), signals)  # type: ignore[arg-type]
    dates.close()
    return dates.outcome()


def test_a_locked_database_is_retried_and_reported_once(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.creations = [500, 503, 503]
    outcome = backfill(server, Signals())
    assert [run["state"] for run in outcome.runs] == ["success", "success"]
    assert len(server.backfills) == 1
    assert capsys.readouterr().out.count("locked by another writer: trying again") == 1


def test_a_backfill_created_despite_a_failed_answer_is_not_created_twice(server: Server) -> None:
    server.creations, server.made_though_it_failed = [503], True
    outcome = backfill(server, Signals())
    assert [run["dag_run_id"] for run in outcome.runs] == ["run1", "run2"]
    assert len(server.backfills) == 1


def test_a_backfill_whose_creation_failed_is_created_again_when_airflow_has_closed_it(server: Server) -> None:
    server.days = []
    server.make(WANTED.body())
    server.days, server.refusals_until_closed = [1, 2], 3
    assert [run["state"] for run in backfill(server, Signals()).runs] == ["success", "success"]
    assert server.cancelled == [1]


def test_a_backfill_is_not_cancelled_while_its_runs_are_created(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow would keep these runs in the queue for ever, and a second backfill would have none."""
    server.creations, server.made_though_it_failed, server.looks_without_runs = [504], True, 5
    outcome = backfill(server, Signals())
    assert [run["state"] for run in outcome.runs] == ["success", "success"]
    assert (len(server.backfills), server.cancelled) == (1, [0])
    assert capsys.readouterr().out.count("Airflow is still creating the runs of a backfill") == 1


def test_runs_are_followed_if_airflow_closed_their_backfill_while_it_created_them(server: Server) -> None:
    """It closes a backfill that has no runs after two minutes. Another backfill then finds these runs under way."""
    server.make(WANTED.body())
    server.looks_without_runs, server.refusals_until_closed = 3, 1
    days, server.days = server.days, []
    outcome = backfill(server, Signals())
    assert len(server.backfills) == 2
    assert [run["logical_date"][8:10] for run in outcome.runs] == [f"0{day}" for day in days]


def test_a_run_of_the_schedule_is_no_run_of_a_backfill(server: Server) -> None:
    """The scheduler may queue a run of these dates while Airflow still creates the runs of the backfill."""
    server.make(WANTED.body())
    server.runs[2]["run_type"], made = "scheduled", server.runs.pop(1)
    with closing(client_of(server)) as client:
        dates = BackfillRuns(client, WANTED)
        dates.cancel()
        assert (server.cancelled, server.runs[2]["state"]) == ([], "running")
        server.move("running", "success")
        server.refusals_until_closed = 1
        server.runs[1] = made
        dates.start()
        assert server.cancelled == []
        outcome = dates.outcome()
    assert [run["dag_run_id"] for run in outcome.runs] == ["run1"]
    assert [run["dag_run_id"] for run in outcome.skipped] == ["run2"]


def test_an_interruption_does_not_cancel_a_backfill_whose_runs_are_created(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.make(WANTED.body())
    server.looks_without_runs = 1
    with closing(client_of(server)) as client:
        BackfillRuns(client, WANTED).cancel()
    assert server.cancelled == []
    assert "The backfill is not cancelled, because Airflow is still creating its runs" in capsys.readouterr().out


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_interruption_ends_runs_whose_backfill_airflow_has_closed(server: Server, is_closed: bool) -> None:
    """Another backfill then finds these runs under way. Airflow closes it, too, because it has no runs of its own."""
    server.make(WANTED.body())
    server.looks_without_runs, server.refusals_until_closed, server.looks_to_the_end = 3, 1, 1000
    server.days = []
    with closing(client_of(server)) as client:
        dates = BackfillRuns(client, WANTED)
        dates.start()
        server.backfills[1]["completed_at"] = now() if is_closed else None
        dates.cancel()
    assert len(server.backfills) == 2
    assert server.cancelled == ([] if is_closed else [1])
    assert [run["state"] for run in server.runs.values()] == ["failed", "failed"]


def test_a_backfill_without_runs_is_cancelled_if_airflow_has_created_it(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow creates no runs if it leaves out all dates."""
    server.days = []
    with closing(client_of(server)) as client:
        dates = BackfillRuns(client, WANTED)
        dates.start()
        dates.cancel()
    assert server.cancelled == [0]
    assert "still creating" not in capsys.readouterr().out


def test_the_same_backfill_is_followed_if_it_is_running(server: Server) -> None:
    server.make(WANTED.body())
    outcome = backfill(server, Signals())
    assert [run["dag_run_id"] for run in outcome.runs] == ["run1", "run2"]
    assert len(server.backfills) == 1


def test_a_finished_backfill_is_closed(server: Server) -> None:
    backfill(server, Signals())
    assert server.backfills[0]["completed_at"]


def test_an_ended_backfill_that_is_not_closed_yet_delays_the_next_one(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.make({**WANTED.body(), "dag_run_conf": {}})
    server.move("queued", "success")
    server.refusals_until_closed = 2
    backfill(server, Signals())
    assert len(server.backfills) == 2
    assert capsys.readouterr().out.count("or has not closed an earlier one yet: trying again") == 1


def test_runs_are_read_from_several_pages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_PAGE", 1)
    assert [run["dag_run_id"] for run in backfill(server, Signals()).runs] == ["run1", "run2"]


def test_another_running_backfill_is_not_changed(server: Server) -> None:
    server.make({**WANTED.body(), "dag_run_conf": {}})
    with pytest.raises(Refused, match=r"another backfill of dag is running, from 2026-01-01.* wait until it ends"):
        backfill(server, Signals())
    assert server.backfills[0]["completed_at"] is None


def test_the_error_for_a_refusal_contains_the_message_of_airflow(server: Server) -> None:
    server.creations = [422]
    with pytest.raises(Failed, match=r"refused to start the backfill of dag from 2026-01-01.*: .*Database is locked"):
        backfill(server, Signals())


def test_an_interruption_ends_the_backfill_and_its_runs(server: Server) -> None:
    server.looks_to_the_end = 1000
    with pytest.raises(Interrupted):
        backfill(server, Interrupting(server))
    assert server.backfills[0]["completed_at"]
    assert [run["state"] for run in server.runs.values()] == ["failed", "failed"]


def test_an_interruption_ends_runs_that_start_during_the_cancellation(server: Server) -> None:
    server.looks_to_the_end, server.starts_late = 1000, True
    with pytest.raises(Interrupted):
        backfill(server, Interrupting(server))
    assert [run["state"] for run in server.runs.values()] == ["failed", "failed"]


def test_a_backfill_of_a_killed_command_is_ended_by_the_next_command_of_any_dag(server: Server) -> None:
    server.make(WANTED.body())
    with closing(client_of(server, "another")) as client:
        end_forgotten_runs(client)
    assert server.backfills[0]["completed_at"]
    assert [run["state"] for run in server.runs.values()] == ["failed", "failed"]


def test_skipped_runs_and_days_without_a_run_are_distinguished(server: Server) -> None:
    server.days = [1]
    server.make(WANTED.body())
    server.move("queued", "success")
    server.backfills, server.days = [], []
    outcome = backfill(server, Signals())
    assert (outcome.runs, [run["dag_run_id"] for run in outcome.skipped]) == ([], ["run1"])
    assert outcome.missing == ["2026-01-02"]


@pytest.mark.parametrize(
    ("request_", "dates", "schedule", "what"),
    [
        (BY_HOUR, [], "0 0 * * *", "has {hour}, so it needs .*, but .* has 0 runs from 2026-01-01T07:00:.*: set"),
        (
            BY_HOUR,
            ["2026-01-01T07:00Z"],
            "0 0 * * * in Europe/Berlin",
            "has 1 run from .*: set TENFOLD_BACKFILL_SCHEDULE=@hourly",
        ),
        (ALL_HOURS, ["2026-01-01T00:00Z", "2026-01-02T00:00Z"], "0 0 * * *", "has 2 runs from .*: set"),
        (
            WANTED,
            [f"2026-01-01T{n // 60:02d}:{n % 60:02d}Z" for n in range(1001)],
            "0 0 * * *",
            "1001 runs.* at most 1000",
        ),
        (
            replace(WANTED, dag_id="image_dataset"),
            [],
            "backfills only (0 0 * * * in Europe/Berlin)",
            "TENFOLD_TIMEZONE is UTC here, but Europe/Berlin in Airflow: set TENFOLD_TIMEZONE",
        ),
    ],
)
def test_a_backfill_with_other_runs_than_those_asked_for_is_refused(
    server: Server, request_: Backfill, dates: list[str], schedule: str, what: str
) -> None:
    server.dates, server.schedule = dates, schedule
    with closing(client_of(server)) as client, pytest.raises(Refused, match=what):
        BackfillRuns(client, request_).start()
    assert server.backfills == []


def test_a_manual_run_with_the_date_of_a_run_is_skipped(server: Server) -> None:
    server.dates = ["2026-01-01T00:00Z", "2026-01-02T00:00Z"]
    server.make(WANTED.body())
    server.move("queued", "success")
    server.backfills, server.days = [], []
    server.runs[1]["run_type"] = "manual"
    outcome = backfill(server, Signals())
    assert [run["dag_run_id"] for run in outcome.skipped] == ["run1", "run2"]
    assert (outcome.runs, outcome.missing, outcome.refused) == ([], [], [])


def test_runs_of_another_schedule_are_no_runs_of_a_backfill(server: Server) -> None:
    """Airflow names a run after the time at which it was due: that of a day is also that of its last hour."""
    server.dates = ["2026-01-01T00:00Z", "2026-01-02T00:00Z"]
    server.days = [1]
    server.make(WANTED.body())
    server.move("queued", "success")
    server.runs[1]["logical_date"] = "2026-01-01T23:00:00Z"
    server.backfills, server.days = [], []
    outcome = backfill(server, Signals())
    assert (outcome.runs, outcome.skipped, outcome.missing) == ([], [], [])
    assert outcome.refused == ["2026-01-01", "2026-01-02"]


@pytest.mark.parametrize(("state", "is_refused"), [("success", True), ("running", False)])
def test_only_runs_under_way_count_as_runs_of_the_schedule(server: Server, state: str, is_refused: bool) -> None:
    server.make(ALL_HOURS.body())
    server.backfills, server.looks_to_the_end = [], 1000
    server.move("queued", state)
    for hour, run in enumerate(server.runs.values(), 7):
        run["logical_date"] = f"2026-01-01T{hour:02d}:00:00Z"
    server.dates = ["2026-01-01T00:00Z", "2026-01-02T00:00Z"]
    with closing(client_of(server)) as client, pytest.raises(Refused) if is_refused else nullcontext():
        BackfillRuns(client, ALL_HOURS).start()


@pytest.mark.parametrize(
    ("request_", "dates"),
    [
        (BY_HOUR, ["2026-01-01T07:00Z", "2026-01-01T08:00Z"]),
        (ALL_HOURS, ["2026-01-01T07:00Z", "2026-01-02T07:00Z"]),  # The schedule of the DAG has one hour of each day.
        (WANTED, []),
        (replace(WANTED, first=WANTED.first.replace(tzinfo=ZoneInfo("Europe/Berlin"))), []),  # a DAG of one's own
    ],
)
def test_a_backfill_with_the_runs_asked_for_is_created(server: Server, request_: Backfill, dates: list[str]) -> None:
    server.dates = dates
    with closing(client_of(server)) as client:
        BackfillRuns(client, request_).start()
    assert len(server.backfills) == 1


def test_a_database_that_stays_locked_raises_its_error() -> None:
    request = httpx.Request("GET", "http://test")

    def locked() -> None:
        httpx.Response(503, request=request).raise_for_status()

    with pytest.raises(httpx.HTTPStatusError):
        Patience(lambda _: None, limit_s=0.01).until_answered(locked)


def test_a_creation_whose_answer_is_late_is_not_repeated(server: Server) -> None:
    server.answers_creations = False
    client = client_of(server)
    client.backfill_s = 1.0
    with closing(client):
        outcome = outcome_of(client, Signals())
    assert [run["state"] for run in outcome.runs] == ["success", "success"]
    assert len(server.backfills) == 1


def test_the_command_looks_for_a_backfill_before_airflow_closes_it() -> None:
    """Airflow closes a backfill without runs. The command would then not know when its own backfill began."""
    airflow = find_spec("airflow.jobs")
    assert airflow
    assert airflow.submodule_search_locations
    scheduler = Path(airflow.submodule_search_locations[0]) / "scheduler_job_runner.py"
    [minutes] = re.findall(r"initializing_cutoff = now - timedelta\(minutes=(\d+)\)", scheduler.read_text())
    assert 60 * int(minutes) > BACKFILL_TIMEOUT_S + ANSWER_S


def test_a_backfill_that_continues_is_named_when_the_patience_ends(server: Server) -> None:
    server.creations = [503] * 10**4
    airflow = Airflow(Layout(Path(), Path(), Path()), "http://api", "p", pages="http://ui")
    client = client_of(server)
    message = (
        "the backfill of dag from 2026-01-01 to 2026-01-02 continues without this command.*http://ui/dags/dag/backfills"
    )
    dates = BackfillRuns(client, WANTED)
    with closing(client), pytest.raises(Failed, match=message), naming(airflow, dates):
        follow(airflow, dates, Lines(io.StringIO()), Signals())


SINCE = datetime.fromisoformat("2026-02-01T12:00:00Z")
MADE = {"version": "abc", "examples": {"train": 20, "validation": 4}, "already_complete": False}


def run(state: str, queued: str = "2026-02-01T12:00:01Z", ended: str | None = "2026-02-01T12:00:05Z") -> Any:
    return {"logical_date": "2026-01-01T00:00:00Z", "state": state, "queued_at": queued, "end_date": ended}


@pytest.mark.parametrize(
    ("one", "made", "row"),
    [
        (run("success"), MADE, ("24", "abc", "new")),
        (run("success"), {**MADE, "already_complete": True}, ("24", "abc", "already complete")),
        (run("failed"), {}, ("", "", "failed")),
    ],
)
def test_the_row_of_a_date_that_was_run(one: Any, made: dict[str, Any], row: tuple[str, ...]) -> None:
    assert row_of(one, made, Outcome(SINCE, [one], [], [])) == row


@pytest.mark.parametrize(
    ("request_", "moment", "name"),
    [
        (WANTED, "2026-01-01T00:00:00Z", "2026-01-01"),
        (WANTED, "2025-12-31T23:00:00Z", "2026-01-01"),
        (BY_HOUR, "2026-01-01T07:00:00Z", "2026-01-01T07:00"),
    ],
)
def test_a_run_has_the_name_of_its_partition(
    request_: Backfill, moment: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "T23" in moment:
        monkeypatch.setenv("TENFOLD_TIMEZONE", "Europe/Berlin")
    assert date_of({"logical_date": moment}, request_) == name


@pytest.mark.parametrize(
    ("ended", "word"),
    [
        ("2026-01-31T00:00:00Z", "skipped: already made"),
        ("2026-02-01T12:00:05Z", "skipped: already running"),
        (None, "skipped: already running"),
    ],
)
def test_the_row_of_a_date_that_was_skipped(ended: str | None, word: str) -> None:
    one = run("success", "2026-01-30T00:00:00Z", ended)
    assert row_of(one, MADE, Outcome(SINCE, [], [one], [])) == ("24", "abc", word)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("date", "examples", "version", "outcome"), ("2026-01-01", "5", "ab", "new")]
    assert aligned(rows) == ["date        examples  version  outcome", "2026-01-01         5  ab       new"]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(SINCE, [run("success")], [], []), "1 of 1 dates run"),
        (
            Outcome(SINCE, [run("success"), run("failed")], [run("success")], ["2026-01-09"]),
            "2 of 4 dates run, 1 of them failed (run the same command to repeat the failed dates), 1 skipped (set "
            "REPROCESS=all to run them again), 1 without a run, because the schedule of the DAG leaves them out",
        ),
        (
            Outcome(SINCE, [run("success")], [], [], ["2026-01-09"]),
            "1 of 2 dates run, 2026-01-09 not run, because Airflow has a run of an earlier schedule with the same name "
            "(delete that run in Airflow's UI, then run the same command again)",
        ),
    ],
)
def test_summary(outcome: Outcome, text: str) -> None:
    assert summary(outcome) == text
