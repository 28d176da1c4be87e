"""A real browser for tests: the Chromium of this machine, driven by Playwright. Import the fixture `browser`."""

import io
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright

from scripts.chromium import CHROMIUM
from tests.waiting import until


def chromium() -> str:
    """Return the path of Chromium. If there is none, skip the test."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless browser."""
    with sync_playwright() as playwright:
        # Chromium has no sandbox inside a container. The pages are trusted, because the tests create them.
        launched = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield launched
        launched.close()


def patient(context: BrowserContext) -> BrowserContext:
    """Raise the timeout of each browser action from 30 seconds to three minutes, for slow machines."""
    context.set_default_timeout(180_000)
    return context


class Seen:
    """A page in a browser, with the warnings, errors and requests of the page and its frames."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = page
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def until(self, condition: str) -> None:
        """Wait for a condition in the page. `wait_for_function` of Playwright needs `eval`, which the page forbids."""
        until(lambda: self.page.evaluate(condition))

    def blank_plots(self) -> list[str]:
        """Return the ids of the plots that are blank in a screenshot of the page."""
        pixels = pixels_of(self.page.screenshot(full_page=True))
        boxes = self.page.evaluate(_BOXES)
        return [name for name, *box in boxes if colored(pixels, *map(round, box)) < MIN_COLORED]


_BOXES = """[...document.querySelectorAll(".plots > div")].map(plot => {
  const box = plot.getBoundingClientRect();
  return [plot.id, box.left + scrollX, box.top + scrollY, box.width, box.height];
})"""
CUT_LEGENDS = """[...document.querySelectorAll(".plots > div")].flatMap(place => {
  if (!place.checkVisibility()) return [];  // in a folded part of the page
  const hosts = root => [...root.querySelectorAll("*")].filter(each => each.shadowRoot)
    .flatMap(each => [each, ...hosts(each.shadowRoot)]);
  const plot = place.getBoundingClientRect();
  return hosts(place).filter(each => each.classList.contains("bk-Legend"))
    .map(each => each.getBoundingClientRect())
    .filter(box => box.left < plot.left || box.right > plot.right + 1 || box.bottom > plot.bottom)
    .map(() => place.id);
})"""
"""JavaScript that returns the ids of the plots of Bokeh whose legend exceeds the plot."""
CUT_KEYS = """[...document.querySelectorAll(".key")].filter(each => {
  const box = each.getBoundingClientRect();
  return box.left < 0 || box.right > innerWidth || each.scrollWidth > each.clientWidth + 1;
}).map(each => each.innerText)"""
"""JavaScript that returns the entries of the legends of the live charts that are cut off."""
CUT_TITLES = """Bokeh.documents[0].roots().filter(plot => plot.title?.text).filter(plot => {
  const {text, text_font, text_font_size, text_font_style} = plot.title;
  const brush = document.createElement("canvas").getContext("2d");
  brush.font = `${text_font_style} ${text_font_size} ${text_font}`;
  return brush.measureText(text).width > plot.inner_width;
}).map(plot => plot.title.text)"""
"""JavaScript that returns the titles that are wider than the frame of their plot."""
MIN_COLORED = 50
"""Minimum number of colored pixels in a plot that is not blank. A legend entry alone has fewer."""


def blank(plots: Locator) -> list[str]:
    """Return the ids of the blank plots. Each plot is scrolled into view, also in a frame."""
    return [str(plot.get_attribute("id")) for plot in plots.all() if not _is_drawn(plot.screenshot())]


def _is_drawn(png: bytes) -> bool:
    pixels = pixels_of(png)
    return colored(pixels, 0, 0, pixels.shape[1], pixels.shape[0]) >= MIN_COLORED


def pixels_of(png: bytes) -> np.ndarray:
    """Return the pixels of a PNG, of shape (height, width, 3), from 0 to 255."""
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def colored(pixels: np.ndarray, left: int, top: int, width: int, height: int) -> int:
    """Count the pixels that are not gray. On all pages, axes and text are gray and curves are colored."""
    return int((np.ptp(pixels[top : top + height, left : left + width], axis=2) > 30).sum())
