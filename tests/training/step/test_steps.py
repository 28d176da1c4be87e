"""Training steps with mixed precision, with XLA, and with micro-batches."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.errors import TrainingError
from pipeline.training.model.losses import Loss, cross_entropy
from pipeline.training.step.loop import EpochLoop, NumberedBatch
from pipeline.training.step.steps import StepOptions, Steps
from tests.training.small import BATCH, MIRRORED, TRAINED, Small, small

ROOT = Path(__file__).parents[3]
HALF = settings_from({"precision": "mixed_float16"})
TOO_LARGE = 2.0**60


def overflowing(folder: Path) -> Small:
    training = small(HALF, folder)
    training.optimizer.dynamic_scale.assign(TOO_LARGE)
    return training


def test_an_overflowing_step_changes_no_variable_and_has_a_finite_loss(tmp_path: Path):
    training = overflowing(tmp_path)
    before = [variable.numpy() for variable in training.model.trainable_variables]
    losses = training.train(2)
    assert all(0 < loss < 100 for loss in losses)  # the loss is not scaled
    after = training.model.trainable_variables
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
    assert float(training.optimizer.dynamic_scale) == TOO_LARGE / 4
    assert int(training.optimizer.iterations) == 0


def spoiled_by(label: int) -> Loss:
    """Return a finite loss whose gradients are infinite if an example has this label, because of a root at zero."""

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        under_the_root = 0 * logits[:, 0] + tf.where(labels == label, 0.0, 1.0)
        return tf.reduce_sum(tf.square(logits), axis=-1) + tf.sqrt(under_the_root)

    return loss


@pytest.mark.parametrize(("label", "xla", "spoiled"), [(7, False, 0.0), (1, False, 1.0), (1, True, 1.0)])
def test_a_step_reports_overflowed_gradients(label: int, xla: bool, spoiled: float, tmp_path: Path):
    training = small(settings_from({}), tmp_path, dropout=0.0)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    steps = Steps(strategy, training.model, training.optimizer, StepOptions(loss=spoiled_by(label), xla=xla))
    result = steps.train(*TRAINED).numpy()
    assert np.isfinite(result[0])
    assert result[4:].tolist() == [spoiled]


def test_gradients_whose_squares_overflow_count_as_overflowed(tmp_path: Path):
    """Adam keeps a mean of the squared gradients, which would stay infinite."""
    training = small(settings_from({}), tmp_path, dropout=0.0, normalized=False)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    options = StepOptions(loss=lambda _, logits: 1e25 * tf.square(logits[:, 0]))
    steps = Steps(strategy, training.model, training.optimizer, options)
    assert steps.train(*TRAINED).numpy()[4:].tolist() == [1.0]
    assert not all(np.isfinite(variable.numpy()).all() for variable in training.optimizer.variables)


def test_an_overflow_of_the_scaled_loss_is_not_reported(tmp_path: Path):
    result = overflowing(tmp_path).steps.train(*TRAINED).numpy()
    assert result[4:].tolist() == [0.0]


def test_the_error_names_the_batch_with_overflowed_gradients(tmp_path: Path):
    training = small(settings_from({}), tmp_path)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    steps = Steps(strategy, training.model, training.optimizer, StepOptions(loss=spoiled_by(9)))
    loop = EpochLoop(steps, NoMonitor(), lambda: False, describe=lambda batch, _: f"numbers {batch[4].numpy()}")

    def batches() -> Iterator[NumberedBatch]:
        for number in range(5):
            labels = tf.constant([0, 1, 9 if number == 2 else 0, 1])
            yield BATCH[0], labels, BATCH[2], MIRRORED, tf.range(4 * number, 4 * number + 4, dtype=tf.int64)

    message = r"^the gradients overflowed at step 3 of epoch 1, in numbers \[ 8  9 10 11\]: lower learning_rate"
    with pytest.raises(TrainingError, match=message):
        loop.train(1, batches(), 5, lambda *_: None)


class NoMonitor:
    """A stand-in for a monitor."""

    def batch(self, **_: object) -> None: ...


def test_a_checkpoint_restores_the_loss_scale(tmp_path: Path):
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


def test_gradients_are_unscaled_before_the_update(tmp_path: Path):
    whole, half = (
        small(settings, tmp_path / settings.precision, dropout=0.0) for settings in (settings_from({}), HALF)
    )
    whole.train(1)
    half.train(1)
    for one, other in zip(first_moments(whole), first_moments(half), strict=True):
        assert np.allclose(one, other, rtol=0.05, atol=1e-3)


def first_moments(training: Small) -> list[np.ndarray]:
    """Return the first moments. After one step, they are a tenth of the gradients."""
    return [each.numpy() for each in training.optimizer.variables if each.path.endswith("momentum")]


@pytest.mark.long
@pytest.mark.parametrize(("precision", "rel"), [("float32", 1e-4), ("mixed_float16", 0.02)])
def test_xla_compiles_the_step_without_changing_the_loss(precision: str, rel: float, tmp_path: Path):
    both = [settings_from({"precision": precision, "xla": xla}) for xla in (False, True)]
    # Without dropout, because XLA draws other random numbers.
    plain, compiled = (small(settings, tmp_path / str(settings.xla), dropout=0.0) for settings in both)
    assert compiled.train(3) == pytest.approx(plain.train(3), rel=rel)
    assert (compiled_functions(plain), compiled_functions(compiled)) == (0, 1)


@pytest.mark.long
@pytest.mark.parametrize("values", [{}, {"micro_batches": 2}, {"xla": True}, {"color_jitter": 0.5}])
def test_a_step_mirrors_only_the_marked_images(values: dict, tmp_path: Path):
    images, none = BATCH[0].numpy(), tf.zeros(4, tf.bool)
    images[MIRRORED.numpy()] = images[MIRRORED.numpy(), :, ::-1]
    others = tf.constant(images), *BATCH[1:3]

    def moments(flip: bool, *batch: tf.Tensor) -> list[np.ndarray]:
        training = small(settings_from({**values, "flip": flip}), tmp_path, dropout=0.0, normalized=False)
        training.steps.train(*batch, BATCH[3])
        return first_moments(training)

    expected = moments(False, *others, none)
    statistics = {"mirrored": moments(True, *TRAINED[:4]), "none": moments(True, *others, none)}
    statistics["off"] = moments(False, *others, MIRRORED)
    for name, found in statistics.items():
        assert all(np.allclose(*pair, atol=1e-6) for pair in zip(found, expected, strict=True)), name
    other = moments(False, *TRAINED[:4])
    assert not np.allclose(other[0], expected[0], atol=1e-4)


def compiled_functions(training: Small) -> int:
    """Return the number of functions in the training step that XLA must compile."""
    graph = training.steps.train.get_concrete_function(*TRAINED).graph.as_graph_def()
    return sum("_XlaMustCompile" in function.attr for function in graph.library.function)


@pytest.mark.parametrize(
    ("values", "atol"),
    [
        ({}, 1e-6),
        ({"micro_batches": 4}, 1e-6),
        ({"color_jitter": 0.5}, 1e-6),
        pytest.param({"xla": True}, 1e-6, marks=pytest.mark.long),
        ({"precision": "mixed_float16"}, 1e-4),
    ],
)
def test_micro_batches_give_the_gradients_of_the_whole_batch(values: dict, atol: float, tmp_path: Path):
    """Without normalization and dropout, because their output depends on the size of the micro-batch."""
    both = [settings_from({"micro_batches": 2, **values}), settings_from({**values, "micro_batches": 1})]
    parts, whole = (
        small(settings, tmp_path / str(settings.micro_batches), dropout=0.0, normalized=False) for settings in both
    )
    assert parts.train(1) == pytest.approx(whole.train(1), rel=max(atol, 1e-5))
    for one, other in zip(first_moments(parts), first_moments(whole), strict=True):
        assert np.abs(other).max() > 1e-4  # a tenth of a gradient
        assert np.allclose(one, other, rtol=1e-4, atol=atol)
    assert int(parts.optimizer.iterations) == 1
    assert parts.steps.evaluate(*BATCH).numpy() == pytest.approx(whole.steps.evaluate(*BATCH).numpy(), rel=1e-3)


def test_a_step_runs_one_micro_batch_at_a_time(tmp_path: Path):
    """The graph contains the model once, for one example, in a loop without parallel iterations."""
    training = small(settings_from({}), tmp_path)
    taken: list[int] = []

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        taken.append(labels.shape[0])
        return cross_entropy(labels, logits)

    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    steps = Steps(strategy, training.model, training.optimizer, StepOptions(loss=loss, micro_batches=4))
    graph = steps.train.get_concrete_function(*TRAINED).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    loops = [node.attr["parallel_iterations"].i for node in nodes if node.op in ("While", "StatelessWhile")]
    assert (taken, loops) == ([1], [1])


TWO_DEVICES = """
import sys
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tests.training.step.test_steps import assert_two_devices_take_parts
assert_two_devices_take_parts(sys.argv[1])
"""


@pytest.mark.long
def test_two_devices_support_micro_batches(tmp_path: Path):
    """The test needs a separate process: TensorFlow can split a processor only before it uses it."""
    subprocess.run([sys.executable, "-c", TWO_DEVICES, str(tmp_path)], cwd=ROOT, check=True, timeout=300)


def assert_two_devices_take_parts(folder: str) -> None:
    """Assert that gradients equal those of whole batches, and that normalization and dropout work on two devices."""
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])

    def moments(parts: int, dropout: float, normalized: bool) -> list[np.ndarray]:
        training = small(settings_from({"micro_batches": parts}), Path(folder), dropout, normalized, strategy)
        same = strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.from_tensors(TRAINED[:4]).repeat(2))
        assert training.steps.train(*next(iter(same)), BATCH[3])[2] == 6  # examples, without the padding
        return first_moments(training)

    for one, other in zip(moments(1, 0.0, False), moments(2, 0.0, False), strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-6)
    assert all(np.isfinite(moment).all() for moment in moments(2, 0.5, True))
