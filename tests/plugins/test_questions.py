"""Ten questions that people ask of their trainings, each answered from the list in at most two pages and two screens.

Each test starts at the list of trainings and follows the path that a person takes. The answer has to name the number.
What a person sees, and how long the pages take, is written into the folder that TENFOLD_TEST_SCREENSHOTS names.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, ViewportSize

from pipeline.config.automatic import training_settings
from pipeline.evaluation.metrics import save
from pipeline.monitor.live import LiveVerdict
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.monitor.verdict import diagnose_run, numbers
from pipeline.report import write_report
from pipeline.runs.files import OFFERS, VERDICT
from pipeline.tuning.advice import with_advice
from tests.axe import SIZES, serious
from tests.browser import Seen, browser, patient
from tests.plugins.site import login_of, serving
from tests.plugins.test_dates_page import add_dated_run
from tests.plugins.test_screens import (
    CALENDAR,
    CHARTED,
    PLOTTED,
    SAID,
    TRENDED,
    Made,
    described,
    look,
    place_of_picture,
)
from tests.plugins.test_waits import set_tasks
from tests.published import publish
from tests.report.evaluated import evaluated, predictions
from tests.report.rich import Records, rich_run, sample
from tests.report.test_report import describe, picture
from tests.runs.test_dates import make_date

__all__ = ["browser"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]
SCREENSHOTS = os.environ.get("TENFOLD_TEST_SCREENSHOTS", "")
DAG = "image_training"
LABELS = ["circle", "square"]
SCREEN: ViewportSize = {"width": 1280, "height": 900}
MINUTE_S = 60.0


class Team(Made):
    """The runs that the people of a team ask about."""

    def __init__(self, folder: Path) -> None:
        super().__init__(DAG, folder)
        self.seeds: list[str] = []
        """The ids of the runs that differ in the seed and in one setting."""


def starving(folder: Path) -> Path:
    """Write a training under way that waits for data, and that stood still for 12 s after two minutes."""
    describe(folder, "flowers", tuple(LABELS))
    settings = training_settings({"epochs": 20, "model": "small_cnn", "dataset_name": "flowers"})
    about = json.loads((folder / "run.json").read_text())
    about |= {"steps_per_epoch": 500, "settings": settings.model_dump(mode="json")}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "result.json").unlink()
    dataset = {"prepare": "keep"}
    records = Records(folder)
    live = LiveVerdict(lambda verdict: with_advice(verdict, settings, dataset), folder / VERDICT)
    random = np.random.default_rng(1)
    begin = time.time() - 6 * MINUTE_S
    # Seconds since the beginning, as all others below.
    lasted = 6 * MINUTE_S - 0.5
    now, step, sampled, has_stalled, epoch_began = 0.0, 0, 0.0, False, 0.0

    def write(row: Row) -> None:
        records.write(row)
        live.write(row)

    while now < lasted:
        step += 1
        wait = 90 + 10 * random.random()
        if now > 2 * MINUTE_S and not has_stalled:
            wait, has_stalled = 12_000.0, True
        times = {"input/wait_ms": wait, "step/compute_ms": 20.0, "step/host_ms": 0.5, "step/checkpoint_ms": 0.0}
        now += sum(times.values()) / 1000
        whole = {"step/time_ms": sum(times.values()), "input/examples": 32, "epoch": 1 + step // 500}
        write(Row("batches", begin + now, step, {**times, **whole, "first": float(step == 1)}))
        while sampled < now:
            sampled += 0.2
            values = {**sample(random, busy=18, gpus=1), "sys/cpu_pct": 98.0, "sys/cores": 2.0}
            write(Row("samples", begin + sampled, step, values))
        if step % 500 == 0:
            epoch = step // 500
            learned = {
                "loss": 1 / epoch,
                "accuracy": 0.13 * epoch,
                "val_loss": 1.2 / epoch,
                "val_accuracy": 0.12 * epoch,
            }
            timed = {"epoch/time_s": now - epoch_began, "epoch/validation_s": 1.0, "epoch/callbacks_s": 0.0}
            write(Row("epochs", begin + now, epoch, {**learned, **timed}))
            epoch_began = now
    records.close()
    offer = {"change": {"cache": "memory"}, "words": "2.4 times faster (2.1 to 2.7)", "promised": [2.4, 2.1, 2.7]}
    shrink = {"change": {"prepare": "resize", "prepare_size": 160}, "words": "2.0 times faster (1.7 to 2.4)"}
    (folder / OFFERS).write_text(json.dumps({"offers": [offer, {**shrink, "promised": [2.0, 1.7, 2.4]}]}))
    return folder


def of_seed(folder: Path, learning_rate: float, seed: int, right: int) -> Path:
    """Write a complete training. Of 100 images of the validation split, its model gets `right` right."""
    rich_run(folder, seed=seed, epochs=4, steps=40, servers=1, gpus=1)
    rows = [(row % 2, row % 2 if row < right else 1 - row % 2, 0.6 + 0.003 * row) for row in range(100)]
    content = evaluated(folder, LABELS, rows)
    save(folder, predictions(rows), content)
    verdict = diagnose_run(folder)
    result = json.loads((folder / "result.json").read_text())
    result |= {"metrics": {"val_accuracy": right / 100}, "baselines": {"val_accuracy": 0.5}, **numbers(verdict)}
    (folder / "result.json").write_text(
        json.dumps({**result, "verdict": verdict.sentence, "limit": verdict.limit.value})
    )
    names = {"seed": seed, "learning_rate": learning_rate, "epochs": 4, "model": "small_cnn", "dataset_name": "flowers"}
    described(folder, 40, **training_settings(names).model_dump(mode="json"))
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "run_id": folder.name}))
    keys = [f"{LABELS[row % 2]}/{row:04d}.jpg" for row in range(right, 100)]
    write_report(folder, [(key, picture("teal")) for key in keys])
    return folder


def worse_dates(made: Made) -> None:
    """Build six dates of a dataset. More and more of their images are broken."""
    for day, broken in enumerate((0, 0, 1, 1, 2, 4), 1):
        date = f"2026-01-{day:02d}"
        make_date(made.folder / "birds", date, broken=broken)
        publish(
            made.folder / "birds" / "{date}", made.folder / "w", data_date=date, dataset_name="birds",
            max_rejected_fraction=0.6,
        )  # fmt: skip
        add_dated_run(f"scheduled__{date}", made.folder / "w", date, "success", dag_id=made.dag)


def store_dataset(made: Made, run_id: str, training: Path) -> None:
    """Store the place of the dataset of a run, and its settings, as its tasks do."""
    from airflow.utils.session import create_session

    from dags.xcom_keys import DATASET_PLACE, SETTINGS
    from tests.plugins.airflow_runs import store

    task = {"dag_id": made.dag, "run_id": run_id, "task_id": "train"}
    with create_session() as session:
        store(session, task, DATASET_PLACE, str(training / "dataset"))
        store(session, task, SETTINGS, {"dataset_name": "flowers"})


def set_times(made: Made, run_id: str, start: datetime, end: datetime | None) -> None:
    """Set start and end of a run and of its training."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        for model, state in ((DagRun, {}), (TaskInstance, {"state": "success"} if end else {})):
            values = {"start_date": start, "end_date": end, **state}
            session.execute(update(model).filter_by(dag_id=made.dag, run_id=run_id).values(**values))


@pytest.fixture(scope="module")
def team(airflow_database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Team]]:
    """A team with the runs that people ask about. Yield the address of the pages, and the runs."""
    from airflow.models.pool import Pool

    from tests.plugins.airflow_runs import remove_all

    Pool.create_or_update_pool("gpu", slots=1, description="", include_deferred=False)
    made = Team(tmp_path_factory.mktemp("questions"))
    worse_dates(made)
    now = datetime.now(UTC)
    seeds = ((0.001, 0, 70), (0.001, 1, 72), (0.001, 2, 71), (0.01, 0, 84), (0.01, 1, 86))
    for number, (learning_rate, seed, right) in enumerate(seeds):
        start = now - timedelta(hours=12 - number)
        run_id = f"manual__{start:%Y-%m-%dT%H:%M}"
        training = of_seed(made.folder / f"seed-{number}", learning_rate, seed, right)
        made.add(run_id, training)
        made.seeds.append(run_id)
        store_dataset(made, run_id, training)
        set_times(made, run_id, start, start + timedelta(minutes=18))
    failing = rich_run(made.folder / "failing", epochs=1, steps=60)
    (failing / "result.json").unlink()
    described(failing, 60, dataset_name="flowers", model="small_cnn", epochs=4, learning_rate=5.0)
    error = "the loss became nan at step 58. Lower learning_rate (now 5.0), or look at the examples of this batch."
    made.add("manual__failing", failing, state="failed", failed={"train": 1}, error=error)
    running = starving(made.folder / "running")
    made.add("manual__running", running, state="running")
    set_times(made, "manual__running", now - timedelta(minutes=6), None)
    store_dataset(made, "manual__running", running)
    for each in (1, 2):
        made.add(f"manual__waiting_{each}", None, state="running")
        set_tasks("scheduled", dag_id=made.dag, run_id=f"manual__waiting_{each}")
        store_dataset(made, f"manual__waiting_{each}", running)
    with serving() as url, going_on(running):
        yield url, made
    remove_all()


@contextmanager
def going_on(training: Path) -> Iterator[None]:
    """Let a training write a sample each second."""
    is_over = Event()

    def write() -> None:
        random, records = np.random.default_rng(2), RecordSink(training / "record")
        while not is_over.wait(1.0):
            records.write(Row("samples", time.time(), 3000, sample(random, busy=18, gpus=1)))
        records.close()

    thread = Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Question(NamedTuple):
    """A question, and how a person finds the answer."""

    text: str
    walk: Callable[["Walk"], None]
    """Goes from the list of trainings to the page with the answer."""
    answer: str
    """A pattern of the answer. It has a number."""


class Walk:
    """The way of a person from the list of trainings to an answer."""

    def __init__(self, page: Page, made: Team) -> None:
        self.page = page
        self.made = made
        self.seconds = 0.0
        """The time of all pages until they are complete."""
        self.pages = self.clicks = 0
        self.path = ["trainings"]
        self.open("/tenfold/trainings", TRENDED)

    def open(self, address: str, is_complete: str) -> None:
        """Open a page, as a click on a link to it does."""
        began = time.perf_counter()
        self.page.goto(address)
        Seen(self.page).until(f"Boolean({is_complete})")
        self.seconds += time.perf_counter() - began
        self.pages += 1

    def follow(self, words: str, is_complete: str) -> None:
        """Click a link that leads to another page of ours."""
        address = self.page.get_by_role("link", name=words, exact=True).first.get_attribute("href")
        assert address
        assert address.partition("?")[0] in ("dates", "report")
        self._click(words)
        self.open(f"/tenfold/{address}", is_complete)

    def open_run(self, run_id: str) -> None:
        """Click a run of the list. In Airflow, its tab has the page in a frame."""
        address = self.page.get_by_role("link", name=run_id, exact=True).get_attribute("href")
        assert address
        assert address.endswith("/plugin/training")
        self._click(run_id)
        self.open(self.made.address("run", run_id), CHARTED)

    def compare(self, run_ids: Sequence[str]) -> None:
        """Choose runs of the list, and click *Compare*."""
        for run_id in run_ids:
            self.page.get_by_label(f"choose {run_id} of").check()
        self.clicks += len(run_ids)
        self._click(f"{len(run_ids)} runs, Compare")
        self.open(self.made.address("compare", *run_ids), PLOTTED)

    def jump(self, words: str) -> None:
        """Click a link to a part of the page."""
        self.page.get_by_role("link", name=re.compile(words)).click()
        self._click(words)

    def _click(self, words: str) -> None:
        self.clicks += 1
        self.path.append(words)

    def found(self, pattern: str) -> dict[str, Any]:
        """Return the first text of the page that has the answer, and how much is before it.

        The text is in the first or second page, and at most two screens down.
        """
        sentence, top, words = self.page.evaluate(FIND, pattern)
        return {
            "path": " > ".join(self.path),
            "answer": sentence,
            "loading_s": round(self.seconds, 1),
            "pages": self.pages,
            "clicks": self.clicks,
            "screens": 1 + int(max(0.0, top) // SCREEN["height"]),
            "words_before": words,
        }


FIND = """pattern => {
  const visible = document.createTreeWalker(document.body, NodeFilter.SHOW_ELEMENT, each =>
    each.checkVisibility({visibilityProperty: true}) ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_REJECT);
  let found = null;
  while (visible.nextNode()) {
    const each = visible.currentNode;
    if (["SCRIPT", "STYLE"].includes(each.tagName) || !new RegExp(pattern, "s").test(each.innerText ?? "")) continue;
    if (!found || found.contains(each)) found = each;
  }
  if (!found) throw new Error(`no ${pattern} in ${document.body.innerText}`);
  const top = found.getBoundingClientRect().top;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), before = [];
  while (texts.nextNode()) {
    const each = texts.currentNode, parent = each.parentElement;
    if (["SCRIPT", "STYLE"].includes(parent.tagName) || !parent.checkVisibility({visibilityProperty: true})) continue;
    const is_above = parent.getBoundingClientRect().bottom <= 0;
    if (found.compareDocumentPosition(each) === Node.DOCUMENT_POSITION_PRECEDING && !is_above) before.push(each.data);
  }
  const words = before.join(" ").split(/\\s+/).filter(each => each).length;
  return [found.innerText.trim().replace(/\\s+/g, " "), top, words];
}"""
"""JavaScript that returns the innermost element with a text, its place below the upper edge of the window, and the
number of the words that are visible before it."""
QUESTIONS = (
    Question("Why is it slow?", lambda walk: walk.open_run("manual__running"), r"82% of the step time is waiting for"),
    Question("What to change?", lambda walk: walk.open_run("manual__running"), r"cache=memory .* 2\.4 times faster"),
    Question(
        "Which of five runs is best, and is it sure?",
        lambda walk: walk.compare(walk.made.seeds),
        r"has the best accuracy, 86\.0%, but that is not sure",
    ),
    Question(
        "What happened at minute 2?",
        lambda walk: walk.open_run("manual__running"),
        r"The longest step took 12,\d+ ms, and ended about 2 min",
    ),
    Question("Which images are misclassified?", lambda walk: read_report(walk), r"14 of the 100 validation images"),
    Question(
        "Did it use all my images?",
        lambda walk: walk.open_run("manual__running"),
        r"The dataset has 50 of the 53 images of the source; 3 were rejected\.",
    ),
    Question(
        "Is it alive?", lambda walk: walk.open_run("manual__running"), r"epoch 7 of 20.*last sample came \d+ s ago"
    ),
    Question("How long does the queue last?", lambda walk: None, r"it starts in about \d+ min, if the run before it"),
    Question("What did the failed run do wrong?", lambda walk: None, r"the loss became nan at step 58"),
    Question(
        "Is this dataset getting worse over its dates?",
        lambda walk: walk.follow("Dates of a dataset", CALENDAR),
        r"It is getting worse: .* rises from 0% to 50%",
    ),
)


def read_report(walk: Walk) -> None:
    walk.follow(f"Report of {walk.made.seeds[-1]}", PLOTTED)
    walk.jump("Misclassified images")


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text.strip("?").replace(" ", "_"))
def test_a_question_is_answered_in_two_pages_and_two_screens(
    browser: Browser, team: tuple[str, Team], tmp_path: Path, question: Question
) -> None:
    url, made = team
    with patient(browser.new_context(base_url=url, viewport=SCREEN)) as context:
        context.add_cookies(login_of(url, *made.teams, role="user"))
        walk = Walk(context.new_page(), made)
        question.walk(walk)
        found = walk.found(question.answer)
        folder = Path(SCREENSHOTS or tmp_path)
        name = re.sub(r"\W+", "-", question.text).strip("-").lower()
        walk.page.screenshot(path=folder / f"{name}.png")
        (folder / f"{name}.json").write_text(json.dumps({"question": question.text, **found}, indent=1))
    assert found["pages"] <= 2
    assert found["screens"] <= 2
    assert re.search(r"\d", found["answer"])


PAGES: Mapping[str, tuple[Callable[[Team], str], str]] = {
    "list of a team": (lambda made: "/tenfold/trainings", TRENDED),
    "tab that waits for data": (lambda made: made.address("run", "manual__running"), CHARTED),
    "tab of a waiting run": (lambda made: made.address("run", "manual__waiting_1"), SAID),
    "report of a seed": (lambda made: made.address("report", made.seeds[0]), PLOTTED),
    "comparison of seeds": (lambda made: made.address("compare", *made.seeds), PLOTTED),
    "dates that get worse": (lambda made: "/tenfold/dates", CALENDAR),
}
"""The pages with the answers: their address, and the condition in the browser that they are complete."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("name", PAGES, ids=lambda name: name.replace(" ", "_"))
def test_nothing_is_cut_or_covered_in_the_pages_with_the_answers(
    browser: Browser, team: tuple[str, Team], tmp_path: Path, name: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    url, made = team
    address, is_complete = PAGES[name]
    size: ViewportSize = {"width": width, "height": 900}
    with patient(browser.new_context(base_url=url, viewport=size, color_scheme=scheme)) as context:
        context.add_cookies(login_of(url, *made.teams, role="user"))
        seen = Seen(context.new_page())
        seen.page.goto(address(made))

        def take_picture(suffix: str) -> None:
            place = place_of_picture(tmp_path, f"{name} {width} {scheme}{suffix}")
            seen.page.screenshot(path=place, full_page=True)

        look(seen.page, is_complete, take_picture)
        assert serious(seen.page) == []
        assert seen.complaints == []
