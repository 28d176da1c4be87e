"""The facts of the numbers of a table whose training rows are more than the sample for the quantiles."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.snapshot.part import PartLimits
from tests.tables.built import built, parquet_of

SAMPLE = 500
ROWS = 2_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a small sample, and several parts, because a build of 100,000 rows takes long."""
    monkeypatch.setattr("pipeline.kinds.table.facts.MAX_SAMPLE", SAMPLE)
    monkeypatch.setattr("pipeline.tables.extract.PART_LIMITS", PartLimits(rows=1_500))


def test_rare_values_of_integers_are_listed(tmp_path: Path):
    """Codes of a few rows were missing in the sample, so a model saw them as no value."""
    codes = np.zeros(ROWS, np.int64)
    codes[:40] = range(1, 41)
    table = built(parquet_of(tmp_path / "t.parquet", code=codes, x=np.arange(ROWS) / 7, label=["a", "b"] * (ROWS // 2)))
    training = {row["code"] for row in table.rows("train")}
    assert len(training) > 25
    assert table.dataset.table["preprocessing"]["code"]["values"] == sorted(training)


def test_copies_of_a_row_count_as_often_as_there_are(tmp_path: Path):
    """Of 900,000 zeros among 1,000,000 rows, the median was 5 if their one hash was not among the lowest."""
    x = np.concatenate((np.zeros(3 * ROWS), np.arange(1, ROWS + 1)))
    x = np.random.default_rng(0).permutation(x)
    table = built(parquet_of(tmp_path / "t.parquet", x=x, label=np.where(x % 2, "a", "b")), split_seed=1)
    training = np.array([row["x"] for row in table.rows("train")])
    facts = table.dataset.table["preprocessing"]["x"]
    assert np.mean(np.array(facts["quantiles"]) == 0) == pytest.approx(np.mean(training == 0), abs=0.05)
    assert np.mean(training == 0) > 0.7
    assert facts["sampled"] == SAMPLE


def test_the_sample_of_a_sparse_column_has_few_values(tmp_path: Path):
    """The count of all rows promised pieces of many rows, but the quantiles came from a few of them."""
    x = np.where(np.arange(ROWS) % 20, np.nan, np.arange(ROWS))
    rest = np.arange(ROWS) / 7
    table = built(parquet_of(tmp_path / "t.parquet", x=x, rest=rest, label=["a", "b"] * (ROWS // 2)))
    facts = table.dataset.table["preprocessing"]["x"]
    assert 10 < facts["sampled"] < 50 < facts["count"]
