"""The best of several epochs looks too good on the split that chose it, and not on another one."""

import re
from pathlib import Path

import numpy as np
import pandas
import pytest

from pipeline.evaluation.best_epoch import best_epoch

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "promotion.md"
ACCURACY = 0.9
"""Each model is correct for an image with this probability, whatever its epoch."""
TRAININGS = 20_000
"""The standard error of a mean over all trainings is below 0.02 points."""


def optimism(images: int, epochs: int) -> tuple[float, float]:
    """Return by how many points the accuracy of the best epoch is too high: on validation, and on test.

    All epochs are equally good, and make their mistakes independently of each other. So a training chooses noise.
    """
    random = np.random.default_rng(0)
    validated, tested = random.binomial(images, ACCURACY, (2, TRAININGS, epochs)) / images
    chosen = validated.argmax(axis=1)
    for number in range(20):  # as a training chooses
        best = best_epoch(pandas.DataFrame({"step": range(1, epochs + 1), "val_accuracy": validated[number]}))
        assert best is not None
        assert best.epoch == chosen[number] + 1
    found = (np.take_along_axis(each, chosen[:, np.newaxis], axis=1) for each in (validated, tested))
    on_validation, on_test = (100 * float(each.mean() - ACCURACY) for each in found)
    return on_validation, on_test


def stated() -> dict[tuple[int, int], tuple[float, float]]:
    """Return the table in the documentation: by images and epochs, the points on validation and on test."""
    rows = re.findall(r"^\| (\d[\d,]*) \| (\d+) \| \+(\d\.\d) \| \+(\d\.\d) \|$", PAGE.read_text(), re.MULTILINE)
    return {(int(images.replace(",", "")), int(epochs)): (float(a), float(b)) for images, epochs, a, b in rows}


@pytest.mark.parametrize("images", [200, 1000])
@pytest.mark.parametrize("epochs", [1, 10, 60])
def test_only_the_split_that_chooses_the_epoch_flatters_the_model(images: int, epochs: int):
    on_validation, on_test = optimism(images, epochs)
    assert (on_validation, on_test) == pytest.approx(stated()[images, epochs], abs=0.06)
    assert abs(on_test) < 0.06
    assert on_validation > 1 or epochs == 1
