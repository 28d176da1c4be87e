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
    assert np.isfinite(losses).all()
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


def test_gradients_are_those_of_the_loss_whatever_it_was_scaled_by(tmp_path: Path):
    losses = []
    for scale in (2.0**4, 2.0**12):
        training = small(HALF.model_copy(update={"clip_norm": 0.01}), tmp_path / str(scale))
        training.optimizer.dynamic_scale.assign(scale)
        losses.append(training.train(3))
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_xla_compiles_the_step_and_changes_no_loss(tmp_path: Path):
    # Without dropout: XLA draws other random numbers.
    plain, compiled = (small(settings_from({"xla": xla}), tmp_path / str(xla), dropout=0.0) for xla in (False, True))
    assert compiled.train(3) == pytest.approx(plain.train(3), rel=1e-4)
    assert (compiled_functions(plain), compiled_functions(compiled)) == (0, 1)


def compiled_functions(training: Small) -> int:
    """How many functions within the training step XLA must compile."""
    graph = training.steps.train.get_concrete_function(*BATCH).graph.as_graph_def()
    return sum("_XlaMustCompile" in function.attr for function in graph.library.function)
