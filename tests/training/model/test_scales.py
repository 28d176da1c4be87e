"""The scales on which the model `mlp` sees the numbers of a table."""

from typing import Any

import numpy as np
import pytest

from pipeline.training.model.table_model import MAX_WIDTH, Scale, scales_of


def facts_of(sampled: int = 20_000, values: int = 0) -> dict[str, Any]:
    facts = {"count": 2_000_000, "mean": 0.5, "deviation": 0.3, "sampled": sampled}
    return {**facts, "quantiles": np.linspace(0, 1, 33).tolist(), "values": list(range(values))}


def width_of(scales: list[Scale]) -> int:
    """Return the inputs for these columns. All columns with pieces, or with values, have as many as the widest one."""
    pieces = [len(scale.edges) - 1 for scale in scales if len(scale.edges) > 1]
    values = [len(scale.values) for scale in scales if scale.values]
    return len(scales) + sum(len(each) * max(each, default=0) for each in (pieces, values))


@pytest.mark.parametrize("columns", [1_000, 2_000, 10_000])
@pytest.mark.parametrize("values", [0, 64])
def test_many_columns_have_fewer_inputs_each(columns: int, values: int):
    """1,000 columns of integers had 97,000 inputs, and so 25 million weights."""
    scales = scales_of([facts_of(values=values)] * columns)
    assert width_of(scales) <= columns + MAX_WIDTH


def test_columns_of_few_values_keep_them():
    scales = scales_of([*[facts_of(values=2)] * 500, *[facts_of(values=64)] * 100])
    assert [len(scale.values) for scale in scales] == [2] * 500 + [0] * 100


@pytest.mark.parametrize("columns", [1, 100])
def test_few_columns_have_all_inputs(columns: int):
    assert width_of(scales_of([facts_of(values=40)] * columns)) == columns * (1 + 32 + 40)


@pytest.mark.parametrize(("sampled", "pieces"), [(20_000, 32), (400, 16), (20, 2)])
def test_pieces_follow_the_values_that_the_quantiles_come_from(sampled: int, pieces: int):
    """A column with 2,000 values in 2,000,000 rows had 32 pieces between 20 values of the sample."""
    [scale] = scales_of([facts_of(sampled)])
    assert len(scale.edges) - 1 == pieces
