"""Curves: gaps stay gaps, thinning keeps peaks, and smoothing does not shift."""

import numpy as np
import pytest

from pipeline.report.series import joined, pieces, smoothed, thinned


def test_a_gap_breaks_the_curve() -> None:
    x = np.array([0.0, 1.0, 9.0, 10.0])
    parts = list(pieces(x, np.array([5.0, 6.0, 7.0, np.nan]), gap=2))
    assert [part[0].tolist() for part in parts] == [[0, 1], [9]]
    joined_x, joined_y = joined(parts)
    assert np.isnan(joined_x).tolist() == [False, False, True, False]
    assert joined_y[[0, 1, 3]].tolist() == [5, 6, 7]


def test_missing_values_give_no_curve() -> None:
    assert [len(values) for values in joined(list(pieces(np.arange(3.0), np.full(3, np.nan), gap=2)))] == [0, 0]


@pytest.mark.parametrize(("length", "sigma"), [(1, 3.0), (5, 100.0), (200, 3.0), (200, 0.1)])
def test_smoothing_keeps_a_constant_at_the_ends(length: int, sigma: float) -> None:
    assert smoothed(np.full(length, 7.0), sigma) == pytest.approx(np.full(length, 7.0))


def test_smoothing_spreads_a_peak_symmetrically() -> None:
    values = np.zeros(101)
    values[50] = 1
    result = smoothed(values, 2.0)
    assert result == pytest.approx(result[::-1])
    assert result[50] == pytest.approx(1 / (2 * np.sqrt(2 * np.pi)), rel=0.01)


def test_thinning_keeps_extremes_and_order() -> None:
    x = np.arange(100_000.0)
    y = np.sin(x / 500)
    y[77_777], y[33_333] = 9, -9
    thin_x, thin_y = thinned(x, y, 1000)
    assert len(thin_x) <= 1000
    assert (np.diff(thin_x) > 0).all()
    assert (thin_x[thin_y.argmax()], thin_x[thin_y.argmin()]) == (77_777, 33_333)
