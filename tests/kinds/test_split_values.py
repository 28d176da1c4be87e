import numpy as np
import pytest

from pipeline.kinds.table.split_values import DifferentHashes


@pytest.mark.parametrize("kept", [64, 256, 4096])
@pytest.mark.parametrize("different", [1, 255, 256, 3000])
def test_different_hashes_are_counted_or_estimated(kept: int, different: int):
    drawn = np.random.default_rng(0)
    values = drawn.integers(0, 2**64, different, dtype=np.uint64)
    counter = DifferentHashes(kept)
    assert counter.count == 0
    for some in np.array_split(drawn.permutation(np.repeat(values, 3)), 7):
        counter.add(some)
    if different < kept:
        assert counter.count == different
    else:
        assert counter.count == pytest.approx(different, rel=4 / kept**0.5)
