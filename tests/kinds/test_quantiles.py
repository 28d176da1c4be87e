"""The quantiles of the numbers of a table."""

import numpy as np

from pipeline.kinds.table.quantiles import BINS, MAX_SAMPLE, RowSample, joined_quantiles, quantiles_of

RANDOM = np.random.default_rng(0)


def sample_of(hashes: np.ndarray, numbers: np.ndarray, *, sampled: np.ndarray, parts: int) -> RowSample:
    sample = RowSample(sampled, numbers.shape[1])
    for some_hashes, some_numbers in zip(np.array_split(hashes, parts), np.array_split(numbers, parts), strict=True):
        sample.add(some_hashes, some_numbers)
    return sample


def test_a_sample_is_near_all_rows():
    rows = 10 * MAX_SAMPLE
    numbers = RANDOM.normal(size=(rows, 1)).astype(np.float32)
    hashes = RANDOM.integers(0, 2**64, rows, np.uint64)
    sample = sample_of(hashes, numbers, sampled=hashes[:MAX_SAMPLE], parts=3)
    assert sample.count(0) == MAX_SAMPLE
    shares = [(numbers <= quantile).mean() for quantile in sample.quantiles(0)]
    np.testing.assert_allclose(np.diff(shares), 1 / BINS, rtol=0.25)


def test_copies_of_a_row_count_as_often_as_the_sample_has_them():
    hashes = np.array([5, *[9] * 20, 7], np.uint64)
    numbers = np.array([[1], *[[2]] * 20, [3]], np.float32)
    sample = sample_of(hashes, numbers, sampled=np.array([5, *[9] * 9], np.uint64), parts=2)
    assert sample.quantiles(0).tolist() == [1.0] * 4 + [2.0] * (BINS - 3)


def test_an_outlier_is_beyond_the_quantiles():
    values = np.append(RANDOM.normal(size=1_000), 1e12)
    assert quantiles_of(values, np.ones(len(values)))[-1] < 10


def test_missing_values_are_left_out():
    numbers = np.array([[np.nan, np.nan], [3, np.nan]], np.float32)
    hashes = np.array([1, 2], np.uint64)
    sample = sample_of(hashes, numbers, sampled=hashes, parts=1)
    assert set(sample.quantiles(0).tolist()) == {3.0}
    assert sample.quantiles(1).tolist() == []
    assert (sample.count(0), sample.count(1)) == (1, 0)


def test_versions_together_have_the_quantiles_of_their_rows():
    one, other = RANDOM.normal(size=30_000), RANDOM.normal(5, size=10_000)
    quantiles = [quantiles_of(values, np.ones(len(values))).tolist() for values in (one, other)]
    both = np.concatenate((one, other))
    joined = joined_quantiles([*quantiles, []], [len(one), len(other), 0])
    shares = [(both <= quantile).mean() for quantile in joined]
    np.testing.assert_allclose(shares, np.linspace(0.005, 0.995, BINS + 1), atol=0.04)
