"""The pages in a real browser: all plots are drawn, without errors or requests, on screens of any size and in print."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.report import compare_runs, samples_page, write_report
from tests.browser import Seen, browser
from tests.contrast import MIN_CONTRAST, contrast, least_contrast
from tests.report.rich import rich_run
from tests.report.test_report import jpeg
from tests.waiting import until

__all__ = ["browser"]
WIDE, NARROW, PAPER = 1100, 390, 703  # CSS pixels: a monitor, a phone, A4 paper with margins of 12 mm
DRAWN = {"report": 20, "compare": 8, "samples": 9}
"""Number of plots of each page."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    a, b = rich_run(folder / "a"), rich_run(folder / "b", seed=2, compute_ms=80.0)
    compare_runs([a, b], folder / "compare.html")
    return {
        "report": write_report(a, [("circle", jpeg("red"))], [("a.jpg", jpeg("blue"))]),
        "compare": folder / "compare.html",
        "samples": samples_page.write(a / "record"),
    }


class Document(Seen):
    """A page of this project on the disk."""

    def __init__(self, context: Any, path: Path) -> None:
        super().__init__(context.new_page())
        self.page.goto(path.as_uri())
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
        # A horizontal legend of three or more labels would be cut off.
        assert set(seen.page.evaluate(_LEGENDS)) <= {"vertical"}


_LEGENDS = """Bokeh.documents[0].roots().flatMap(plot => plot.above)
  .filter(item => item.type == "Legend" && item.items.length > 2).map(legend => legend.orientation)"""


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
        assert seen.complaints == []


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
