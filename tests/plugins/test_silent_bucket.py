"""Response times of Airflow while many users watch trainings in a bucket that never answers."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from dags.xcom_keys import TRAINING_PLACE
from scripts.airflow.settings import ROOT, Layout
from standins.fake_gcs import FakeGcs
from tests.plugins.airflow_ui import DAG, Ui, address, started
from tests.waiting import simulated_work

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(600)]
TRAININGS, PAGES_OF_EACH = 12, 4
"""More pages than the 40 threads that Airflow's own pages share."""
EVERY_S = 5.0
"""Seconds between two requests of an open page."""
ORDINARY = ("/api/v2/version", "/api/v2/dags", f"/api/v2/dags/{DAG}/dagRuns", "/dags")
LOOKS = 60


@pytest.fixture
def ui(tmp_path: Path, gcs: FakeGcs) -> Iterator[Ui]:
    """An Airflow that uses the fake bucket, with runs whose trainings are in it."""
    gcs.create_bucket("silent")
    with started(Layout(tmp_path / "home", tmp_path / "workspace", ROOT / "dags")) as ui:
        with ui.requests_of("admin") as http:  # so that no task of these runs uses the machine
            http.patch(f"/api/v2/dags/{DAG}", json={"is_paused": True}).raise_for_status()
        for number in range(TRAININGS + 1):
            gcs.put("silent", f"runs/{number}/run.json", b"{}")
            leave(ui, f"run {number}", f"gs://silent/runs/{number}")
        yield ui
        gcs.faults.clear()  # otherwise the API server takes long to end


def leave(ui: Ui, run_id: str, training: str) -> None:
    """Add a run that has ended, and that stored this path of its training."""
    run = f"/api/v2/dags/{DAG}/dagRuns/{quote(run_id, safe='')}"
    with ui.requests_of("admin") as http:
        trigger = {"dag_run_id": run_id, "logical_date": None, "conf": {"source_uri": "/not/there"}}
        http.post(f"/api/v2/dags/{DAG}/dagRuns", json=trigger).raise_for_status()
        left = {"key": TRAINING_PLACE, "value": training}
        http.post(f"{run}/taskInstances/report/xcomEntries", json=left).raise_for_status()
        http.patch(run, json={"state": "failed"}).raise_for_status()


@contextmanager
def open_pages(http: httpx.Client) -> Iterator[list[float]]:
    """Send the requests of open browser pages. Yield the seconds that their answers took."""
    took: list[float] = []
    ended = threading.Event()

    def look(run_id: str) -> None:
        while not ended.is_set():
            begin = time.monotonic()
            text = http.get(address("/data", run_id)).json()["status"]["words"]
            took.append(time.monotonic() - begin)
            assert "has not answered within" in text
            ended.wait(EVERY_S)

    runs = [f"run {number}" for number in range(TRAININGS)] * PAGES_OF_EACH
    threads = [threading.Thread(target=look, args=(run_id,)) for run_id in runs]
    for thread in threads:
        thread.start()
    try:
        yield took
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def times(http: httpx.Client) -> dict[str, list[float]]:
    """Return the milliseconds of each request, for each ordinary page."""
    took: dict[str, list[float]] = {path: [] for path in ORDINARY}
    for _ in range(LOOKS):
        for path, each in took.items():
            begin = time.monotonic()
            http.get(path, follow_redirects=True).raise_for_status()
            each.append(1000 * (time.monotonic() - begin))
        simulated_work(0.2)  # The user reads the page.
    return took


def test_ordinary_pages_take_at_most_twice_their_time_during_an_outage(
    ui: Ui, gcs: FakeGcs, capsys: pytest.CaptureFixture[str]
) -> None:
    with ui.requests_of("reader") as http, ui.requests_of("reader") as pages:
        pages.get(address("/data", f"run {TRAININGS}")).raise_for_status()  # the first one imports Bokeh
        times(http)  # fills caches
        alone = times(http)
        gcs.fail("stall", matches="runs/", times=None)
        with open_pages(pages) as answers:
            beside = times(http)
    with capsys.disabled():
        print("", *(_compared(path, alone[path], beside[path]) for path in ORDINARY), sep="\n")
        print(f"{len(answers)} answers to {TRAININGS * PAGES_OF_EACH} pages: longest {max(answers):.1f} s")
    for path in ORDINARY:
        assert statistics.median(beside[path]) < 2 * statistics.median(alone[path]), path


def _compared(path: str, alone: list[float], beside: list[float]) -> str:
    medians, longest = ([reduce(each) for each in (alone, beside)] for reduce in (statistics.median, max))
    return (
        f"{path}: median {medians[0]:.0f} ms alone, {medians[1]:.0f} ms beside open pages; "
        f"longest {longest[0]:.0f} and {longest[1]:.0f} ms"
    )
