"""How amounts are written."""

import pytest

from pipeline.evaluation.scales import four_digits


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
