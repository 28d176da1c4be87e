"""Means over rounds, and their intervals."""

import numpy as np
import pytest

from pipeline.evaluation.blocks import geometric_mean


def test_the_interval_of_a_ratio_is_that_of_student():
    base = np.array([100.0, 200.0, 50.0])
    found = geometric_mean(base * np.exp([0.1, 0.2, 0.3]) / base)
    # Mean 0.2, standard deviation 0.1, three rounds: 0.2 -+ 4.303 x 0.1 / sqrt(3).
    assert found.value == pytest.approx(np.exp(0.2))
    assert (found.low, found.high) == pytest.approx((np.exp(0.2 - 0.24843), np.exp(0.2 + 0.24843)), rel=1e-4)


def test_a_slow_minute_of_the_machine_does_not_change_a_ratio():
    base = np.array([100.0, 40.0, 90.0])
    found = geometric_mean(2.5 * base / base)
    assert (found.value, found.low, found.high) == pytest.approx((2.5, 2.5, 2.5))
