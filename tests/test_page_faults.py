"""What a person would see at once in a page."""

import pytest

from tests.page_faults import odd_words

ODD = (
    "trained for 1 epochs",
    "from 90% (A) to 90% (B)",
    "60.0% to 60.0%",
    "An epoch took from 1.8 s to 1.8 s (median 1.8 s)",
    "The difference is +0.0 points",
    "0.0 GB left",
    "5.0% of undefined",
    "late by 17110247 ms",
    "nan ms a step",
    "dataset: None",
)
SOUND = (
    "1 epoch, 2 epochs, 21 epochs and 0.1 epochs",
    "from 1.8 s to 1.81 s",
    "1 to 10, 0.1 to 1 and -0.74% to 0.74%",
    "0.0% of 10 images, and 0.05 points",
    "epoch 1 of 3, at step 17,110,247",
    "the loss became nan at step 3",
    "None",
)


@pytest.mark.parametrize("text", ODD)
def test_odd_words_are_found(text: str) -> None:
    assert len([*odd_words(text)]) == 1


@pytest.mark.parametrize("text", SOUND)
def test_sound_words_are_not_odd(text: str) -> None:
    assert [*odd_words(text)] == []
