"""The tab of a training in a browser, as the application of the plugin answers it without an Airflow beside it."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route

from pipeline.config.automatic import training_settings
from pipeline.monitor.live import LiveVerdict
from pipeline.monitor.row import Row, Sink
from pipeline.runs.changes import load_changes
from pipeline.runs.files import OFFERS, RUN_FORMAT, VERDICT
from tests.axe import SIZES, serious
from tests.browser import CUT_KEYS, Seen, browser, patient
from tests.monitor.test_live import slow_steps
from tests.plugins.test_trainings import Client, client, with_cookie
from tests.report.rich import Records, rich_run
from tests.waiting import until

__all__ = ["browser", "client"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]
AIRFLOW = "http://airflow"
SETTINGS = {"epochs": 9, "batch_size": 8, "dataset_name": "shapes", "model": "small_cnn"}


@pytest.fixture
def dag_id() -> str:
    return "ours"


@pytest.fixture
def dag(airflow_database: None, dag_id: str) -> Iterator[None]:
    from tests.plugins.airflow_runs import add_dag, remove_all

    add_dag(dag_id, "us")
    yield
    remove_all()


def describe(folder: Path, **settings: float) -> None:
    content = {"format": RUN_FORMAT, "settings": {**SETTINGS, **settings}, "steps_per_epoch": 100}
    (folder / "run.json").write_text(json.dumps(content))


@contextmanager
def opened(
    browser: Browser, client: Client, training: Path, width: int = 1280, role: str = "viewer", dag_id: str = "ours"
) -> Iterator[Seen]:
    """Open the page of a training that is under way."""
    from tests.plugins.airflow_runs import add_run

    add_run(dag_id, training.name, str(training), state="running")
    who = with_cookie(role, "us")

    def answer_with(route: Route) -> None:
        address = urlsplit(route.request.url)
        # The client has an event loop of its own, and so has Playwright in this thread.
        asked = f"{address.path}?{address.query}"
        if route.request.method == "POST":
            headers = {**who, "X-Tenfold-Token": route.request.headers["x-tenfold-token"]}
            found = thread.submit(client.post, asked, headers, route.request.post_data_buffer or b"").result()
        else:
            found = thread.submit(client.get, asked, who).result()
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.content)

    size = {"width": width, "height": 900}
    with ThreadPoolExecutor(1) as thread, patient(browser.new_context(viewport=size)) as context:
        seen = Seen(context.new_page())
        seen.page.route(f"{AIRFLOW}/**", answer_with)
        seen.page.goto(f"{AIRFLOW}/run?{urlencode({'dag_id': dag_id, 'run_id': training.name})}")
        until(lambda: seen.page.locator("section[data-drawn]").count() > 0)
        until(lambda: seen.page.locator("section:not([data-drawn])").count() == 0)
        yield seen
        assert seen.complaints == []


def tiles_of(page: Page) -> dict[str, str]:
    """Return the numbers below the head, by their names."""
    return {
        each.locator("dt").inner_text(): each.locator("dd").inner_text() for each in page.locator(".tiles > div").all()
    }


@pytest.mark.parametrize(
    ("seconds", "seen_at", "verdict", "step"),
    [
        (7, 90, "From 21 s to 1 min 20 s after the start (8 steps, ended 10 s ago): Not enough steps", "7,000 ms"),
        (7, 145, "From 21 s to 2 min 20 s after the start (16 steps, ended 5 s ago): Compute-bound", "7,000 ms"),
        (40, 150, "From 21 s to 2 min 20 s after the start (2 steps, ended 10 s ago): Not enough steps", "40,000 ms"),
        (40, 445, "From 21 s to 7 min 20 s after the start (10 steps, ended 5 s ago): Compute-bound", "40,000 ms"),
    ],
)
def test_slow_steps_have_a_verdict_with_its_interval_and_numbers_without_the_first_step(
    browser: Browser, client: Client, dag: None, tmp_path: Path,
    seconds: float, seen_at: int, verdict: str, step: str,
) -> None:  # fmt: skip
    describe(tmp_path)
    records = Records(tmp_path)
    sinks: list[Sink] = [
        records,
        LiveVerdict(lambda verdict: verdict.sentence, tmp_path / VERDICT, lambda: "computing"),
    ]
    begin = time.time() - seen_at
    for row in slow_steps(seconds, seen_at):
        for sink in sinks:
            sink.write(Row(row.kind, begin + row.time - 1000, row.step, row.values))
    records.close()
    with opened(browser, client, tmp_path) as seen:
        assert seen.page.locator(".verdict").inner_text().startswith(verdict)
        tiles = tiles_of(seen.page)
        assert (tiles["step time"], tiles["data wait"]) == (step, "1.0%" if seconds == 7 else "0.2%")


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = rich_run(tmp_path_factory.mktemp("rich") / "run")
    describe(folder)
    return folder


@pytest.mark.parametrize("width", SIZES)
def test_legends_fit_and_the_page_is_accessible(
    browser: Browser, client: Client, dag: None, rich: Path, width: int
) -> None:
    with opened(browser, client, rich, width) as seen:
        assert seen.page.locator(".key").count() > 20
        assert seen.page.evaluate(CUT_KEYS) == []
        assert serious(seen.page) == []
        seen.page.locator("summary").evaluate_all("all => all.forEach(each => each.parentElement.open = true)")
        assert serious(seen.page) == []


def test_the_tab_key_stops_only_where_keys_do_something(
    browser: Browser, client: Client, dag: None, rich: Path
) -> None:
    with opened(browser, client, rich) as seen:
        seen.page.evaluate("document.body.tabIndex = -1; document.body.focus()")
        stops = [seen.page.evaluate(FOCUSED) for _ in range(80) if seen.page.keyboard.press("Tab") is None]
        charts = seen.page.locator(".chart").count()
        assert stops.count("a chart") >= charts > 10
        assert "nothing that keys operate" not in stops


FOCUSED = """() => {
  const focused = document.activeElement;
  if (focused.matches("canvas[role=application]")) return "a chart";
  const is_scrollable = focused.matches(".scroll") && focused.scrollWidth > focused.clientWidth;
  const is_operable = is_scrollable || focused.matches("body, a[href], button, summary, input, select");
  return is_operable ? focused.localName : "nothing that keys operate";
}"""


def test_a_person_who_may_edit_the_run_changes_a_setting_on_its_tab(
    browser: Browser, client: Client, dag: None, rich: Path, tmp_path: Path
) -> None:
    training = tmp_path / "run"
    shutil.copytree(rich, training)
    (training / "result.json").unlink()
    values = training_settings({**SETTINGS, "epochs": 9}).model_dump()
    content = {"format": RUN_FORMAT, "settings": values, "steps_per_epoch": 100}
    (training / "run.json").write_text(json.dumps(content))
    offer = {"change": {"checkpoint_steps": 50}, "words": "1.6 times faster (1.5 to 1.7)", "promised": [1.6, 1.5, 1.7]}
    (training / OFFERS).write_text(json.dumps({"offers": [offer]}))
    with opened(browser, client, training, role="user") as seen:
        page = seen.page
        offered = page.get_by_role("button", name="Apply checkpoint_steps=50 from the next epoch on: 1.6 times faster")
        offered.focus()
        page.keyboard.press("Enter")
        until(lambda: not offered.is_visible())
        # The keyboard focus goes from the button to what became of it.
        until(lambda: page.evaluate("document.activeElement.role") == "status")
        page.get_by_text("Change a setting", exact=True).click()
        page.get_by_label("Setting", exact=True).select_option("prefetch_batches")
        assert page.get_by_label("Value", exact=True).input_value() == "4"
        page.get_by_label("Value", exact=True).fill("16")
        send = page.get_by_role("button", name="Apply from the next epoch on")
        send.focus()
        page.keyboard.press("Enter")
        words = "from the next epoch on: prefetch_batches=16, requested by somebody"
        until(lambda: page.get_by_role("listitem").all_inner_texts()[1:] == [words])
        until(lambda: send.get_attribute("aria-disabled") == "false")
        assert send.evaluate("each => each === document.activeElement")
        assert serious(page) == []
        assert seen.complaints == []
    first, change = load_changes(training)
    assert (first.field, first.value, first.by) == ("checkpoint_steps", 50, "somebody")
    assert (change.field, change.value, change.by) == ("prefetch_batches", 16, "somebody")


@pytest.mark.parametrize("dag_id", ["image_training"])  # Its runs build datasets.
def test_the_button_for_a_new_dataset_starts_the_run_that_the_plugin_describes(
    browser: Browser, client: Client, dag: None, dag_id: str, rich: Path, tmp_path: Path
) -> None:
    training = tmp_path / "run"
    shutil.copytree(rich, training)
    (training / "result.json").unlink()
    values = training_settings({**SETTINGS, "epochs": 9}).model_dump()
    content = {"format": RUN_FORMAT, "settings": values, "steps_per_epoch": 100}
    (training / "run.json").write_text(json.dumps(content))
    change = {"prepare": "resize", "prepare_size": 36}
    offer = {"change": change, "words": "1.6 times faster (1.5 to 1.7)", "promised": [1.6, 1.5, 1.7]}
    (training / OFFERS).write_text(json.dumps({"offers": [offer]}))
    described = {"dag_run_id": "run__1", "logical_date": None, "conf": {"prepare": "resize"}}
    asked, started, states = [], [], ["running", "failed"]

    def describe_run(route: Route) -> None:
        asked.append((route.request.post_data_json, bool(route.request.headers["x-tenfold-token"])))
        route.fulfill(json={"dag_id": "image_training", "run": described})

    def start_run(route: Route) -> None:
        if route.request.method == "GET":
            assert urlsplit(route.request.url).path == "/api/v2/dags/image_training/dagRuns/run__1"
            route.fulfill(json={"state": states.pop(0)})
            return
        started.append((urlsplit(route.request.url).path, route.request.post_data_json))
        if len(started) > 1:
            route.fulfill(status=409, json={"detail": {"reason": "Unique constraint violation"}})
        else:
            route.fulfill(json=described)

    with opened(browser, client, training, role="user", dag_id=dag_id) as seen:
        seen.page.route("**/continuation?*", describe_run)
        seen.page.route("**/api/v2/**", start_run)
        words = "Apply prepare=resize, prepare_size=36 on a new dataset, in a new run: 1.6 times faster (1.5 to 1.7)"
        seen.page.get_by_role("button", name=words).click()
        # Only a call of Playwright, such as this one, lets it answer the requests of the page.
        until(lambda: seen.page.get_by_text("The run run__1 builds the dataset.").is_visible())
        assert asked == [({"values": {"prepare": "resize", "prepare_size": "36"}}, True)]
        assert started == [("/api/v2/dags/image_training/dagRuns", described)]
        # Somebody else may click before the other run has reached this training.
        seen.page.get_by_role("button", name=words).click()
        until(lambda: seen.page.get_by_text("The run run__1 was started before: it builds the dataset.").is_visible())
        assert "409 (Conflict)" in seen.complaints.pop()  # The browser reports the refusal.
        seen.page.get_by_role("button", name=words).click()
        until(lambda: seen.page.get_by_text("The run run__1 was started before and failed: clear").is_visible())
        assert "409 (Conflict)" in seen.complaints.pop()
        seen.page.get_by_text("Change a setting", exact=True).click()
        seen.page.get_by_label("Setting", exact=True).select_option("compression")
        assert seen.page.get_by_role("button", name="Build a new dataset and continue on it").is_visible()
        assert serious(seen.page) == []


def test_a_person_who_may_only_see_the_run_has_no_form(browser: Browser, client: Client, dag: None, rich: Path) -> None:
    with opened(browser, client, rich) as seen:
        assert not seen.page.get_by_text("Change a setting", exact=True).is_visible()


def test_the_head_returns_once_the_training_can_be_read_again(
    browser: Browser, client: Client, dag: None, rich: Path
) -> None:
    with opened(browser, client, rich) as seen:
        page, words = seen.page, "the training cannot be read: its bucket does not answer"
        refresh = "document.dispatchEvent(new Event('visibilitychange'))"

        def lose(route: Route) -> None:
            route.fulfill(json={"status": {"state": "unknown", "words": words, "links": []}})

        page.route("**/data?*", lose)
        page.evaluate(refresh)
        until(lambda: page.get_by_text(words).is_visible())
        assert page.get_by_role("heading", level=1).count() == 0
        page.unroute("**/data?*", lose)
        page.evaluate(refresh)
        page.get_by_role("heading", level=1).wait_for()
        assert not page.get_by_text(words).is_visible()
        assert tiles_of(page)


def test_a_refresh_keeps_what_a_person_has_selected(browser: Browser, client: Client, dag: None, rich: Path) -> None:
    with opened(browser, client, rich) as seen:
        page = seen.page
        page.get_by_text("Settings and folders", exact=True).click()
        cell = page.locator("details td").first.element_handle()
        cell.evaluate("each => getSelection().selectAllChildren(each)")
        selected = page.evaluate("String(getSelection())")
        for _ in range(2):  # When the second answer is there, the page has shown the first one.
            with page.expect_response("**/data?*"):
                page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        assert cell.evaluate("each => each.isConnected")
        assert page.evaluate("String(getSelection())") == selected != ""
