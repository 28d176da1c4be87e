"""The charts of a training in a real browser, without Airflow: a small server sends the page and its data."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page

from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.scales import four_digits
from pipeline.tuning.stages import StageCosts, save_stages
from pipeline.watch.page_data import page_data, span_of
from tests.browser import CUT_KEYS, Seen, blank, browser, patient, pixels_of
from tests.report.rich import rich_run
from tests.waiting import until

__all__ = ["browser"]
pytestmark = pytest.mark.long
STATIC = Path(__file__).resolve().parents[2] / "plugins/training_monitor/static"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
"""As strict as the policy of the plugin's pages, whose own is tested in Airflow (test_in_the_browser.py)."""
RUN = "/run?dag_id=image_training&run_id=manual__1"
KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
OVER_TIME = ".chart:not([id^=spent]) canvas[role]"
WAITING, TIME_OF_STEP, LOSS = "#waiting-0", "#waiting-1", "#learning-0"


def describe(folder: Path, steps: int) -> Path:
    """Have the run say how many steps an epoch has."""
    described = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**described, "steps_per_epoch": steps}))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return describe(rich_run(tmp_path_factory.mktemp("charts") / "run"), steps=60)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Yield the address of a server with the page of a training, which has ended."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            if address.path == "/data":
                self.answer(json.dumps(data(query)).encode(), "application/json")
            else:
                name = {"/run": "run.html", "/favicon.ico": "icon.svg"}.get(address.path, Path(address.path).name)
                file = STATIC / name
                self.answer(file.read_bytes(), KINDS[file.suffix])

        def answer(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            headers = {"Content-Security-Policy": POLICY, "Content-Type": kind, "Content-Length": str(len(content))}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: Any) -> None:
            pass

    def data(query: dict[str, str]) -> dict[str, Any]:
        after, start, end = (float(query[name]) if name in query else None for name in ("after", "start", "end"))
        span = None if start is None or end is None else span_of(folder, start, end)
        found = page_data(folder, True, after, span, query.get("shown", ""))
        return {**found, "status": {**found["status"], "name": "Trained", "links": []}}

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def site(run: Path) -> Iterator[str]:
    with serving(run) as url:
        yield url


Opened = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, site: str) -> Iterator[Opened]:
    """A function that opens the page with more parameters of its address. No page may have warnings or errors."""
    seen: list[Seen] = []
    with patient(browser.new_context(base_url=site, viewport={"width": 1280, "height": 900})) as context:

        def open_page(further: str = "") -> Page:
            seen.append(Seen(context.new_page()))
            page = seen[-1].page
            page.goto(RUN + further)
            until(partial(is_drawn, page))
            return page

        yield open_page
        assert [each.complaints for each in seen] == [[]] * len(seen)


def is_drawn(page: Page) -> bool:
    sections = page.locator("article section").count()
    return 0 < sections == page.locator("section[data-drawn]").count()


def ends(canvas: Locator, axis: str) -> tuple[float, float]:
    """Return both ends of an axis of a chart, from an attribute that charts have for tests."""
    low, high = str(canvas.get_attribute(f"data-{axis}")).split(",")
    return float(low), float(high)


def x_ends(page: Page) -> tuple[float, float]:
    """Return both ends of the x axis once all charts have the same."""
    [found] = until(
        lambda: {ends(each, "x") for each in page.locator(OVER_TIME).all()}, is_expected=lambda found: len(found) == 1
    )
    return found


def canvas_of(page: Page, chart: str) -> Locator:
    return page.locator(f"{chart} canvas[role]")


def point(page: Page, chart: str, part: float) -> Sequence[str]:
    """Move the pointer to a part of the width of a chart, near its upper end. Return the values that are shown."""
    canvas = canvas_of(page, chart)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + part * box["width"], box["y"] + 14)
    values = page.locator(f"{chart} .values")
    values.wait_for()
    return values.inner_text().splitlines()


def zoom(page: Page, chart: str, begin: float, end: float) -> None:
    """Drag the mouse across a part of a chart."""
    canvas = canvas_of(page, chart)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + begin * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], middle, steps=4)
    with page.expect_request(lambda request: "start=" in request.url):
        page.mouse.up()


def of_module(page: Page, name: str, expression: str) -> Any:
    """Return the value of an expression with a module of the page, `m`."""
    return page.evaluate(f"import('/assets/{name}.js').then(m => {expression})")


def test_a_bar_of_each_server_shows_the_stages_of_the_input(browser: Browser, tmp_path: Path) -> None:
    run = rich_run(tmp_path / "run")
    for folder, decode in ((run, 1100.0), (run / "servers/1", 3300.0)):
        us = {"read": Estimate(100, 90, 110), "decode": Estimate(decode, decode, decode)}
        save_stages(folder, StageCosts(us, 1e5, 64, 1.0, {"read": 100.0, "decode": decode}))
    with serving(run) as url, patient(browser.new_context(viewport={"width": 1280, "height": 900})) as context:
        seen = Seen(context.new_page())
        seen.page.goto(url + RUN)
        until(partial(is_drawn, seen.page))
        section = seen.page.locator("section", has_text="What the input does")
        bars = section.get_by_role("img")
        names = [str(bar.get_attribute("aria-label")) for bar in bars.all()]
        assert names == [
            "server 0 reading 100 µs, decoding 1.10 ms",
            "server 1 reading 100 µs, decoding 3.30 ms",
        ]
        widths = [[part.bounding_box()["width"] for part in bar.locator("span").all()] for bar in bars.all()]
        assert widths[0][1] / widths[0][0] == pytest.approx(11, rel=0.1)
        assert widths[1][1] / widths[0][1] == pytest.approx(3, rel=0.05)
        assert "The input of server 1 is slower than that of the others: decoding takes 3.3 ms" in section.inner_text()
        section.locator("summary").click()
        assert section.locator("tbody tr").count() == 4
        assert seen.complaints == []


def test_amounts_are_written_as_everywhere_else(opened: Opened) -> None:
    values = [0, 1, 12.3, 999.96, 1234, -1234.6, 123456, 0.01234, 0.1, 0.01, 0.001, 0.0001]
    values += [0.00009999, 1.2e-5, 1e-12, 9.9999e14, 1e15, 1.234e20]
    found = of_module(opened(), "trend", f"{values}.map(m.four_digits)")
    assert found == [four_digits(float(f"{value:.4g}")) for value in values]


def test_the_x_axis_is_the_duration_and_can_be_switched(opened: Opened) -> None:
    page = opened()
    axis = page.get_by_label("X axis")
    assert axis.locator("option").all_inner_texts() == ["duration", "step", "epoch", "clock time"]
    texts = {}
    for name in ("duration", "step", "epoch", "clock"):
        axis.select_option(name)
        until(lambda: canvas_of(page, TIME_OF_STEP).get_attribute("data-x"))
        texts[name] = point(page, TIME_OF_STEP, 0.5)[0]
        assert blank(page.locator(".plots > div")) == []
    assert texts["duration"].endswith(" s")
    assert texts["step"].startswith("step ")
    assert 1 < float(texts["epoch"].removeprefix("epoch ")) < 6
    assert texts["clock"].startswith("Sep 9 ")  # the record began at 1e9 s
    axis.select_option("epoch")
    until(lambda: x_ends(page) == (0, 6))


def test_ticks_of_the_axes_are_round(opened: Opened) -> None:
    page = opened()

    def ticks(axis: str, low: float, high: float) -> list[str]:
        found: list[str] = of_module(page, "scales", f"m.X_AXES.{axis}.ticks({low}, {high}, 5).map(each => each[1])")
        return found

    hour = 3_600_000
    assert ticks("duration", 0, 1.5 * hour) == ["0 s", "30 min", "1 h", "1 h 30 min"]
    assert ticks("duration", hour, 1.1 * hour) == ["1 h", "1 h 2 min", "1 h 4 min", "1 h 6 min"]
    assert ticks("duration", 0, 50 * hour) == ["0 s", "12 h", "1 d", "1 d 12 h", "2 d"]
    assert ticks("duration", 1000, 1500) == ["1 s", "1.1 s", "1.2 s", "1.3 s", "1.4 s", "1.5 s"]
    assert ticks("step", 0, 2100) == ["0", "500", "1,000", "1,500", "2,000"]
    assert ticks("epoch", 0, 3) == ["0", "1", "2", "3"]
    of_scales = {
        name: of_module(page, "scales", f"m.SCALES.{name}.ticks(...{span}, 5)")
        for name, span in {"linear": [0, 0.33], "log": [0.03, 250], "symlog": [0, 100]}.items()
    }
    assert of_scales["linear"] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert of_scales["log"] == pytest.approx([0.1, 1, 10, 100])
    assert of_scales["symlog"] == [0, 0.1, 1, 10, 100]


def test_waits_of_a_tenth_and_of_two_percent_differ(opened: Opened) -> None:
    """On an axis from 0 to 100%, they are two pixels apart."""
    page = opened()
    places = of_module(page, "scales", "[0, 0.1, 2, 100].map(m.SCALES.symlog.place)")
    low, high = np.diff(places)[:2] / places[-1]
    assert low > 0.08
    assert high > 0.3
    assert "logarithmic above 0.1%" in page.locator(f"{WAITING} h3").inner_text()


def test_the_pointer_shows_all_values_wherever_it_is(opened: Opened) -> None:
    page = opened()
    (place, *values) = point(page, "#machine-0", 0.6)
    assert place.endswith(" s")
    assert [each.split(":")[0] for each in values] == ["busiest core", "all cores", "of the container's limit"]
    assert page.locator(".values:visible").count() == 1
    until(lambda: page.locator(".pointer:visible").count() == page.locator(".chart").count())
    page.mouse.move(0, 0)
    until(lambda: page.locator(".pointer:visible").count() == 0)


TEXTS_OF = """chart => {
  const place = CanvasRenderingContext2D.prototype, write = place.fillText, texts = [];
  place.fillText = function (text, x, y) {
    if (this.textBaseline === "top" && this.canvas.closest(".chart").id === chart) texts.push(text);
    return write.call(this, text, x, y);
  };
  window.texts = texts;
}"""
"""JavaScript that collects what a chart writes below its x axis."""


def test_each_bar_has_the_number_of_its_epoch(opened: Opened) -> None:
    """The numbers are in the middle of the bars, so there is none at the start of the first epoch."""
    page = opened()
    page.evaluate(TEXTS_OF, "spent-0")
    page.set_viewport_size({"width": 1200, "height": 900})
    until(lambda: page.evaluate("texts.length") > 0)
    assert page.evaluate("texts") == ["1", "2", "3", "4", "5", "6"]


def test_the_y_axis_follows_the_zoom(opened: Opened) -> None:
    """A checkpoint of half a second is in the middle of each epoch. Between two of them, a step takes 80 ms."""
    page = opened()
    canvas = canvas_of(page, TIME_OF_STEP)
    low, high = ends(canvas, "y")
    assert low == 0
    assert high > 400
    page.get_by_label("X axis").select_option("epoch")
    zoom(page, TIME_OF_STEP, 0.3, 0.31)
    until(lambda: ends(canvas, "y")[1] < 300)
    assert ends(canvas, "y")[0] > 20
    page.get_by_role("button", name="Show all").click()
    until(lambda: ends(canvas, "y") == (low, high))


@pytest.mark.parametrize("axis", ["duration", "step", "epoch", "clock"])
def test_a_zoom_loads_all_rows_of_its_part_on_each_axis(opened: Opened, axis: str) -> None:
    page = opened(f"&x={axis}")
    rows = partial(canvas_of(page, "#machine-0").get_attribute, "data-rows")
    before, (first, last) = int(str(rows())), x_ends(page)
    zoom(page, "#machine-0", 0.4, 0.6)
    until(lambda: int(str(rows())) > before)  # a fifth of the time has more rows than all of it had
    begin, end = x_ends(page)
    assert first < begin < end < last


def test_keys_zoom_move_and_read_values(opened: Opened) -> None:
    page = opened()
    whole = x_ends(page)
    canvas = canvas_of(page, TIME_OF_STEP)
    canvas.focus()
    assert canvas.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    page.keyboard.press("+")
    page.keyboard.press("+")
    until(lambda: x_ends(page) == pytest.approx((0.375 * whole[1], 0.625 * whole[1])))
    page.keyboard.press("ArrowRight")
    until(lambda: x_ends(page) == pytest.approx((0.4 * whole[1], 0.65 * whole[1])))
    page.keyboard.press("-")
    until(lambda: x_ends(page) == pytest.approx((0.275 * whole[1], 0.775 * whole[1])))
    page.keyboard.press("0")
    until(lambda: x_ends(page) == whole)
    read_out = page.locator(f"{TIME_OF_STEP} .values[aria-live=polite] strong")
    for key, place in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowLeft", 0)):
        page.keyboard.press(f"Shift+{key}")
        until(read_out.inner_text, is_expected=duration_of_row(page, place).__eq__)
    help_text = page.locator(f"#{canvas.get_attribute('aria-describedby')}")
    assert "Left and Right move, + and - zoom, 0 shows all" in str(help_text.text_content())


def duration_of_row(page: Page, row: int) -> str:
    """Return the duration of a row of the steps, as the page writes it."""
    times = "fetch('/data').then(each => each.json()).then(({columns}) => columns.batches.time)"
    time = page.evaluate(times)[row]
    return str(of_module(page, "scales", f"m.duration({time})"))


def test_smoothing_and_the_log_switch_change_the_curves(opened: Opened) -> None:
    page = opened()
    canvas = canvas_of(page, TIME_OF_STEP)
    seen = [canvas.evaluate("each => each.toDataURL()")]

    def has_changed() -> bool:
        return canvas.evaluate("each => each.toDataURL()") not in seen

    page.get_by_label("Smoothing").fill("0.6")
    until(has_changed)
    assert "Bold lines are smoothed" in page.locator(".controls").inner_text()
    seen.append(canvas.evaluate("each => each.toDataURL()"))
    page.get_by_role("checkbox", name="Logarithmic").check()
    until(has_changed)
    assert ends(canvas, "y")[0] > 20  # a logarithmic axis has no zero
    assert blank(page.locator(".plots > div")) == []


def test_the_exponential_mean_begins_with_the_first_value(opened: Opened) -> None:
    source = "new m.Source({time: [1, 2, 3, 4], a: [10, null, 20, 20]}, {})"
    smoothed = of_module(opened(), "source", f"[...{source}.smoothed('a', 0.5)]")
    assert smoothed[0] == 10
    assert smoothed[1] != smoothed[1]  # the gap stays
    assert smoothed[2:] == pytest.approx([(0.25 * 10 + 0.5 * 20) / 0.75, (0.125 * 10 + 0.25 * 20 + 0.5 * 20) / 0.875])


def test_the_address_has_the_state_of_the_switches(opened: Opened) -> None:
    page = opened()
    assert urlsplit(page.url).query == urlsplit(RUN).query
    page.get_by_label("X axis").select_option("step")
    page.get_by_label("Smoothing").fill("0.5")
    page.get_by_role("checkbox", name="Logarithmic").check()
    zoom(page, TIME_OF_STEP, 0.3, 0.6)
    until(lambda: "from=" in page.url)
    other = opened(f"&{urlsplit(page.url).query.split('&', 2)[2]}")
    assert x_ends(other) == pytest.approx(x_ends(page))
    assert other.get_by_label("X axis").input_value() == "step"
    assert other.get_by_label("Smoothing").input_value() == "0.5"
    assert other.get_by_role("checkbox", name="Logarithmic").is_checked()
    rows = [partial(canvas_of(each, "#machine-0").get_attribute, "data-rows") for each in (page, other)]
    until(lambda: rows[0]() == rows[1]())


@pytest.mark.parametrize("wrong", ["x=constructor", "smooth=2", "smooth=x", "from=5&to=1", "from=x&to=2", "log=1"])
def test_a_wrong_address_shows_the_whole_training(opened: Opened, wrong: str) -> None:
    page = opened(f"&{wrong}")
    assert page.get_by_label("X axis").input_value() == "duration"
    assert page.get_by_role("button", name="Show all").is_disabled()
    assert blank(page.locator(".plots > div")) == []


def test_a_chart_is_saved_as_an_image_and_as_the_rows_that_it_shows(opened: Opened, run: Path) -> None:
    page = opened()
    zoom(page, TIME_OF_STEP, 0.3, 0.6)
    until(lambda: int(str(canvas_of(page, TIME_OF_STEP).get_attribute("data-rows"))) > 50)
    image, table = (downloaded(page, TIME_OF_STEP, kind) for kind in ("PNG", "CSV"))
    pixels = pixels_of(image)
    assert pixels.shape[0] > 2 * 168
    assert (np.ptp(pixels, axis=2) > 30).sum() > 500
    begin, end = x_ends(page)
    rows = page_data(run, True, span=span_of(run, begin, end))["columns"]["batches"]
    expected = [
        (time / 1000, step, mean, highest)
        for time, step, mean, highest in zip(
            *(rows[name] for name in ("time", "step", "step/time_ms", "step/time_ms/max")), strict=True
        )
        if time is not None and begin <= time <= end
    ]
    head, *lines = csv.reader(io.StringIO(table.decode()))
    assert head[:4] == ["seconds since the start", "unix time (s)", "step", "epoch"]
    assert head[4:] == ["time of a step", "time of a step, highest"]
    assert [(float(line[0]), float(line[2]), float(line[4]), float(line[5])) for line in lines] == expected
    assert [float(line[3]) for line in lines] == pytest.approx([step / 60 for _, step, _, _ in expected])


def downloaded(page: Page, chart: str, kind: str) -> bytes:
    """Click a button of a chart. Return the file that the browser saved."""
    with page.expect_download() as download:
        page.locator(chart).get_by_role("button", name=kind, exact=True).click()
    assert download.value.suggested_filename.startswith("manual__1_")
    return download.value.path().read_bytes()


def test_each_gpu_has_a_line_and_the_idlest_is_named(opened: Opened) -> None:
    page = opened()
    servers, each_gpu = page.locator("[id^=servers-]").all()
    until(lambda: "server 2, the idlest" in servers.inner_text())
    names = each_gpu.locator(".key").all_inner_texts()
    assert len(names) == 6
    assert [name for name in names if "idlest" in name] == ["server 2, GPU 0, the idlest"]


def test_a_line_can_be_hidden_with_the_keyboard(opened: Opened) -> None:
    page = opened()
    chart = page.locator(LOSS)
    training, validation = chart.locator(".key").all()
    before = ends(chart.locator("canvas[role]"), "y")
    training.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert validation.get_attribute("aria-pressed") == "false"
    until(lambda: ends(chart.locator("canvas[role]"), "y") != before)
    assert len(point(page, LOSS, 0.5)) == 2


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_charts_fit_on_screens_of_any_width(browser: Browser, site: str, width: int) -> None:
    with patient(browser.new_context(base_url=site, viewport={"width": width, "height": 900})) as context:
        seen = Seen(context.new_page())
        seen.page.goto(RUN)
        until(lambda: is_drawn(seen.page))
        assert not seen.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert blank(seen.page.locator(".plots > div")) == []
        assert seen.page.evaluate(CUT_KEYS) == []
        tops = """[...document.querySelectorAll(".downloads")]
          .map(each => [...each.children].map(({offsetTop}) => offsetTop))"""
        assert {len({*each}) for each in seen.page.evaluate(tops)} == {1}  # the buttons of a chart stay on one line
        assert seen.complaints == []
