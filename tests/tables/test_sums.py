"""Exact sums, compared with fractions."""

from fractions import Fraction

import numpy as np
import pytest

from pipeline.tables.sums import ExactSums


def sums_of(values: np.ndarray) -> ExactSums:
    sums = ExactSums()
    sums.add(values.astype(np.float32))
    return sums


RANDOM = np.random.default_rng(0)
CASES = {
    "usual": RANDOM.normal(size=1000),
    "large": RANDOM.normal(size=1000) * 1e30,
    "denormal": RANDOM.normal(size=100) * 1e-42,
    "smallest and largest": np.array([1.4e-45, -1.4e-45, 3.4028235e38, -3.4028235e38, 0.0, -0.0]),
    "none": np.array([]),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_are_exact(name: str):
    values = CASES[name].astype(np.float32)
    exact = [Fraction(float(value)) for value in values]
    sums = sums_of(values)
    mean = sum(exact, Fraction(0)) / max(len(exact), 1)
    squares = sum((value * value for value in exact), Fraction(0)) / max(len(exact), 1)
    assert (sums.count, sums.mean) == (len(values), mean)
    assert sums.deviation == pytest.approx(float(squares - mean**2) ** 0.5, rel=1e-15, abs=0)


def test_neither_order_nor_division_changes_a_sum():
    values = np.concatenate([CASES["usual"], CASES["large"], CASES["denormal"]])
    whole = sums_of(values)
    divided = ExactSums()
    for part in np.array_split(RANDOM.permutation(values), 7):
        divided.add(part.astype(np.float32))
    assert divided == whole


def test_missing_numbers_are_left_out():
    sums = sums_of(np.array([1.0, np.nan, 3.0]))
    assert (sums.count, sums.mean, sums.deviation) == (2, 2, 1)
