"""A training in the UI of Airflow in a real browser, from the form to the report, and with missing permissions."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Frame, Page

from pipeline.config.settings import Settings
from pipeline.report import write_report
from pipeline.runs.decision import BADGES
from pipeline.sources.samples import draw_samples
from scripts.airflow.client import FINISHED, Client
from scripts.airflow.settings import ROOT, Layout
from tests.browser import Seen, blank, browser, patient
from tests.contrast import MIN_CONTRAST, least_contrast
from tests.plugins.airflow_ui import DAG, Ui, address, page_of, started
from tests.plugins.held import GATES, HELD_EPOCHS
from tests.report.rich import rich_run
from tests.report.test_report import picture
from tests.runs.test_dates import make_date
from tests.waiting import until

__all__ = ["browser"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SCREENSHOTS = os.environ.get("TENFOLD_SCREENSHOTS", "")
"""Folder for the screenshots of the README. Without it, no screenshot is taken."""
WIDTH = 1400
EPOCHS = 60 if SCREENSHOTS else 12
"""The screenshot shows a bottleneck, which appears after 20 seconds."""
HELD = (1, 40 if SCREENSHOTS else 6)
"""The training waits before these epochs, counted from 0, until `release` is called."""
FIELDS = {"dataset_name": "shapes", "epochs": EPOCHS, "batch_size": 8, "learning_rate": 0.002}
"""Fields that are changed in the form."""
OF_AIRFLOW = "An iframe which has both allow-scripts and allow-same-origin for its sandbox"
"""The only browser warning that Airflow causes, by the sandbox of its plugin frames."""
EVIL = "<img src=x onerror=alert(1)>"
UNDRAWN = "article section:not([data-drawn])"
NO_RUNS = ("../../../etc/passwd", EVIL + "?", "x" * 300, "a\0b", "manual__2026-01-01T00:00:00+00:00", "'; --")
OF_NO_RUN = ("/assets/{name}", "/trainings", "/dates", "/start")
"""Addresses that reveal nothing about a run. Every logged-in user can request them."""


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    folder = tmp_path_factory.mktemp("ui")
    layout = Layout(folder / "home", folder / "workspace", ROOT / "dags")
    draw_samples(layout.samples, 240)
    (gates := folder / "gates").mkdir()
    settings = folder / "settings.toml"
    settings.write_text('callbacks = "tests.plugins.held:callbacks"\n')
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TENFOLD_SETTINGS", str(settings))
        patched.setenv(GATES, str(gates))
        patched.setenv(HELD_EPOCHS, json.dumps(HELD))
        with started(layout) as ui:
            yield ui


def release(ui: Ui, epoch: int) -> None:
    """Let the training continue that waits before an epoch."""
    (ui.layout.home.parent / "gates" / str(epoch)).touch()


LoggedIn = Callable[..., Any]


@pytest.fixture(scope="module")
def logged_in(browser: Browser, ui: Ui) -> LoggedIn:
    """A function that opens a browser context of a user, who logged in on the page of Airflow."""

    @cache
    def login_state_of(user: str) -> Any:
        with patient(browser.new_context(base_url=ui.url)) as context:
            page = context.new_page()
            page.goto("/")
            page.fill("input[name=username]", user)
            page.fill("input[name=password]", ui.password(user))
            page.keyboard.press("Enter")
            page.wait_for_url(lambda address: "login" not in address)
            return context.storage_state()

    def opened(user: str, **options: Any) -> BrowserContext:
        size = {"width": WIDTH, "height": 1000}
        return patient(
            browser.new_context(base_url=ui.url, storage_state=login_state_of(user), viewport=size, **options)
        )

    return opened


@pytest.fixture(scope="module")
def triggered(ui: Ui, logged_in: LoggedIn) -> str:
    """The id of a run that was started from the form with changed fields."""
    with logged_in("admin") as context:
        page = context.new_page()
        form = open_form(page)
        for name, value in FIELDS.items():
            fill(form, name, value)
        picture_of_form(page)
        fill(form, "source_uri", ui.layout.samples)
        form.get_by_role("button", name="Trigger", exact=True).click()
        page.wait_for_url("**/runs/**")
        return str(page.evaluate("decodeURIComponent(location.pathname.split('/').at(-1))"))


def open_form(page: Page) -> Any:
    page.goto(f"/dags/{DAG}")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog")
    form.locator("input[name=element_epochs]").wait_for()
    return form


def fill(form: Any, name: str, value: Any) -> None:
    """Enter a value into a field and leave the field, as with the Tab key."""
    field = form.locator(f"input[name=element_{name}]")
    field.fill(str(value))
    field.blur()


def picture_of_form(page: Page) -> None:
    """Take a screenshot of the expanded part of the form."""
    page.set_viewport_size({"width": WIDTH, "height": 1400})
    page.get_by_role("dialog").get_by_role("heading").first.scroll_into_view_if_needed()
    screenshot(page, "form")


@pytest.fixture(scope="module")
def trained(ui: Ui, triggered: str) -> str:
    """The id of the triggered run, after it has ended."""
    for epoch in HELD:
        release(ui, epoch)
    state = until(lambda: ui.client.run(triggered)["state"], 900, 0.5, is_expected=FINISHED.__contains__)
    assert state == "success"
    return triggered


@pytest.fixture(scope="module")
def rich(ui: Ui, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of a run with data for every figure: GPUs, several servers, six epochs."""
    folder = rich_run(tmp_path_factory.mktemp("rich") / "run")
    run_id = "on_gpus__2026-01-01T00:00:00+00:00"
    change_run(
        folder,
        run_id=run_id,
        steps_per_epoch=60,
        settings={
            **Settings().model_dump(mode="json"),
            "epochs": 6,
            "batch_size": 32,
            "dataset_name": "flowers",
            "model": "resnet50",
        },
    )
    write_report(folder, [("a.jpg", picture("blue"))])
    return ui.run_with(run_id, folder)


@pytest.fixture(scope="module")
def refused(ui: Ui) -> str:
    """The id of the newest run, whose first task refused its source."""
    run_id = ui.client.trigger({"source_uri": "/nowhere"})
    until(lambda: ui.client.run(run_id)["state"] == "failed", 900, 0.5)
    return run_id


def change_run(folder: Path, settings: dict[str, Any], **values: Any) -> None:
    """Change values of run.json."""
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, **values, "settings": {**run["settings"], **settings}}))


class Tab(Seen):
    """The tab of a run in Airflow."""

    def __init__(self, context: BrowserContext, run_id: str) -> None:
        super().__init__(context.new_page())
        self.page.goto(page_of(run_id))
        self.find_frame()

    def find_frame(self) -> None:
        """Find the frame of the tab after Airflow has added it to its page."""
        self.page.frame_locator("iframe").locator("article[data-state]").wait_for()
        self.frame = next(frame for frame in self.page.frames if "/tenfold/run" in frame.url)

    @property
    def state(self) -> str:
        """The state of the training, from an attribute that the page has for tests."""
        return str(self.frame.locator("article").get_attribute("data-state"))

    @property
    def progress(self) -> str:
        """The progress and the numbers below it."""
        return self.frame.locator(".head, .tiles").all_inner_texts().__str__()

    @property
    def sections(self) -> list[str]:
        """The titles of the figures."""
        return self.frame.locator("section h2").all_inner_texts()

    def wait_until_drawn(self) -> None:
        """Wait until all figures are drawn."""
        until(lambda: is_drawn(self.frame))

    def blank(self) -> list[str]:
        """Return the ids of the blank plots."""
        self.wait_until_drawn()
        plots = self.frame.locator(".plots > div")
        assert plots.count() >= 3
        return blank(plots)

    def check(self, url: str) -> None:
        """Assert that there were no warnings, no requests to other hosts, and one preloaded data request."""
        assert [each for each in self.complaints if OF_AIRFLOW not in each] == []
        assert {urlsplit(each).netloc for each in self.requests if each.startswith("http")} == {urlsplit(url).netloc}
        assert len([each for each in self.requests if "/data?" in each and "shown=" not in each]) == 1


def test_a_training_is_started_from_the_form_and_updates_on_the_tab(
    ui: Ui, logged_in: LoggedIn, triggered: str
) -> None:
    conf = ui.client.run(triggered)["conf"]
    assert {name: conf[name] for name in FIELDS} == FIELDS
    with logged_in("admin") as context:
        tab = Tab(context, triggered)
        tab.frame.evaluate("window.never_loaded_again = true")
        drawn = until(lambda: tab.state == "training" and rows_of_steps(tab), 900, 0.2)
        progress = tab.progress
        release(ui, HELD[0])
        until(lambda: tab.progress != progress and rows_of_steps(tab) > drawn, pause=0.2)
        assert tab.state == "training"
        assert "step" in tab.progress
        assert 0 < tab.frame.locator("progress").evaluate("bar => bar.value") < 1
        tab.wait_until_drawn()
        if SCREENSHOTS:
            tab.frame.get_by_text("of the step time is").wait_for()
            until(lambda: re.search(r"epoch [23]\d of", tab.progress), 900)  # Charts of a few steps show nothing.
        screenshot(tab.page, "training")
        release(ui, HELD[1])
        until(lambda: tab.state, 900, 0.2, is_expected=lambda state: state == "trained")
        assert "Trained" in tab.progress
        assert tab.sections == [
            "Does the accelerator wait?", "Loss and accuracy", "Where the time went", "What the machine did",
        ]  # fmt: skip
        assert tab.blank() == []
        assert tab.frame.evaluate("window.never_loaded_again")
        tab.check(ui.url)


def is_drawn(page: Page | Frame) -> bool:
    """Return whether all figures of all trainings are drawn."""
    return page.locator("section[data-drawn]").count() > 0 and page.locator(UNDRAWN).count() == 0


def rows_of_steps(tab: Tab) -> int:
    """Return the number of drawn intervals of steps, or 0 if no step is drawn."""
    charts = tab.frame.locator("#waiting-0 canvas[data-rows]")
    return int(str(charts.get_attribute("data-rows"))) if charts.count() else 0


def test_all_figures_of_a_rich_run_are_drawn(ui: Ui, logged_in: LoggedIn, rich: str) -> None:
    with logged_in("reader") as context:
        tab = Tab(context, rich)
        assert (tab.state, len(tab.sections)) == ("trained", 5)
        assert tab.blank() == []
        assert "examples per second" in tab.progress
        tab.check(ui.url)


def test_dragging_loads_more_rows_and_the_button_shows_the_whole_training(logged_in: LoggedIn, rich: str) -> None:
    with logged_in("reader") as context:
        tab = Tab(context, rich)
        assert tab.blank() == []
        whole = rows_shown(tab)
        chart = tab.frame.locator("#machine-0 canvas[role]")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        with tab.page.expect_request(lambda request: "/data?" in request.url and "start=" in request.url) as requested:
            drag(tab.page, box, 0.3, 0.45)
        assert "end=" in requested.value.url
        (begin, end), *others = times_shown(tab.frame)
        assert 0 < begin < end < 30_000
        assert others == [[begin, end]] * (charts_over_time(tab.frame) - 1)  # all charts zoom together
        until(lambda: rows_shown(tab) > 4 * (end - begin) / 1000)
        # The address that the user sees is that of Airflow's page, which also may save files.
        until(lambda: "from=" in tab.page.url and "to=" in tab.page.url)
        for kind in ("PNG", "CSV"):
            with tab.page.expect_download() as download:
                tab.frame.locator("#machine-0").get_by_role("button", name=kind, exact=True).click()
            assert download.value.path().stat().st_size > 0
        tab.page.reload()
        tab.find_frame()
        until(lambda: is_drawn(tab.frame) and times_shown(tab.frame)[0] == pytest.approx([begin, end]))
        with tab.page.expect_request(lambda request: "/data?" in request.url and "start=" not in request.url):
            tab.frame.get_by_role("button", name="Show all").click()
        until(lambda: rows_shown(tab) == whole)
        assert tab.blank() == []
        assert [each for each in tab.complaints if OF_AIRFLOW not in each] == []


def times_shown(page: Page | Frame) -> list[list[float]]:
    """Return start and end of the time axis of each chart, in ms."""
    return [
        [float(place) for place in str(each.get_attribute("data-x")).split(",")]
        for each in page.locator(".chart:not([id^=spent]) canvas[data-x]").all()
    ]


def charts_over_time(page: Page | Frame) -> int:
    """Return the number of charts with a time axis."""
    count = page.locator(".chart:not([id^=spent])").count()
    assert count > 4
    return count


def rows_shown(tab: Tab) -> int:
    """Return the number of samples that are shown."""
    return int(str(tab.frame.locator("#machine-0 canvas[role]").get_attribute("data-rows")))


def drag(page: Page, box: Any, begin: float, end: float) -> None:
    """Drag the mouse across a part of a panel. `begin` and `end` are fractions of its width."""
    middle = box["y"] + 0.6 * box["height"]
    page.mouse.move(box["x"] + begin * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], middle, steps=6)
    page.mouse.up()


def test_changed_figures_replace_the_shown_ones_and_keep_the_zoom(logged_in: LoggedIn, rich: str) -> None:
    """Figures change when a panel gets its first values. The zoom must stay."""

    def ask_for_all(route: Any) -> None:
        route.continue_(url=route.request.url.replace("shown=", "shown=others"))

    with logged_in("reader") as context:
        seen = Seen(context.new_page())
        seen.page.route("**/data?*", ask_for_all)
        seen.page.goto(address("/run", rich))
        until(lambda: is_drawn(seen.page))
        seen.page.evaluate("document.querySelector('article section').id = 'before'")
        drag(seen.page, seen.page.locator("#waiting-0 canvas[role]").bounding_box(), 0.3, 0.45)
        until(lambda: seen.page.locator("#before").count() == 0 and is_drawn(seen.page))
        assert blank(seen.page.locator(".plots > div")) == []
        one, *others = times_shown(seen.page)
        assert one[0] > 0
        assert others == [one] * (charts_over_time(seen.page) - 1)  # no chart of the replaced figures is left
        assert seen.complaints == []


def test_trainings_are_chosen_in_the_list_and_compared_on_a_page(
    ui: Ui, logged_in: LoggedIn, trained: str, rich: str
) -> None:
    """The choice stays while the user searches. The page opens in a tab of its own, and can be shared."""
    with logged_in("reader") as context:
        seen = Seen(context.new_page())
        seen.page.goto("/tenfold/trainings")
        search, hint = seen.page.get_by_role("searchbox"), seen.page.locator("#chosen")
        compare = seen.page.get_by_role("button", name="Compare")
        assert hint.inner_text() == "Select 2 to 20 trainings to compare them."
        assert compare.is_disabled()
        for run_id in (trained, rich):
            search.fill(run_id)
            seen.page.get_by_role("checkbox", name=f"choose {run_id} of {DAG}").check()
        search.fill("no such words")
        until(lambda: hint.inner_text() == "2 trainings are selected.")
        with context.expect_page() as opened:
            compare.click()
        seen.page.get_by_role("button", name="Clear selection").click()
        assert hint.inner_text() == "Select 2 to 20 trainings to compare them."
        shown = Seen(opened.value)
        shown.page.wait_for_load_state()
        shown.page.reload()  # repeats messages from before the listener was added
        shown.until("Bokeh.documents.length && Bokeh.documents[0].is_idle")
        assert blank(shown.page.locator(".plots > div")) == []
        assert shown.page.locator("h1").inner_text() == "Comparison of 2 runs"
        assert {trained, rich} == {*shown.page.locator(".results tbody th a").all_inner_texts()}
        assert "small_cnn" in shown.page.locator(".differing tr", has_text="model").inner_text()
        assert shown.complaints == []
        assert {urlsplit(each).netloc for each in shown.requests} == {urlsplit(ui.url).netloc}
        screenshot(shown.page, "compare")


def test_the_list_can_be_searched_sorted_and_paged(logged_in: LoggedIn, trained: str, rich: str, refused: str) -> None:
    """The pages have two rows."""
    with logged_in("reader") as context:
        if SCREENSHOTS:
            picture_of_list(context)
        seen = Seen(context.new_page())
        seen.page.route(
            "**/trainings.json?*", lambda route: route.continue_(url=route.request.url.replace("limit=100", "limit=2"))
        )
        seen.page.goto("/tenfold/trainings")
        rows, search = seen.page.locator(".list tbody tr"), seen.page.get_by_role("searchbox")
        rows.filter(has_text=refused).first.wait_for()
        assert rows.count() == 2
        assert rows.first.locator(".badge").inner_text() == "Failed"
        assert "Task extract failed: source_uri must be" in rows.first.inner_text()
        assert rows.first.get_by_role("link", name="Log of extract").count() == 1
        screenshot(seen.page, "list-failed")
        assert seen.page.get_by_role("button", name="Previous").is_disabled()
        assert "1 to 2 of" in seen.page.locator(".count").inner_text()
        search.fill("resnet50")
        until(lambda: rows.count() == 1 and rich in rows.inner_text())
        search.fill("surely beats nothing")
        until(lambda: rows.count() == 0)
        search.fill(f"{trained} baseline")
        until(lambda: rows.count() == 1 and trained in rows.inner_text())
        rows.locator("summary").focus()
        seen.page.keyboard.press("Enter")
        assert "of the baseline on the same" in rows.locator("details p").inner_text()
        assert rows.locator("summary .badge").inner_text() in BADGES.values()
        search.fill("model=resnet50")
        until(lambda: rows.count() == 1 and "Filters: model is resnet50." in seen.page.locator("main").inner_text())
        assert "search=model%3Dresnet50" in seen.page.url
        seen.page.reload()
        until(lambda: rows.count() == 1 and search.input_value() == "model=resnet50")
        search.fill("modl=resnet50")
        until(lambda: "Did you mean model?" in seen.page.locator(".empty").inner_text())
        assert seen.page.locator(".count").inner_text() == ""  # no training was searched
        search.fill("no such words")
        until(lambda: "No trainings match your search." in seen.page.locator(".empty").inner_text())
        search.fill("")
        until(lambda: rows.count() == 2 and refused in rows.first.inner_text())
        seen.page.get_by_role("button", name="Accuracy").click()
        until(lambda: trained in rows.first.inner_text())
        assert seen.page.locator("th[aria-sort=descending]").inner_text() == "Accuracy"
        with seen.page.expect_request(lambda request: "offset=100" in request.url):
            seen.page.get_by_role("button", name="Next").click()
        until(lambda: trained in rows.first.inner_text())  # The page does not exist, so the first page is shown.
        assert seen.complaints == []


def picture_of_list(context: BrowserContext) -> None:
    """Take a screenshot of the list in the pages of Airflow."""
    page = context.new_page()
    page.goto("/plugin/training-monitor")
    page.frame_locator("iframe").locator(".list tbody tr").first.wait_for()
    screenshot(page, "list")


@pytest.fixture(scope="module")
def addresses(ui: Ui) -> list[str]:
    """The paths of all routes, listed by the application itself so that no new route is forgotten."""
    routes = "(method + each.path for each in build().routes for method in each.methods)"
    script = f"from plugins.training_monitor.app import build; print(*{routes})"
    environ = {**os.environ, "AIRFLOW_HOME": str(ui.layout.home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    found = done.stdout.splitlines()[-1].split()  # a warning of Airflow may come first
    posted = ["POST/start.json", "POST/change", "POST/continuation"]
    assert [each for each in found if not each.startswith("GET")] == posted
    paths = [each.removeprefix("GET") for each in found if each.startswith("GET")]
    assert {"/run", "/data", "/report", "/card", "/inputs", "/compare", *OF_NO_RUN} <= {*paths}
    return paths


def test_pages_require_a_login_and_permission_for_the_dag(ui: Ui, rich: str, addresses: list[str]) -> None:
    def answers(user: str) -> dict[str, int]:
        with ui.requests_of(user) as http:
            return {path: http.get(address(path.format(name="run.js"), rich)).status_code for path in addresses}

    assert answers("") == dict.fromkeys(addresses, 401)
    assert answers("stranger") == {path: 200 if path in OF_NO_RUN else 403 for path in addresses}
    # A comparison needs two runs.
    assert answers("reader") == {path: 404 if path in ("/card", "/inputs", "/compare") else 200 for path in addresses}

    def post(user: str, path: str, body: dict[str, Any]) -> int:
        with ui.requests_of(user) as http:
            return http.post(path, json=body).status_code

    users, checked = ("", "stranger", "reader", "admin"), f"/tenfold/start.json?dag_id={DAG}"
    assert [post(user, checked, {}) for user in users] == [401, 403, 403, 200]
    # Without the token of the page, nobody changes anything.
    for path, values in (("/change", {"prefetch_batches": "16"}), ("/continuation", {"prepare": "resize"})):
        assert [post(user, address(path, rich), {"values": values}) for user in users] == [401, 403, 403, 403]


def test_a_training_is_started_from_the_page_of_eight_fields(ui: Ui, logged_in: LoggedIn) -> None:
    with logged_in("admin") as context:
        seen = Seen(context.new_page())
        seen.page.goto("/plugin/start-a-training")
        frame = seen.page.frame_locator("iframe")
        for label, value in (("Source", ui.layout.samples), ("Dataset name", "my shapes"), ("Epochs", 0)):
            frame.get_by_label(label).fill(str(value))
        frame.get_by_text("240 images, ").wait_for()
        frame.get_by_text("got 'my shapes': my-shapes would do").wait_for()
        frame.get_by_text("Must be greater than or equal to 1, got 0").wait_for()
        frame.get_by_label("Dataset name").fill("my-shapes")
        frame.get_by_label("Epochs").fill("1")
        frame.get_by_role("button", name="Start", exact=True).click()
        seen.page.wait_for_url("**/runs/**/plugin/training")
        run_id = str(seen.page.evaluate("decodeURIComponent(location.pathname.split('/').at(-3))"))
        form = {"source_uri": str(ui.layout.samples), "dataset_name": "my-shapes", "epochs": 1}
        assert ui.client.run(run_id)["conf"] == form
        with ui.requests_of("admin") as http:
            run = f"/api/v2/dags/{DAG}/dagRuns/{quote(run_id, safe='')}"
            extract = f"{run}/taskInstances/extract"  # It refuses a form that the page did not check.
            until(lambda: http.get(extract).json()["state"] == "success", 900, 0.5)
            http.patch(run, json={"state": "failed"}).raise_for_status()
        frame.get_by_role("link", name="Start another one like this").click()
        until(lambda: frame.get_by_label("Epochs").input_value() == "1")
        assert frame.get_by_label("Same as run").input_value() == run_id
        assert [each for each in seen.complaints if OF_AIRFLOW not in each] == []


def test_a_viewer_cannot_start_a_training_from_the_page(logged_in: LoggedIn) -> None:
    with logged_in("reader") as context:
        page = context.new_page()
        page.goto("/tenfold/start")
        words = f"You do not have permission to start runs of {DAG}."
        until(lambda: page.get_by_role("alert").inner_text() == words)
        page.get_by_role("button", name="Start", exact=True).click()
        assert page.url.endswith("/tenfold/start")


def test_the_dates_of_a_dataset_are_shown_with_their_runs(
    ui: Ui, logged_in: LoggedIn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = tmp_path_factory.mktemp("dates") / "birds"
    with ui.requests_of("admin") as http:  # so that the datasets start no training
        http.patch("/api/v2/dags/retrain", json={"is_paused": True}).raise_for_status()
    with closing(Client(ui.url, ui.password("admin"), "image_dataset")) as client:
        # The last one fails in its first task: it has no source.
        for day, broken in ((1, 0), (2, 3), (4, 0), (5, None)):
            date = f"2026-01-{day:02d}"
            if broken is not None:
                make_date(source, date, broken=broken)
            form = {"source_uri": f"{source}/{{date}}", "data_date": date, "max_rejected_fraction": 0.0}
            run_id = client.trigger(form)
            state = until(partial(state_of, client, run_id), 900, 0.5, is_expected=FINISHED.__contains__)
            assert state == ("failed" if broken or broken is None else "success")
    with logged_in("reader") as context:
        page = context.new_page()
        page.goto("/plugin/training-monitor")
        page.frame_locator("iframe").get_by_role("link", name="Dates of a dataset").click()
        frame = page.frame_locator("iframe")
        frame.locator(".calendar").wait_for()
        assert frame.locator(".calendar tbody button").all_inner_texts() == [*"ox-ox"]
        looks = frame.get_by_role("region", name="Dates with problems").get_by_role("row").all_inner_texts()
        assert "Task upload.commit failed: 6 of 16 (37.5%) images were rejected" in looks[3]
        assert "source_uri must be" in looks[1]
        frame.get_by_role("button", name="2026-01-02").click()
        frame.locator("tr.chosen").get_by_role("link", name="failed").click()
        page.wait_for_url("**/dags/image_dataset/runs/**")


def state_of(client: Client, run_id: str) -> str:
    return str(client.run(run_id)["state"])


def test_an_expired_login_shows_a_message(logged_in: LoggedIn, rich: str) -> None:
    with logged_in("reader") as context:
        page = context.new_page()
        page.goto(address("/run", rich))
        chart = page.locator("#waiting-0 canvas[role]")
        until(lambda: is_drawn(page))
        context.clear_cookies()
        drag(page, chart.bounding_box(), 0.3, 0.45)
        page.get_by_role("alert").wait_for()
        assert page.get_by_role("alert").inner_text().startswith("You are no longer logged in")


@pytest.mark.parametrize("run_id", NO_RUNS, ids=["above", "markup", "long", "nul", "none", "quote"])
def test_an_unknown_run_has_an_empty_page(ui: Ui, logged_in: LoggedIn, addresses: list[str], run_id: str) -> None:
    with ui.requests_of("reader") as http:
        for path in (each for each in addresses if each not in OF_NO_RUN):
            assert http.get(address(path, run_id)).status_code in (200, 404), path
            assert http.get(f"/tenfold{path}", params={"dag_id": run_id, "run_id": "x"}).status_code in (200, 404), path
    with logged_in("reader") as context:
        seen = Seen(context.new_page())
        seen.page.goto(address("/run", run_id))
        until(lambda: seen.page.locator(".empty").all_inner_texts() == ["There is no run with this id."])
        assert seen.page.locator("img").count() == 0
        assert seen.complaints == []


def test_a_run_that_failed_before_its_training_links_to_the_log(ui: Ui, logged_in: LoggedIn, refused: str) -> None:
    with logged_in("reader") as context:
        tab = Tab(context, refused)
        assert "Task extract failed: source_uri must be" in tab.frame.locator(".empty").inner_text()
        assert "got '/nowhere'" in tab.frame.locator(".empty").inner_text()
        with context.expect_page() as opened:
            tab.frame.get_by_role("link", name="Log of extract").click()
        opened.value.get_by_text("got '/nowhere'").first.wait_for()
        tab.check(ui.url)


def test_a_failed_training_shows_its_error_and_links_to_the_log(ui: Ui, logged_in: LoggedIn) -> None:
    fields = {"source_uri": str(ui.layout.samples), "dataset_name": "shapes", "batch_size": 8, "epochs": 2}
    run_id = ui.client.trigger({**fields, "model": "tests.plugins.broken_model:model"})
    assert until(lambda: ui.client.run(run_id)["state"], 900, 0.5, is_expected=FINISHED.__contains__) == "failed"
    with logged_in("reader") as context:
        tab = Tab(context, run_id)
        assert tab.state == "failed"
        head = tab.frame.locator(".head").inner_text()
        assert head.startswith("shapes")
        assert "Failed" in head
        assert "Task train failed: the loss became nan" in head
        screenshot(tab.page, "failed")
        with context.expect_page() as opened:
            tab.frame.get_by_role("link", name="Log of train").click()
        opened.value.get_by_text("the loss became nan").first.wait_for()


def test_html_in_values_of_a_training_is_escaped(
    ui: Ui, logged_in: LoggedIn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = rich_run(tmp_path_factory.mktemp("evil") / "run")
    change_run(folder, dataset=EVIL, settings={"dataset_name": EVIL, "model": EVIL})
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "verdict": EVIL, "comet": "javascript:alert(1)"}))
    (folder / "promotion.json").write_text(json.dumps({"decision": "kept", "why": EVIL}))
    run_id = ui.run_with(EVIL, folder)
    with logged_in("reader") as context:
        seen = Seen(context.new_page())
        seen.page.goto(address("/run", run_id))
        seen.page.locator("article[data-state=trained]").wait_for()
        assert seen.page.locator("h1").inner_text() == f"{EVIL}: {EVIL}"
        assert seen.page.locator(".verdict").inner_text() == EVIL
        decision = seen.page.get_by_role("status").filter(has=seen.page.locator(".badge.kept"))
        assert decision.inner_text() == f"Champion kept {EVIL}"
        assert seen.page.locator("img").count() == 0
        led_to = seen.page.locator("a").evaluate_all("links => links.map(each => each.href)")
        assert [each for each in led_to if not each.startswith(ui.url)] == []
        assert seen.complaints == []


@pytest.mark.parametrize("name", ["Report", "Dataset card"])
def test_a_linked_document_opens_in_a_sandbox(logged_in: LoggedIn, trained: str, name: str) -> None:
    with logged_in("reader") as context:
        tab = Tab(context, trained)
        with context.expect_page() as opened:
            tab.frame.get_by_role("link", name=name).click()
        seen = Seen(opened.value)
        seen.page.wait_for_load_state()
        seen.page.reload()  # repeats messages from before the listener was added
        seen.until("document.readyState == 'complete'")
        assert seen.page.evaluate("self.origin") == "null"
        assert (
            seen.page.evaluate("(() => { try { return document.cookie } catch { return 'refused' } })()") == "refused"
        )
        assert seen.page.locator("h1").count() == 1
        if name == "Report":
            seen.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            seen.until("Bokeh.documents[0].is_idle")
            assert seen.page.locator(".plots > div").count() > 5
        until(seen.blank_plots, is_expected=[].__eq__)
        assert [each for each in seen.complaints if "sandbox" not in each] == []


def test_the_tab_follows_the_dark_mode_of_airflow(ui: Ui, logged_in: LoggedIn, trained: str) -> None:
    with logged_in("reader") as context:
        tab = Tab(context, trained)
        assert ground(tab.frame) == ground(tab.page.main_frame) == (255, 255, 255)
        tab.wait_until_drawn()
        until(lambda: least_contrast(tab.frame) >= MIN_CONTRAST)
        tab.page.get_by_role("button", name="User").click()
        tab.page.get_by_role("menuitem", name="Appearance").click()
        tab.page.get_by_role("menuitemradio", name="Dark Mode").click()
        until(lambda: max(ground(tab.frame)) < 64)
        assert ground(tab.frame) == ground(tab.page.main_frame)
        until(lambda: least_contrast(tab.frame) >= MIN_CONTRAST)
        tab.page.keyboard.press("Escape")
        assert tab.blank() == []
        tab.frame.evaluate("scrollTo(0, 0)")
        screenshot(tab.page, "dark")
        tab.check(ui.url)


def ground(frame: Frame) -> tuple[int, ...]:
    """Return red, green and blue of the page background."""
    paint = """() => {
      const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
      for (const each of [document.documentElement, document.body]) {
        canvas.fillStyle = getComputedStyle(each).backgroundColor;
        canvas.fillRect(0, 0, 1, 1);
      }
      return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    }"""
    return tuple(frame.evaluate(paint))


def test_the_tab_is_accessible_by_keyboard_and_screen_reader(logged_in: LoggedIn, rich: str) -> None:
    with logged_in("reader") as context:
        tab = Tab(context, rich)
        assert tab.blank() == []
        frame = tab.frame
        assert frame.get_by_role("progressbar", name="share of the steps that are done").count() == 1
        assert frame.get_by_role("status").first.inner_text() == "Trained"
        assert frame.get_by_role("heading", level=1).count() == 1
        assert frame.get_by_role("heading", level=2).all_inner_texts() == tab.sections
        charts = frame.get_by_role("application").all()
        assert len(charts) == frame.locator(".chart").count()
        assert all(chart.get_attribute("aria-label") for chart in charts)
        frame.evaluate("scrollTo(0, 0); document.body.tabIndex = -1; document.body.focus()")
        visited = [tabbed(tab) for _ in range(40)]
        assert {"Report", "Settings and folders", "Numbers"} <= {*visited}
        frame.get_by_text("Numbers").nth(1).focus()
        tab.page.keyboard.press("Enter")
        table = frame.get_by_role("region", name="learning in numbers").get_by_role("table")
        assert table.get_by_role("rowheader").all_inner_texts() == ["6", "5", "4", "3", "2", "1"]


def tabbed(tab: Tab) -> str:
    """Press Tab. Return the text of the focused element."""
    tab.page.keyboard.press("Tab")
    return str(tab.frame.evaluate("document.activeElement.innerText ?? ''"))


def screenshot(page: Page, name: str) -> None:
    """Take a screenshot for the README if TENFOLD_SCREENSHOTS is set."""
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"ui-{name}.png")
