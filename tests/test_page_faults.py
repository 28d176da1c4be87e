"""What a person would see at once in a page."""

import pytest
from playwright.sync_api import Browser

from tests.browser import browser
from tests.page_faults import faults, odd_words

__all__ = ["browser"]

ODD = (
    "trained for 1 epochs",
    "from 90% (A) to 90% (B)",
    "60.0% to 60.0%",
    "An epoch took from 1.8 s to 1.8 s (median 1.8 s)",
    "The difference is +0.0 points",
    "0.0 GB left",
    "5.0% of undefined",
    "late by 17110247 ms",
    "a total of 17110247",
    "1 slots, 2 slots",
    "1 of 1 tasks",
    "1 parts",
    "1 workers",
    "accuracy 5.0% to 5.0%, last 5.0%",
    "nan ms a step",
    "dataset: None",
)
SOUND = (
    "1 epoch, 2 epochs, 21 epochs and 0.1 epochs",
    "from 1.8 s to 1.81 s",
    "1 to 10, 0.1 to 1 and -0.74% to 0.74%",
    "0.0% of 10 images, and 0.05 points",
    "epoch 1 of 3, at step 17,110,247",
    "1 to 10, 1 to 1,000, 5.0% to 5.01% and 12 to 12.5",
    "2026-11-29, 20261129T101500 and runs/20261129/1",
    "1 slot, 2 tasks, 11 workers",
    "the loss became nan at step 3",
    "None",
)


@pytest.mark.parametrize("text", ODD)
def test_odd_words_are_found(text: str) -> None:
    assert len([*odd_words(text)]) == 1


@pytest.mark.parametrize("text", SOUND)
def test_sound_words_are_not_odd(text: str) -> None:
    assert [*odd_words(text)] == []


PAGES = {
    "": "<p>A page <span style='overflow: hidden; text-overflow: ellipsis' title='with a title'>is sound</span>.</p>",
    "the page scrolls sideways": "<div style='width: 3000px'>wide</div>",
    "cut: P": "<p style='width: 50px; overflow: hidden; white-space: nowrap'>a text that is cut off</p>",
    "broken: training": "<p style='width: 20px; word-break: break-all; font: 16px serif'>training</p>",
    "covered: one / two": "one <span style='margin-left: -30px'>two</span>",
    "odd: 1 epochs": "<p>1 epochs</p>",
    "idle: a tab stop": "<div role='region' tabindex='0'>nothing to scroll</div>",
}
"""A page with each fault, by the beginning of the fault."""


@pytest.mark.parametrize("fault", PAGES)
def test_the_faults_of_a_page_are_found(browser: Browser, fault: str) -> None:
    page = browser.new_page()
    page.set_content(PAGES[fault])
    found = faults(page)
    page.close()
    assert len(found) == bool(fault)
    assert all(each.startswith(fault) for each in found)
