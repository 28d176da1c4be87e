"""The pages in a real browser: all plots are drawn, without errors or requests, on screens of any size and in print."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.evaluation.estimates import MAX_MISTAKES
from pipeline.report import compare_runs, samples_page, write_report
from pipeline.report.compare import Comparison
from pipeline.report.compare_page import Named, render
from pipeline.report.compared_run import load_compared
from pipeline.report.components import thumbnail
from pipeline.report.mistakes import MAX_SHOWN, THUMBNAIL
from tests.axe import SIZES, serious
from tests.browser import CUT_LEGENDS, CUT_TITLES, Seen, blank, browser, patient
from tests.contrast import MIN_CONTRAST, contrast, least_contrast
from tests.report.evaluated import evaluated
from tests.report.rich import rich_run
from tests.report.test_report import describe
from tests.waiting import until

__all__ = ["browser"]
WIDE, NARROW, PAPER = 1280, 390, 703  # CSS pixels: a monitor, a phone, A4 paper with margins of 12 mm
MAX_HEIGHTS = {WIDE: 5000, NARROW: 9000}
"""Limits for the height of the report of a rich run, in CSS pixels, by the width."""
MAX_BYTES = 10e6
DRAWN = {"report": 21, "compare": 8, "samples": 9}
"""Number of plots of each page."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    a, b = rich_run(folder / "a"), rich_run(folder / "b", seed=2, compute_ms=80.0)
    compare_runs([a, b], folder / "compare.html")
    return {
        "report": write_report(
            a, [(f"shapes/a/long/path/of/one/image-{number:05d}.jpg", noise()) for number in range(40)]
        ),
        "compare": folder / "compare.html",
        "samples": samples_page.write(a / "record"),
    }


class Document(Seen):
    """A page of this project on the disk, with all its parts unfolded unless `unfolded` is false."""

    def __init__(self, context: Any, path: Path, unfolded: bool = True) -> None:
        super().__init__(patient(context).new_page())
        self.page.goto(path.as_uri())
        if unfolded:
            self.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        self.until("Bokeh.documents.length && Bokeh.documents[0].is_idle")

    def plots(self) -> int:
        """Return the number of plots."""
        return int(self.page.locator(".plots > div").count())

    def is_too_wide(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["report", "compare", "samples"])
def test_all_figures_are_drawn_in_light_mode_in_dark_mode_and_in_print(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    with browser.new_context(viewport={"width": WIDE, "height": 900}) as context:
        seen = Document(context, pages[name])
        assert seen.plots() == DRAWN[name]
        assert seen.blank_plots() == []
        assert not seen.is_too_wide()
        seen.page.emulate_media(color_scheme="dark")
        assert background(seen) == "rgb(16, 19, 22)"
        assert seen.blank_plots() == []
        seen.page.emulate_media(color_scheme="dark", media="print")
        seen.page.set_viewport_size({"width": PAPER, "height": 900})
        assert background(seen) == "rgb(255, 255, 255)"
        assert seen.blank_plots() == []
        assert not seen.is_too_wide()
        assert seen.complaints == []
        assert seen.requests == [pages[name].as_uri()]


def test_contrast_follows_wcag() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((0x77, 0x77, 0x77), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)
    assert contrast((0x7D, 0x84, 0x8C), (255, 255, 255)) < MIN_CONTRAST


@pytest.mark.long
def test_the_text_of_plots_has_contrast_in_light_mode_in_dark_mode_and_in_print(
    browser: Any, pages: dict[str, Path]
) -> None:
    with browser.new_context(viewport={"width": WIDE, "height": 900}) as context:
        seen = Document(context, pages["report"])
        for scheme, media in (("light", "screen"), ("dark", "screen"), ("dark", "print"), ("light", "screen")):
            seen.page.emulate_media(color_scheme=scheme, media=media)
            until(lambda: least_contrast(seen.page) >= MIN_CONTRAST)


@pytest.mark.long
@pytest.mark.parametrize("width", MAX_HEIGHTS)
def test_the_report_is_short_enough_to_read(browser: Any, pages: dict[str, Path], width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}) as context:
        seen = Document(context, pages["report"], unfolded=False)
        assert seen.page.evaluate("document.documentElement.scrollHeight") <= MAX_HEIGHTS[width]
        assert not seen.is_too_wide()
        assert blank(seen.page.locator("[id^=timeline-], [id^=learning-]")) == []


@pytest.mark.long
def test_a_class_is_chosen_without_scripts(browser: Any, pages: dict[str, Path]) -> None:
    with browser.new_context(viewport={"width": WIDE, "height": 900}, java_script_enabled=False) as context:
        page = patient(context).new_page()
        page.goto(pages["report"].as_uri())
        shown, box = page.locator(".mistake:visible"), page.get_by_label("Show")
        assert shown.count() == MAX_MISTAKES
        box.select_option("circle (20)")
        assert shown.count() == 20
        assert {each.get_attribute("alt") for each in shown.locator("img").all()} == {"circle, predicted as square"}
        box.select_option("all 40")
        assert shown.count() == 40
        assert "shapes/a/long/path/of/one/image-00039.jpg" in shown.last.inner_text()
        for link in page.locator("nav a").all():
            assert page.locator(str(link.get_attribute("href"))).count() == 1
        note = page.locator("noscript p")  # Playwright finds no text inside of `noscript`.
        assert note.is_visible()
        assert "This browser runs no scripts" in note.inner_text()


@pytest.mark.long
def test_a_page_with_the_most_pictures_is_small(tmp_path: Path) -> None:
    describe(tmp_path)
    names = [f"class {number}" for number in range(MAX_SHOWN)]
    evaluated(tmp_path, names, [(number, 0, 0.9) for number in range(MAX_SHOWN)] * 2)
    report = write_report(tmp_path, [(f"{number}.jpg", noise()) for number in range(MAX_SHOWN)])
    assert report.read_text().count("<img") == MAX_SHOWN
    assert report.stat().st_size < MAX_BYTES


def noise() -> str:
    """Return the worst image for the size of a page."""
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (THUMBNAIL, THUMBNAIL, 3), np.uint8)
    Image.fromarray(pixels).save(out, "JPEG", quality=95)
    uri = thumbnail(out.getvalue(), THUMBNAIL)
    assert uri
    return uri


def background(seen: Seen) -> str:
    return str(seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.long
@pytest.mark.parametrize("name", DRAWN)
def test_pages_fit_on_a_phone(browser: Any, pages: dict[str, Path], name: str) -> None:
    with browser.new_context(viewport={"width": NARROW, "height": 900}) as context:
        seen = Document(context, pages[name])
        assert (seen.plots(), seen.blank_plots()) == (DRAWN[name], [])
        assert not seen.is_too_wide()
        assert seen.complaints == []
        until(lambda: seen.page.evaluate(CUT_LEGENDS) == [])
        assert seen.page.evaluate(CUT_TITLES) == []


@pytest.mark.long
@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("name", DRAWN)
def test_pages_have_no_serious_accessibility_violation(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}) as context:
        seen = Document(context, pages[name])
        assert serious(seen.page) == []
        assert seen.page.evaluate(CUT_LEGENDS) == []


@pytest.mark.long
def test_the_wheel_scrolls_the_page_and_a_drag_moves_all_panels(browser: Any, pages: dict[str, Path]) -> None:
    ends = "Bokeh.documents[0].roots().slice(0, 2).map(panel => panel.x_range.end)"
    with browser.new_context(viewport={"width": WIDE, "height": 900}) as context:
        seen = Document(context, pages["samples"])
        before, scrolled = seen.page.evaluate(ends), seen.page.evaluate("scrollY")
        box = seen.page.locator("#utilization-0").bounding_box()
        seen.page.mouse.move(box["x"] + 500, box["y"] + 120)
        seen.page.mouse.wheel(0, 30)
        seen.until(f"scrollY == {scrolled} + 30")
        assert seen.page.evaluate(ends) == before
        seen.page.mouse.move(box["x"] + 500, box["y"] + 90)
        seen.page.mouse.down()
        seen.page.mouse.move(box["x"] + 400, box["y"] + 90, steps=5)
        seen.page.mouse.up()
        seen.until(f"{ends}[0] > {before[0]}")
        first, second = seen.page.evaluate(ends)
        assert first == second


@pytest.fixture(scope="module")
def twenty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison of 20 runs: the first two differ only in the seed."""
    folder = tmp_path_factory.mktemp("twenty")
    runs = [rich_run(folder / f"run{number}", seed=number, epochs=2, steps=12) for number in range(20)]
    for number, run in enumerate(runs):
        described = json.loads((run / "run.json").read_text())
        settings = {**described["settings"], "seed": number, "batch_size": 32 + max(1, number)}
        (run / "run.json").write_text(json.dumps({**described, "settings": settings}))
    compare_runs(runs, folder / "compare.html")
    return folder / "compare.html"


SHOWN = """letter => new Set(Bokeh.documents[0].roots().flatMap(plot => plot.renderers)
  .filter(each => each.visible && each.tags[1]?.includes(letter)).map(each => each.tags[0]))"""
"""JavaScript that returns the kinds of the visible lines of a run."""


@pytest.mark.long
def test_each_run_of_a_comparison_can_be_switched_off(browser: Any, twenty: Path) -> None:
    with browser.new_context(viewport={"width": WIDE, "height": 900}) as context:
        seen = Document(context, twenty)

        def shown(letter: str) -> set[str]:
            return set(seen.page.evaluate(f"[...({SHOWN})('{letter}')]"))

        # Of more than five runs, those that differ only in the seed are drawn as their mean.
        until(lambda: shown("A") == {"run", "group"})
        assert shown("T") == {"run"}
        seen.page.get_by_label("Means over seeds").uncheck()
        assert shown("A") == {"run", "member"}
        box = seen.page.locator("input[value=T]")
        box.focus()
        seen.page.keyboard.press("Space")
        assert shown("T") == set()
        assert shown("S") == {"run"}
        assert seen.page.url.endswith("#hidden=T&means=0")
        seen.page.reload()  # The address keeps the switches.
        seen.until("Bokeh.documents.length && Bokeh.documents[0].is_idle")
        until(lambda: shown("T") == set())
        assert not box.is_checked()
        seen.page.get_by_role("button", name="None").click()
        assert [shown(letter) for letter in "AST"] == [set()] * 3
        seen.page.get_by_role("button", name="All").click()
        assert shown("T") == {"run"}
        # Bokeh says so of a plot without a visible line.
        assert [each for each in seen.complaints if "could not set initial ranges" not in each] == []


@pytest.mark.long
def test_a_live_comparison_loads_itself_again_until_a_box_is_unchecked(browser: Any, tmp_path: Path) -> None:
    runs = [load_compared(rich_run(tmp_path / name, epochs=2, steps=12)) for name in "ab"]
    page = tmp_path / "live.html"
    page.write_text(render(Comparison(runs), [Named("a"), Named("b")], reload_s=60))
    with browser.new_context(viewport={"width": WIDE, "height": 900}) as context:
        context.clock.install()
        seen = Document(context, page)
        seen.page.evaluate("window.is_first = true")
        context.clock.fast_forward(30_000)
        seen.page.locator("input[value=B]").uncheck()
        context.clock.fast_forward(31_000)
        assert seen.page.evaluate("window.is_first")  # The person has just used the page.
        seen.page.locator("#all").focus()
        seen.page.keyboard.press("Shift")
        context.clock.fast_forward(120_000)  # The keyboard is at a button.
        assert seen.page.evaluate("window.is_first")
        seen.page.evaluate("document.activeElement.blur()")
        with seen.page.expect_event("load"):
            context.clock.fast_forward(61_000)
        assert not seen.page.locator("input[value=B]").is_checked()
        seen.page.get_by_label("Show the newest values").uncheck()
        assert seen.page.url.endswith("#hidden=B&means=0&live=0")
        seen.page.reload()
        assert not seen.page.get_by_label("Show the newest values").is_checked()
        assert not seen.page.locator("input[value=B]").is_checked()


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_a_comparison_of_twenty_runs_fits_on_any_screen(browser: Any, twenty: Path, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}) as context:
        seen = Document(context, twenty)
        assert seen.blank_plots() == []
        assert not seen.is_too_wide()
        assert seen.page.locator(".results tbody tr").count() == 20
        assert seen.page.locator(".switches input[value]").count() == 20
        assert seen.complaints == []
