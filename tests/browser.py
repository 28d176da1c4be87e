"""A real browser for tests: the Chromium of this machine, driven by Playwright. Import `browser`, the fixture."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless browser. Where there is none the test is skipped, but on CI it fails."""
    if CHROMIUM is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # Inside a container there is no sandbox to be had; the pages are our own.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()
