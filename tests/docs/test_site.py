"""The documentation site in a real browser, without a network."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Seen, browser
from tests.contrast import MIN_CONTRAST, contrast

__all__ = ["browser"]
pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
DESKTOP, PHONE = 1280, 390  # CSS pixels
COLORS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const painted = colors => {
    canvas.clearRect(0, 0, 1, 1);
    for (const color of colors) {
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const above = element => element ? [...above(element.parentElement), getComputedStyle(element).backgroundColor] : [];
  const texts = [...document.querySelectorAll("article :is(p, li, td, th, h1, h2, h3, a, code, figcaption)")];
  const pairs = texts.filter(each => each.innerText?.trim()).map(each => {
    const grounds = above(each);
    return [painted(grounds), painted([...grounds, getComputedStyle(each).color])];
  });
  return [...new Set(pairs.map(JSON.stringify))].map(JSON.parse);
}"""
"""Each pair of background and text color in the article."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def seen(browser: Any) -> Iterator[Seen]:
    """A page of a browser that cannot reach any network."""
    with browser.new_context(viewport={"width": DESKTOP, "height": 900}, offline=True) as context:
        yield Seen(context.new_page())


def pages(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_readable_offline(seen: Seen, site: Path, width: int, scheme: Any):
    seen.page.set_viewport_size({"width": width, "height": 900})
    seen.page.emulate_media(color_scheme=scheme)
    faults = []
    for path in pages(site):
        seen.page.goto(path.as_uri())
        if seen.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            faults.append(f"{path.name} is wider than the screen")
        if seen.page.evaluate("[...document.images].some(each => each.complete && !each.naturalWidth)"):
            faults.append(f"{path.name} has an image that is not shown")
        least = min((contrast(*pair) for pair in seen.page.evaluate(COLORS)), default=MIN_CONTRAST)
        if least < MIN_CONTRAST:
            faults.append(f"{path.name} has text with a contrast of {least:.2f}")
    assert faults == []
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith((site.as_uri(), "data:"))] == []


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("resize", "Settings"),
        ("backfill", "Backfill dates, train once"),
        ("why is my GPU waiting", "Why is my GPU waiting?"),
        ("checkpoint", "Exact resume"),
        ("pytorch", "Read the shards"),
        ("s3", "Use data in another cloud"),
        ("mlflow", "Use MLflow or Weights & Biases"),
        ("focal loss", "Use your own loss"),
    ],
)
def test_the_search_finds_the_page_that_answers(seen: Seen, site: Path, question: str, answer: str):
    seen.page.goto(f"{(site / 'search.html').as_uri()}?q={question.replace(' ', '+')}")
    seen.until("document.querySelector('#search-results p.search-summary')?.innerText.includes('found')")
    titles = seen.page.locator("#search-results li a").all_inner_texts()
    assert any(answer in title for title in titles[:10]), titles


def test_pages_come_before_the_changelog(seen: Seen, site: Path):
    seen.page.goto(f"{(site / 'search.html').as_uri()}?q=retrain")
    seen.until("document.querySelector('#search-results p.search-summary')?.innerText.includes('found')")
    links = [link.get_attribute("href") or "" for link in seen.page.locator("#search-results li a").all()]
    of_changelog = ["changelog" in link for link in links]
    assert any(of_changelog)
    assert of_changelog == sorted(of_changelog)
