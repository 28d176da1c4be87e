"""The page of a comparison of inputs in a real browser: all is drawn, and nothing is fetched."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.report import inputs_page
from tests.browser import Seen, browser
from tests.contrast import MIN_CONTRAST, least_contrast
from tests.tuning.compared import compared, left_out

__all__ = ["browser"]
DESKTOP, PHONE = 1100, 390  # CSS pixels


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = compared(tmp_path_factory.mktemp("comparison"), step_ms=10.0)
    return Path(inputs_page.write(folder)["page"])


class Document(Seen):
    """A page of ours on disk."""

    def __init__(self, context: Any, path: Path) -> None:
        super().__init__(context.new_page())
        self.page.goto(path.as_uri())
        self.until("Bokeh.documents.length && Bokeh.documents[0].is_idle")


@pytest.mark.long
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_all_figures_are_drawn_in_light_and_in_dark(browser: Any, page: Path, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}, offline=True) as context:
        seen = Document(context, page)
        assert seen.page.locator(".plots > div").count() == 6 + 2  # utilization, times
        for scheme in ("light", "dark"):
            seen.page.emulate_media(color_scheme=scheme)
            assert seen.blank_plots() == []
            assert least_contrast(seen.page) >= MIN_CONTRAST
            assert not seen.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert seen.complaints == []
        assert seen.requests == [page.as_uri()]


@pytest.mark.long
def test_tables_can_be_scrolled_by_keyboard(browser: Any, page: Path) -> None:
    with browser.new_context(viewport={"width": PHONE, "height": 900}) as context:
        seen = Document(context, page)
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.className") == "scroll"
        seen.page.keyboard.press("ArrowRight")
        seen.until("document.activeElement.scrollLeft > 0")


def test_the_page_gives_advice_with_its_numbers(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "Use pixels" in text or "Use cached images" in text or "Use resized images" in text
    assert "H100s with ResNet-50 fed from the disk / memory" in text
    assert "B200 with RetinaNet 505 (MLPerf Storage simulates it)" in text


@pytest.mark.long
def test_a_contender_that_was_left_out_is_named_with_its_reason(tmp_path: Path) -> None:
    written = inputs_page.write(left_out(tmp_path, "files"))
    text = Path(written["page"]).read_text("utf-8")
    assert "raw files: left out, because its images are in a bucket." in text
    assert len(written["rows"]) == 5
