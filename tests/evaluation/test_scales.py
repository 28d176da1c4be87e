"""How figures are rounded and written."""

import numpy as np
import pytest

from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.metrics import predictions_class
from pipeline.evaluation.scales import LOWER_IS_BETTER, SCALES, four_digits, rounded, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.3, "12.30"),
        (0.5, "0.5000"),
        (0.00012345, "0.0001234"),
        (1234.4, "1,234"),
        (123456.0, "123,500"),
        (999.96, "1,000"),
        (9.99996, "10.00"),
        (-2.5, "-2.500"),
        (0.0, "0.000"),
        (-0.0, "0.000"),
        (0.00001234, "1.234e-05"),
        (2e20, "2e+20"),
        (float("nan"), "nan"),
    ],
)
def test_amounts_have_four_significant_digits(value: float, text: str):
    assert four_digits(value) == text


@pytest.mark.parametrize(
    ("name", "value", "sign", "text"),
    [
        ("accuracy", 0.6123, "", "61.2%"),
        ("auc", 0.87349, "", "0.873"),
        ("r2", -1.5, "", "-1.500"),
        ("mae", 20431.7, "", "20,430"),
        ("log_loss", 0.01, "+", "+0.01000"),
    ],
)
def test_a_figure_is_written_on_its_scale(name: str, value: float, sign: str, text: str):
    assert shown(name, value, sign) == text


def test_amounts_keep_their_digits_and_shares_their_decimals():
    assert rounded("mae", Estimate(1.23456789123e-7, 0.0, 1e12)) == (1.23456789e-7, 0.0, 1e12)
    assert rounded("auc", Estimate(0.12345678, 0.1, 0.2)) == (0.123457, 0.1, 0.2)


def test_each_figure_has_a_scale():
    labels, probabilities = np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    for task in ("one_label", "classes"):
        answers = predictions_class(task).of_batch(labels, probabilities)
        assert set(answers.figures) <= set(SCALES)
    numbers = predictions_class("regression").of_batch(labels, probabilities[:, 0])
    assert set(numbers.figures) <= set(SCALES)
    assert (answers.score_figure in LOWER_IS_BETTER, numbers.score_figure in LOWER_IS_BETTER) == (True, True)
