"""Each page on each kind of screen: nothing is cut off, nothing scrolls sideways, and no console message appears.

The screenshots are left in the folder that TENFOLD_TEST_SCREENSHOTS names. Select some of the tests with `-k`, such as
`-k "list_of_20 and 390"`: only the runs of their pages are made.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from benchmarks.harness.ended_runs import add_runs, write_training
from benchmarks.long_record import write_training as write_long_training
from pipeline.config.automatic import training_settings
from pipeline.monitor.live import LiveVerdict
from pipeline.monitor.row import Row
from pipeline.monitor.verdict import diagnose_run, numbers
from pipeline.report import write_report
from pipeline.runs.files import OFFERS, RESULT, RUN_FORMAT, VERDICT
from tests.axe import SIZES, serious
from tests.browser import CUT_KEYS, CUT_LEGENDS, CUT_TITLES, Seen, browser, patient
from tests.firefox import Firefox, firefox
from tests.page_faults import faults
from tests.plugins.site import login_of, serving
from tests.plugins.test_dates_page import add_dated_run
from tests.plugins.test_waits import set_tasks
from tests.report.rich import Records, rich_run, sample
from tests.report.test_report import picture
from tests.runs.test_dates import build_date, make_date
from tests.waiting import until

__all__ = ["browser"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    # Airflow imports Starlette's test client, which warns that it prefers another HTTP library.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]
SCREENSHOTS = os.environ.get("TENFOLD_TEST_SCREENSHOTS", "")
"""Folder for the screenshots. Without it, each is in the temporary folder of its test."""
HOUR_S = 3600.0
FAILURES = {
    "extract": "source_uri must be a folder, a list or a table, got '/data/flowrs'. Did you mean '/data/flowers'?",
    "extract_range": "/data/flowers/roses/0001.jpg: Permission denied. Let the user of the worker read it.",
    "shard": "No space left on device: /workspace/datasets/flowers. 0.4 GB are free, and the shards take 2.1 GB.",
    "upload.commit": "6 of 16 (37.5%) images were rejected, and max_rejected_fraction allows 10.0%.",
    "train": "the loss became nan at step 120. Lower learning_rate (now 0.5), or look at the examples of this batch.",
    "report": "gs://bucket/runs/flowers has not answered within 4 s.",
}
"""For each stage, the task that failed, with its message."""
OPEN_ALL = """document.querySelectorAll("details:not([open])").forEach(each => { each.open = true; })"""
LISTED = """document.querySelector(".list tbody tr") || document.querySelector(".empty:not([hidden])")"""
TRENDED = """document.querySelector(".list tbody tr") && document.querySelector(".trends")"""
CHARTED = (
    """document.querySelector("section[data-drawn]") && !document.querySelector("article section:not([data-drawn])")"""
)
PLOTTED = """document.readyState == "complete" && Bokeh.documents.length && Bokeh.documents[0].is_idle"""
CALENDAR = """document.querySelector(".calendar")"""
FILLED_IN = """document.querySelector("#like option")"""
CHANGEABLE = f"""({CHARTED}) && document.querySelector("details .change button")"""
SAID = """document.querySelector(".empty:not([hidden])")"""


class Made:
    """The runs of a page, and its address. Users see the runs of one DAG only, which has a team of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        from tests.plugins.airflow_runs import add_dag

        self.dag = name.replace(" ", "_")
        self.teams = [self.dag]
        self.folder = folder / self.dag
        self.folder.mkdir()
        add_dag(self.dag, self.dag)

    def add(self, run_id: str, training: Path | None, **run: Any) -> None:
        from tests.plugins.airflow_runs import add_run

        add_run(self.dag, run_id, training and str(training), **run)
        if run.get("state") == "running":
            set_tasks("running", dag_id=self.dag, run_id=run_id)

    def address(self, page: str, *run_ids: str) -> str:
        """Return the address of a page for some runs."""
        pairs = [pair for run_id in run_ids for pair in (("dag_id", self.dag), ("run_id", run_id))]
        return f"/tenfold/{page}?{urlencode(pairs)}"


def list_of(number: int, made: Made) -> str:
    """Return the address of the list of so many ended trainings."""
    dataset = made.folder / "dataset"
    dataset.mkdir()
    splits = {"train": {"examples": 500}, "validation": {"examples": 100}}
    (dataset / "dataset.json").write_text(json.dumps({"splits": splits, "rejected": {"count": 3}}))
    random = Random(number)
    trainings = [write_training(made.folder / f"{made.dag}-{each}", random) for each in range(number)]
    add_runs(made.dag, trainings, dataset)
    return "/tenfold/trainings"


def list_of_regressions(made: Made) -> str:
    """Return the address of a list of trainings that predict a number."""
    address = list_of(40, made)
    for path in made.folder.glob("*/result.json"):
        result = json.loads(path.read_text())
        error = 250_000 * result["metrics"]["val_accuracy"]
        path.write_text(json.dumps({**result, "metrics": {"val_mae": error}, "baselines": {"val_mae": 300_000}}))
    return address


def list_of_failures(made: Made) -> str:
    """Return the address of a list with a run that failed at each stage, one that waits and one that trains."""
    for task, message in FAILURES.items():
        trained = task in ("train", "report")
        training = rich_run(made.folder / task, epochs=1, steps=20) if trained else None
        if task == "train":
            (made.folder / task / RESULT).unlink()
        made.add(f"manual__2026-01-01T00:00:00+00:00_{task}", training, state="failed", failed={task: 1}, error=message)
    made.add("scheduled__2026-01-02T00:00:00+00:00", slow_training(made.folder / "slow"), state="running")
    return "/tenfold/trainings"


def failed_tab(task: str, made: Made) -> str:
    """Return the address of the tab of a run that failed in a task."""
    list_of_failures(made)
    return made.address("run", f"manual__2026-01-01T00:00:00+00:00_{task}")


def described(folder: Path, steps: int, **settings: Any) -> Path:
    """Let a training say how many steps its epochs have, and its settings."""
    about = json.loads((folder / "run.json").read_text())
    about |= {"steps_per_epoch": steps, "settings": {**about["settings"], **settings}}
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def slow_training(folder: Path) -> Path:
    """Write a training with steps of 40 s that still goes on."""
    rich_run(folder, epochs=1, steps=1)
    for name in ("result.json", "evaluation.json", "predictions.npz"):
        (folder / name).unlink()
    for part in ("record", "overview", "servers"):
        shutil.rmtree(folder / part)
    random, steps = np.random.default_rng(1), 25
    records, live = Records(folder), LiveVerdict(lambda verdict: verdict.sentence, folder / VERDICT)
    now = time.time() - 40.0 * steps
    for step in range(1, steps + 1):
        for second in range(40):
            row = Row("samples", now + second, step - 1, {**sample(random, busy=97), "sys/cores": 8.0})
            for sink in (records, live):
                sink.write(row)
        now += 40.0
        times = {"input/wait_ms": 300 * random.random(), "step/compute_ms": 39_700.0, "step/host_ms": 0.4}
        whole = {"step/time_ms": sum(times.values()), "input/examples": 64, "epoch": 1, "first": float(step == 1)}
        for sink in (records, live):
            sink.write(Row("batches", now, step, {**times, "step/checkpoint_ms": 0.0, **whole}))
    records.close()
    return described(folder, 250, epochs=10, model="resnet50", dataset_name="slow_steps", batch_size=64)


def tab_of(write: Callable[[Path], Path], state: str, made: Made) -> str:
    """Return the address of the tab of a training."""
    made.add("manual__2026-01-01T00:00:00+00:00", write(made.folder / "training"), state=state)
    return made.address("run", "manual__2026-01-01T00:00:00+00:00")


def two_servers(folder: Path) -> Path:
    complete(rich_run(folder, servers=2, gpus=8))
    return described(folder, 60, epochs=6, num_training_servers=2, dataset_name="imagenet", model="resnet50")


def ten_hours(folder: Path) -> Path:
    write_long_training(folder, 10 * HOUR_S, servers=1, gpus=8)
    (folder / RESULT).write_text(json.dumps({"metrics": {"val_accuracy": 0.5}}))
    complete(folder)
    return described(folder, 9000, dataset_name="imagenet", model="resnet50")


def complete(folder: Path) -> None:
    """Add the verdict to the result of a training."""
    verdict, result = diagnose_run(folder), json.loads((folder / RESULT).read_text())
    judged = {"verdict": verdict.sentence, "limit": verdict.limit.value, **numbers(verdict)}
    (folder / RESULT).write_text(json.dumps({**result, **judged}))


def report_of(write: Callable[[Path], Path], made: Made) -> str:
    """Return the address of the report of a training."""
    training = write(made.folder / "training")
    names = [f"shapes/a/long/path/of/one/image-{number:05d}.jpg" for number in range(40)]
    write_report(training, [(name, picture("teal")) for name in names])
    made.add("manual__2026-01-01T00:00:00+00:00", training)
    return made.address("report", "manual__2026-01-01T00:00:00+00:00")


def comparison_of(number: int, made: Made) -> str:
    """Return the address of the comparison of some trainings. The first two differ only in the seed."""
    run_ids = [f"manual__2026-01-{1 + each:02d}T00:00:00+00:00" for each in range(number)]
    for each, run_id in enumerate(run_ids):
        training = rich_run(made.folder / run_id, seed=each, compute_ms=60.0 + 2 * each, epochs=4, steps=40)
        described(training, 40, seed=each, batch_size=32 + max(1, each))
        about = json.loads((training / "run.json").read_text())
        (training / "run.json").write_text(json.dumps({**about, "run_id": run_id}))
        made.add(run_id, training)
    return made.address("compare", *run_ids)


def changing_tab(made: Made) -> str:
    """Return the address of the tab of a training that a person can change, with an offer of the training."""
    training = rich_run(made.folder / "training", begin=time.time() - 40)
    (training / RESULT).unlink()
    values = training_settings({"epochs": 9}).model_dump()
    (training / "run.json").write_text(json.dumps({"format": RUN_FORMAT, "settings": values, "steps_per_epoch": 60}))
    offer = {"change": {"checkpoint_steps": 50}, "words": "1.6 times faster (1.5 to 1.7)", "promised": [1.6, 1.5, 1.7]}
    (training / OFFERS).write_text(json.dumps({"offers": [offer]}))
    made.add("manual__2026-01-01T00:00:00+00:00", training, state="running")
    return made.address("run", "manual__2026-01-01T00:00:00+00:00")


def start_page(made: Made) -> str:
    """Return the address of the page that starts a run."""
    from tests.plugins.airflow_runs import add_dag

    add_dag("image_training", "starters")
    made.teams.append("starters")
    return "/tenfold/start"


def dates_page(made: Made) -> str:
    """Return the address of the page of a dataset with three dates."""
    for day, state in ((1, "success"), (2, "failed"), (4, "success")):
        date, is_refused = f"2026-01-{day:02d}", state == "failed"
        make_date(made.folder / "birds", date, broken=3 if is_refused else 0)
        build_date(made.folder / "birds", made.folder / "w", date, refused=is_refused)
        add_dated_run(f"run {day}", made.folder / "w", date, state, dag_id=made.dag)
    return "/tenfold/dates"


Kind = tuple[Callable[[Made], str], str]
"""What makes the runs of a page and returns its address, and the condition in the browser that it is complete."""
PAGES: Mapping[str, Kind] = {
    **{f"list of {number}": (partial(list_of, number), LISTED) for number in (0, 1, 2)},
    **{f"list of {number}": (partial(list_of, number), TRENDED) for number in (20, 200, 10_000)},
    "list of regressions": (list_of_regressions, TRENDED),
    "list of failures": (list_of_failures, LISTED),
    **{f"tab failed at {task}": (partial(failed_tab, task), SAID) for task in [*FAILURES][:4]},
    "tab failed at train": (partial(failed_tab, "train"), CHARTED),
    "tab of two servers": (partial(tab_of, two_servers, "success"), CHARTED),
    "tab of ten hours": (partial(tab_of, ten_hours, "success"), CHARTED),
    "tab of slow steps": (partial(tab_of, slow_training, "running"), CHARTED),
    "report of two servers": (partial(report_of, two_servers), PLOTTED),
    "report of ten hours": (partial(report_of, ten_hours), PLOTTED),
    "comparison of 2": (partial(comparison_of, 2), PLOTTED),
    "comparison of 20": (partial(comparison_of, 20), PLOTTED),
    "tab with changes": (changing_tab, CHANGEABLE),
    "start": (start_page, FILLED_IN),
    "dates": (dates_page, CALENDAR),
}
EDITED = ("tab with changes", "start")
"""The pages that a user sees who may do more than look."""


class Site:
    """The pages, whose runs are made when a test asks for them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self._pages: dict[str, tuple[str, list[Any]]] = {}

    def page(self, name: str) -> tuple[str, list[Any], str]:
        """Return the address of a page, the cookies of a user who sees it, and the condition that it is complete."""
        make, is_complete = PAGES[name]
        if name not in self._pages:
            made = Made(name, self._folder)
            address, role = make(made), "user" if name in EDITED else "viewer"
            self._pages[name] = address, login_of(self.url, *made.teams, role=role)
        return *self._pages[name], is_complete


@pytest.fixture(scope="module")
def site(airflow_database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from tests.plugins.airflow_runs import remove_all

    with pytest.MonkeyPatch.context() as patched, serving() as url:
        # On a busy machine, the list would say for minutes that runs are still being read.
        patched.setattr("plugins.training_monitor.listing.BUDGET_S", 3600)
        yield Site(url, tmp_path_factory.mktemp("screens"))
    remove_all()


def problems(page: Page | Firefox, is_plotted: bool) -> list[str]:
    """Return what a person would see at once in a page."""
    cut = [CUT_LEGENDS, CUT_TITLES] if is_plotted else [CUT_KEYS]
    return [*faults(page), *(each for expression in cut for each in page.evaluate(expression))]


def look(page: Page | Firefox, is_complete: str, take_picture: Callable[[str], object]) -> None:
    """Look at a page as it opens, and again with all its parts unfolded. Each picture gets a suffix of its name."""
    for suffix in ("", " open"):
        if suffix:
            page.evaluate(OPEN_ALL)
        until(lambda: page.evaluate(f"Boolean({is_complete})"))
        take_picture(suffix)
        assert problems(page, is_complete == PLOTTED) == []


def place_of_picture(tmp_path: Path, name: str) -> Path:
    folder = Path(SCREENSHOTS or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name.replace(' ', '-')}.png"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("name", PAGES, ids=lambda name: name.replace(" ", "_"))
def test_chromium(browser: Browser, site: Site, tmp_path: Path, name: str, width: int, scheme: Any) -> None:
    size: Any = {"width": width, "height": 900}
    with patient(browser.new_context(base_url=site.url, viewport=size, color_scheme=scheme)) as context:
        address, cookies, is_complete = site.page(name)
        context.add_cookies(cookies)
        seen = Seen(context.new_page())
        seen.page.goto(address)
        look(
            seen.page,
            is_complete,
            lambda suffix: seen.page.screenshot(
                path=place_of_picture(tmp_path, f"{name} {width} {scheme}{suffix}"), full_page=True
            ),
        )
        assert serious(seen.page) == []
        assert seen.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES, ids=lambda name: name.replace(" ", "_"))
def test_firefox(site: Site, tmp_path: Path, name: str, scheme: str) -> None:
    address, cookies, is_complete = site.page(name)
    (profile := tmp_path / "profile").mkdir()
    with firefox(profile, 1280, scheme) as window:
        window.log_in(cookies[0])
        window.goto(site.url + address)
        look(
            window,
            is_complete,
            lambda suffix: window.screenshot(place_of_picture(tmp_path, f"{name} firefox {scheme}{suffix}")),
        )
        assert window.complaints == []
