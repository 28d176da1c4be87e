"""A step in 16 bits, and one that XLA compiled."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.config import settings_from
from tests.training.small import BATCH, Small, small

HALF = settings_from({"precision": "mixed_float16"})
TOO_LARGE = 2.0**60


def overflowing(folder: Path) -> Small:
    training = small(HALF, folder)
    training.optimizer.dynamic_scale.assign(TOO_LARGE)
    return training


def test_a_step_that_overflows_is_left_out_and_its_loss_is_a_number(tmp_path: Path):
    training = overflowing(tmp_path)
    before = [variable.numpy() for variable in training.model.trainable_variables]
    losses = training.train(2)
    assert all(0 < loss < 100 for loss in losses)  # not times the scale either
    after = training.model.trainable_variables
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
    assert float(training.optimizer.dynamic_scale) == TOO_LARGE / 4
    assert int(training.optimizer.iterations) == 0


def test_the_scale_of_the_loss_goes_on_from_the_checkpoint(tmp_path: Path):
    first = overflowing(tmp_path)
    first.train(1)
    first.optimizer.dynamic_scale.assign(2.0**10)
    first.train(3)
    first.save()
    second = small(HALF, tmp_path)
    scaling = [(float(each.dynamic_scale), int(each.step_counter)) for each in (first.optimizer, second.optimizer)]
    assert scaling == [(2.0**10, 3)] * 2
    for one, other in zip(first.optimizer.variables, second.optimizer.variables, strict=True):
        assert np.array_equal(one, other)


def test_gradients_are_those_of_the_loss_and_not_of_the_scaled_one(tmp_path: Path):
    whole, half = (
        small(settings, tmp_path / settings.precision, dropout=0.0) for settings in (settings_from({}), HALF)
    )
    whole.train(1)
    half.train(1)
    for one, other in zip(first_moments(whole), first_moments(half), strict=True):
        assert np.allclose(one, other, rtol=0.05, atol=1e-3)


def first_moments(training: Small) -> list[np.ndarray]:
    """After one step: a tenth of the gradients."""
    return [each.numpy() for each in training.optimizer.variables if each.path.endswith("momentum")]


@pytest.mark.parametrize(("precision", "rel"), [("float32", 1e-4), ("mixed_float16", 0.02)])
def test_xla_compiles_the_step_and_changes_no_loss(precision: str, rel: float, tmp_path: Path):
    both = [settings_from({"precision": precision, "xla": xla}) for xla in (False, True)]
    # Without dropout: XLA draws other random numbers.
    plain, compiled = (small(settings, tmp_path / str(settings.xla), dropout=0.0) for settings in both)
    assert compiled.train(3) == pytest.approx(plain.train(3), rel=rel)
    assert (compiled_functions(plain), compiled_functions(compiled)) == (0, 1)


def compiled_functions(training: Small) -> int:
    """How many functions within the training step XLA must compile."""
    graph = training.steps.train.get_concrete_function(*BATCH).graph.as_graph_def()
    return sum("_XlaMustCompile" in function.attr for function in graph.library.function)
