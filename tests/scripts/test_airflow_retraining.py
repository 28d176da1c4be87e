"""The runs of `retrain` that a backfill follows, over a real HTTP connection to a stand-in for Airflow."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from scripts.airflow.backfill import Outcome, RetrainRuns, failure_before
from scripts.airflow.client import Client
from scripts.airflow.commands import own_airflow
from scripts.airflow.embedded import Embedded
from scripts.airflow.errors import Failed
from scripts.airflow.progress import time_of
from scripts.airflow.settings import layout_from
from scripts.airflow.signals import Signals
from tests.scripts.answering import Answering, PausedTime

SINCE = "2026-02-01T12:00:00Z"
BEFORE, AFTER = "2026-02-01T11:59:00Z", "2026-02-01T12:01:00Z"


class Server(ThreadingHTTPServer):
    """Answers with one run, if the filters of a request match it, and with its task `choose`."""

    def __init__(self, run: dict[str, Any], choice: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.run = {"dag_run_id": "run", **run}
        self.choice = {"task_id": "choose", **choice}

    def matches(self, filters: dict[str, list[str]]) -> bool:
        due, ended, since = time_of(self.run["run_after"]), time_of(self.run["end_date"]), time_of(SINCE)
        assert due
        assert since
        results = {
            "run_after_gte": due >= since,
            "run_after_lt": due < since,
            "end_date_gte": ended is not None and ended >= since,
            "state": self.run["state"] in filters.get("state", []),
        }
        return all(result for name, result in results.items() if name in filters)


class Handler(Answering):
    server: Server

    def do_POST(self) -> None:
        self.answer(200, {"access_token": "t"})

    def do_GET(self) -> None:
        if self.path.split("?")[0].endswith("/taskInstances"):
            self.answer(200, {"task_instances": [self.server.choice], "total_entries": 1})
            return
        found = [self.server.run] if self.server.matches(parse_qs(urlsplit(self.path).query)) else []
        self.answer(200, {"dag_runs": found, "total_entries": len(found)})

    def do_PATCH(self) -> None:
        self.server.run["state"] = "failed"
        self.answer(200, {})


@pytest.fixture
def followed(request: pytest.FixtureRequest) -> Iterator[RetrainRuns]:
    server = Server(*request.param)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    since = time_of(SINCE)
    assert since
    with closing(Client(f"http://127.0.0.1:{server.server_port}", "p", "retrain", PausedTime().patience())) as client:
        yield RetrainRuns(client, since)
    server.shutdown()
    thread.join()
    server.server_close()


WAITING = {"state": "up_for_reschedule", "end_date": BEFORE}
CHOSE_BEFORE, CHOSE_AFTER = ({"state": "success", "end_date": at} for at in (BEFORE, AFTER))
ENDED = {"state": "failed", "end_date": AFTER}


@pytest.mark.parametrize(
    ("followed", "is_followed"),
    [
        (({"run_after": AFTER, "state": "queued", "end_date": None}, WAITING), True),
        (({"run_after": BEFORE, "state": "running", "end_date": None}, WAITING), True),
        (({"run_after": BEFORE, "state": "running", "end_date": None}, CHOSE_AFTER), True),
        (({"run_after": BEFORE, **ENDED}, CHOSE_AFTER), True),
        # Its training began before the backfill.
        (({"run_after": BEFORE, "state": "running", "end_date": None}, CHOSE_BEFORE), False),
        (({"run_after": BEFORE, **ENDED}, CHOSE_BEFORE), False),
        (({"run_after": BEFORE, "state": "success", "end_date": BEFORE}, CHOSE_BEFORE), False),
    ],
    indirect=["followed"],
)
def test_runs_that_chose_since_the_backfill_began_are_followed(followed: RetrainRuns, is_followed: bool) -> None:
    """A run of the schedule may have been due before the backfill, and waits until the backfill has ended."""
    assert [run["dag_run_id"] for run in followed.runs()] == is_followed * ["run"]


@pytest.mark.parametrize(
    ("followed", "is_ended"),
    [
        (({"run_after": AFTER, "state": "running", "end_date": None}, WAITING), True),
        (({"run_after": BEFORE, "state": "running", "end_date": None}, WAITING), False),
    ],
    indirect=["followed"],
)
def test_an_interruption_ends_only_runs_since_the_backfill_began(
    followed: RetrainRuns, is_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.airflow.follow.POLL_S", 0.01)
    followed.cancel()
    [run] = followed.runs()
    assert (run["state"] == "failed") is is_ended


def test_a_temporary_airflow_has_no_schedule_of_retrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, `make run` would start a training that nobody asked for."""
    monkeypatch.setenv("TENFOLD_RETRAIN_SCHEDULE", "@daily")
    seen = []

    def start(airflow: Embedded, signals: Signals, takes_tasks: object) -> None:
        seen.append({**os.environ, **airflow._settings}["TENFOLD_RETRAIN_SCHEDULE"])
        raise Failed("this test starts no process")

    monkeypatch.setattr(Embedded, "start", start)
    layout = layout_from({"TENFOLD_HOME": str(tmp_path), "TENFOLD_WORKSPACE": str(tmp_path)})
    with pytest.raises(Failed, match="no process"), own_airflow(layout, "image_dataset", Signals()):
        pass
    assert seen == [""]


class Trainings(ThreadingHTTPServer):
    """Answers with runs of `retrain`, each with its state and the dataset that it chose, and with one date.

    All of them have the same form, and were started by new datasets of the same names.
    """

    def __init__(
        self, runs: Sequence[tuple[str, str | None]], form: dict[str, str] | None = None, names: Sequence[str] = ()
    ) -> None:
        super().__init__(("127.0.0.1", 0), TrainingsHandler)
        self.form = form
        self.events = [{"extra": {"dataset_name": name}} for name in names]
        self.choices_read = 0
        self.states = [state for state, _ in runs]
        self.datasets: dict[str, object] = {f"run{number}": dataset for number, (_, dataset) in enumerate(runs)}
        self.datasets["date"] = {"dataset": "/workspace/datasets/birds/v1"}


def due(number: int) -> str:
    return f"2026-02-01T12:00:{number:02d}Z"


class TrainingsHandler(Answering):
    server: Trainings

    def do_POST(self) -> None:
        self.answer(200, {"access_token": "t"})

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.endswith("/taskInstances"):
            task = {"task_id": "train", "state": "failed", "try_number": 1, "map_index": 0, "end_date": AFTER}
            self.answer(200, {"task_instances": [task], "total_entries": 1})
        elif "/xcomEntries/" in path:
            self.server.choices_read += 1
            dataset = self.server.datasets[path.split("/dagRuns/")[1].split("/")[0]]
            self.answer(200 if dataset else 404, {"value": dataset})
        elif path.endswith("/upstreamAssetEvents"):
            self.answer(200, {"asset_events": self.server.events, "total_entries": len(self.server.events)})
        elif "/logs/" in path:
            self.answer(200, {"content": [{"error_detail": [{"exc_type": "ValueError", "exc_value": "no GPU"}]}]})
        else:
            runs = [
                {"dag_run_id": f"run{number}", "state": state, "conf": self.server.form, "run_after": due(number)}
                for number, state in enumerate(self.server.states)
            ]
            self.answer(200, {"dag_runs": runs, "total_entries": len(runs)})


BIRDS, CATS = "/workspace/datasets/birds/windows/w1", "/workspace/datasets/cats/v1"


@pytest.mark.parametrize(
    ("runs", "is_named"),
    [
        ([("failed", BIRDS)], True),
        ([("failed", BIRDS), ("success", None)], True),  # The newer run was skipped: the first one served it.
        ([("failed", BIRDS), ("success", CATS)], True),
        ([("success", BIRDS), ("failed", None)], True),  # Its choice failed.
        ([("failed", BIRDS), ("success", BIRDS)], False),
        ([("failed", CATS)], False),
        ([("success", None)], False),
        ([], False),
    ],
)
def test_a_failed_training_is_named_if_no_dataset_is_new(
    runs: Sequence[tuple[str, str | None]], is_named: bool
) -> None:
    lines = lines_of(Trainings(runs))
    assert len(lines) == 2 * is_named
    assert not is_named or ("trigger retrain" in lines[0] and "train failed: ValueError: no GPU" in lines[1])


@pytest.mark.parametrize(
    ("form", "names", "is_named"),
    [
        (None, ["cats"], False),
        (None, ["birds"], True),
        (None, ["birds", "cats"], True),
        ({"dataset_name": "cats"}, [], False),
        ({"dataset_name": "birds"}, [], True),
        ({"dataset_name": ""}, [], True),
    ],
)
def test_a_failed_choice_for_another_dataset_name_is_not_named(
    form: dict[str, str] | None, names: Sequence[str], is_named: bool
) -> None:
    assert bool(lines_of(Trainings([("success", BIRDS), ("failed", None)], form, names))) is is_named


def test_only_the_newest_runs_are_searched_for_a_failed_training() -> None:
    server = Trainings([("failed", BIRDS), *[("success", CATS)] * 30])
    assert lines_of(server) == []
    assert server.choices_read == 21  # That of the date is one of them.


def lines_of(server: Trainings) -> list[str]:
    """Return what a backfill without a new dataset says of the runs of `retrain`."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    since = time_of(SINCE)
    assert since
    skipped = Outcome(since, [], [{"dag_run_id": "date"}], [])
    with closing(Client(f"http://127.0.0.1:{server.server_port}", "p", "retrain", PausedTime().patience())) as trainer:
        lines = failure_before(trainer, trainer.of("image_dataset"), skipped)
    server.shutdown()
    thread.join()
    server.server_close()
    return lines
