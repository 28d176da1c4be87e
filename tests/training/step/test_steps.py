"""Training steps with mixed precision, with XLA, and with micro-batches."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.config.automatic import training_settings
from pipeline.errors import SettingsError, TrainingError
from pipeline.training.model.losses import Loss, cross_entropy
from pipeline.training.model.models import base_of
from pipeline.training.step.loop import EpochLoop, NumberedBatch
from pipeline.training.step.optimizer import build_optimizer, optimizer_options
from pipeline.training.step.steps import StepOptions, Steps
from tests.training.small import BATCH, MIRRORED, TRAINED, Small, small

ROOT = Path(__file__).parents[3]
HALF = training_settings({"precision": "mixed_float16"})
ONE_DEVICE = tf.distribute.OneDeviceStrategy("/cpu:0")
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
    training = small(training_settings({}), tmp_path, dropout=0.0)
    steps = Steps(ONE_DEVICE, training.model, training.optimizer, StepOptions(loss=spoiled_by(label), xla=xla))
    result = steps.train(*TRAINED).numpy()
    assert np.isfinite(result[0])
    assert result[6:].tolist() == [spoiled]


def test_gradients_whose_squares_overflow_count_as_overflowed(tmp_path: Path):
    """Adam keeps a mean of the squared gradients, which would stay infinite."""
    training = small(training_settings({}), tmp_path, dropout=0.0, normalized=False)
    options = StepOptions(loss=lambda _, logits: 1e25 * tf.square(logits[:, 0]))
    steps = Steps(ONE_DEVICE, training.model, training.optimizer, options)
    assert steps.train(*TRAINED).numpy()[6:].tolist() == [1.0]
    assert not all(np.isfinite(variable.numpy()).all() for variable in training.optimizer.variables)


def test_an_overflow_of_the_scaled_loss_is_not_reported(tmp_path: Path):
    result = overflowing(tmp_path).steps.train(*TRAINED).numpy()
    assert result[6:].tolist() == [0.0]


def test_the_error_names_the_batch_with_overflowed_gradients(tmp_path: Path):
    training = small(training_settings({}), tmp_path)
    steps = Steps(ONE_DEVICE, training.model, training.optimizer, StepOptions(loss=spoiled_by(9)))
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
        small(settings, tmp_path / settings.precision, dropout=0.0) for settings in (training_settings({}), HALF)
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
    both = [training_settings({"precision": precision, "xla": xla}) for xla in (False, True)]
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
        training = small(training_settings({**values, "flip": flip}), tmp_path, dropout=0.0, normalized=False)
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
    both = [
        training_settings({"micro_batches": 2, **values}),
        training_settings({**values, "micro_batches": 1}),
    ]
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
    training = small(training_settings({}), tmp_path)
    taken: list[int] = []

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        taken.append(labels.shape[0])
        return cross_entropy(labels, logits)

    steps = Steps(ONE_DEVICE, training.model, training.optimizer, StepOptions(loss=loss, micro_batches=4))
    graph = steps.train.get_concrete_function(*TRAINED).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    loops = [node.attr["parallel_iterations"].i for node in nodes if node.op in ("While", "StatelessWhile")]
    assert (taken, loops) == ([1], [1])


TWO_DEVICES = """
import sys
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from pathlib import Path
from tests.training.step import test_steps
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
getattr(test_steps, sys.argv[1])(strategy, Path(sys.argv[2]))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "check",
    [
        "assert_two_devices_take_parts",
        "assert_xla_changes_no_gradient",
        "assert_unreached_weights_are_left_out",
        "assert_skipped_steps_are_counted",
        "assert_synchronized_layers_are_refused",
        "assert_a_frozen_base_learns_later",
    ],
)
def test_two_devices(check: str, tmp_path: Path):
    """The test needs a separate process: TensorFlow can split a processor only before it uses it."""
    subprocess.run([sys.executable, "-c", TWO_DEVICES, check, str(tmp_path)], cwd=ROOT, check=True, timeout=300)


def parts_of(strategy: tf.distribute.Strategy, *values: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return tensors whose first dimension is divided among two devices."""
    halves = tf.data.Dataset.from_tensors(values).rebatch(len(values[0]) // 2, drop_remainder=True)
    return next(iter(strategy.distribute_datasets_from_function(lambda _: halves)))


def assert_two_devices_take_parts(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Assert that gradients equal those of whole batches, and that normalization and dropout work on two devices."""

    def moments(parts: int, dropout: float, normalized: bool) -> list[np.ndarray]:
        training = small(training_settings({"micro_batches": parts}), folder, dropout, normalized, strategy)
        same = strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.from_tensors(TRAINED[:4]).repeat(2))
        assert training.steps.train(*next(iter(same)), BATCH[3])[2] == 6  # examples, without the padding
        return first_moments(training)

    for one, other in zip(moments(1, 0.0, False), moments(2, 0.0, False), strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-6)
    assert all(np.isfinite(moment).all() for moment in moments(2, 0.5, True))


def assert_xla_changes_no_gradient(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Assert that XLA compiles the part of each device, and that gradients, averages and sums stay equal."""
    random = np.random.default_rng(0)
    images = tf.constant(random.integers(0, 256, (16, 5, 5, 3), np.uint8))
    # The second device has nothing but padding, and the first one has some.
    weights = tf.constant([1.0] * 6 + [0.0] * 10)
    batch = images, tf.constant(random.integers(0, 2, 16, np.int32)), weights, tf.constant(random.random(16) < 0.5)
    parts, evaluated = parts_of(strategy, *batch), parts_of(strategy, *batch[:3])

    def step(values: dict) -> tuple[Small, list[np.ndarray]]:
        training = small(training_settings({"flip": True, **values}), folder, dropout=0.0, strategy=strategy)
        results = [training.steps.evaluate(*evaluated, BATCH[3]), training.steps.train(*parts, BATCH[3])]
        assert [result[2] for result in results] == [6, 6]
        return training, [*results, *(10 * moment for moment in first_moments(training))]

    for values, atol in (({}, 1e-5), ({"micro_batches": 2}, 1e-5), ({"precision": "mixed_float16"}, 0.02)):
        (plain, expected), (compiled, found) = (step({**values, "xla": xla}) for xla in (False, True))
        assert (compiled_functions(plain), compiled_functions(compiled)) == (0, 2)
        assert max(np.abs(gradient).max() for gradient in expected[2:]) > 0.1
        for one, other in zip(expected, found, strict=True):
            assert np.allclose(one, other, rtol=atol, atol=atol), (values, one, other)
        for one, other in zip(averages(plain), averages(compiled), strict=True):
            assert np.allclose(one, other, rtol=atol, atol=atol), values
    dropping = small(training_settings({"micro_batches": 2, "xla": True}), folder, strategy=strategy)
    assert np.isfinite(dropping.steps.train(*parts, BATCH[3])).all()


def averages(training: Small) -> list[np.ndarray]:
    """Return the averages of normalization."""
    return [weight.numpy() for weight in training.model.weights if "/moving_" in weight.path]


def assert_unreached_weights_are_left_out(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Assert that two devices leave them out, too, beside the sparse gradients of an embedding."""
    for options in ({}, {"xla": True}, {"xla": True, "micro_batches": 2}):
        model, optimizer = with_unreached(strategy)
        before = [weight.numpy() for weight in model.weights]
        steps = Steps(strategy, model, optimizer, StepOptions(**options))
        assert np.isfinite(steps.train(*parts_of(strategy, *TRAINED[:4]), BATCH[3]).numpy()).all()
        assert changed(model, before) == {"embedding/embeddings", "logits/kernel", "logits/bias"}, options


def assert_synchronized_layers_are_refused(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Assert that the error says what to set. Without XLA and micro-batches, such layers work."""
    with strategy.scope():
        inputs = keras.Input((5, 5, 3))
        normalized = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Flatten()(inputs))
        model = keras.Model(inputs, keras.layers.Dense(2)(normalized))
        optimizer = build_optimizer(optimizer_options(training_settings({}), 1), model)
        optimizer.build(model.trainable_variables)
    batch = (*parts_of(strategy, *TRAINED[:4]), BATCH[3])
    assert np.isfinite(Steps(strategy, model, optimizer).train(*batch)).all()
    for options in ({"xla": True}, {"micro_batches": 2}):
        with pytest.raises(SettingsError, match="set xla=false and micro_batches=1"):
            Steps(strategy, model, optimizer, StepOptions(**options)).train(*batch)


def assert_a_frozen_base_learns_later(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Assert that the step is traced again after the frozen epochs, with XLA, too."""
    batch = (*parts_of(strategy, *TRAINED[:4]), BATCH[3])
    of_transfer = {"freeze_epochs": 1, "weights": "/w.weights.h5", "model": "MobileNetV2"}
    for xla in (False, True):
        training = small(training_settings({**of_transfer, "xla": xla}), folder, normalized=False, strategy=strategy)
        base = base_of(training.model)
        for is_frozen in (True, True, False):
            before = [weight.numpy() for weight in base.weights]
            training.steps.train(*batch)
            after = base.weights
            assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True)) == is_frozen


def assert_skipped_steps_are_counted(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Assert that the step reports the count and the scale of one device, not the sum over both."""
    batch = parts_of(strategy, *TRAINED[:4])
    for xla in (False, True):
        training = small(HALF, folder / str(xla), strategy=strategy)
        training.optimizer.dynamic_scale.assign(2.0**10)
        results = []
        for label in (1, 1, 9):
            steps = Steps(strategy, training.model, training.optimizer, StepOptions(loss=spoiled_by(label), xla=xla))
            results.append(steps.train(*batch, BATCH[3]).numpy()[4:].tolist())
        assert results == [[1, 2.0**9, 0, 0], [2, 2.0**8, 0, 0], [0, 2.0**8, 0, 0]]
        spoiling = Steps(strategy, training.model, training.optimizer, StepOptions(loss=nan_for_zero, xla=xla))
        # The first device has the label 0 alone.
        first = parts_of(strategy, TRAINED[0], tf.constant([0, 0, 1, 1]), *TRAINED[2:4])
        assert spoiling.train(*first, BATCH[3]).numpy()[6:].tolist() == [1, 0]


def nan_for_zero(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return cross_entropy(labels, logits) + tf.where(labels == 0, np.nan, 0.0)


class Unreached(keras.layers.Layer):
    """Returns what it takes. Its weight has no part in that."""

    def build(self, shape: tuple) -> None:
        self.unused = self.add_weight(shape=(3, 3), name="unused")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs


def with_unreached(strategy: tf.distribute.Strategy, precision: str = "float32") -> tuple[keras.Model, keras.Optimizer]:
    """Return a model with a weight that no loss reaches, and its optimizer, which has a weight decay."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input((5, 5, 3), dtype="uint8")
        embedded = keras.layers.Embedding(256, 2, name="embedding", dtype=precision)(keras.layers.Flatten()(inputs))
        hidden = Unreached(name="own")(keras.layers.Flatten()(embedded))
        model = keras.Model(inputs, keras.layers.Dense(2, name="logits", dtype="float32")(hidden))
        options = optimizer_options(
            training_settings({"weight_decay": 0.1, "clip_norm": 1.0, "precision": precision}), 1
        )
        optimizer = build_optimizer(options, model)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def changed(model: keras.Model, before: list[np.ndarray]) -> set[str]:
    """Return the paths of the weights that are no longer as they were."""
    pairs = zip(model.weights, before, strict=True)
    return {weight.path for weight, value in pairs if not np.array_equal(weight.numpy(), value)}


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("float32", {}),
        ("float32", {"micro_batches": 2}),
        ("mixed_float16", {"micro_batches": 2}),
        pytest.param("mixed_float16", {"xla": True}, marks=pytest.mark.long),
        pytest.param("float32", {"xla": True, "micro_batches": 2}, marks=pytest.mark.long),
    ],
)
def test_a_weight_that_the_loss_does_not_reach_is_left_out(
    precision: str, options: dict, caplog: pytest.LogCaptureFixture
):
    model, optimizer = with_unreached(ONE_DEVICE, precision)
    before = [weight.numpy() for weight in model.weights]
    steps = Steps(ONE_DEVICE, model, optimizer, StepOptions(**options))
    for batch in (TRAINED, [tf.concat([value, value], axis=0) for value in TRAINED[:4]] + [BATCH[3]]):
        assert np.isfinite(steps.train(*batch).numpy()).all()
    assert changed(model, before) == {"embedding/embeddings", "logits/kernel", "logits/bias"}
    message = "the loss does not depend on these weights of the model, so they do not learn: own/unused"
    assert [record.message for record in caplog.records if "depend" in record.message] == [message]


def test_a_model_whose_weights_the_loss_does_not_reach_is_refused():
    model, optimizer = with_unreached(ONE_DEVICE)
    steps = Steps(ONE_DEVICE, model, optimizer, StepOptions(loss=lambda labels, _: tf.cast(labels, tf.float32)))
    with pytest.raises(SettingsError, match="the loss depends on no weight of the model"):
        steps.train(*TRAINED)


def looping(training: Small, loss: Loss, step: int = 0) -> EpochLoop:
    steps = Steps(ONE_DEVICE, training.model, training.optimizer, StepOptions(loss=loss))
    return EpochLoop(steps, NoMonitor(), lambda: False, step=step)


def same_batches() -> Iterator[NumberedBatch]:
    return repeat((*TRAINED[:4], tf.range(4, dtype=tf.int64)))


@pytest.mark.parametrize(
    ("scale", "step", "numbers"),
    [
        (2.0**15, 16, r"a loss scale of 1 \(the last 16 steps"),
        (2.0**60, 50, r"a loss scale of 2048 \(the last 50 steps"),
    ],
)
def test_a_training_that_skips_all_steps_ends(scale: float, step: int, numbers: str, tmp_path: Path):
    training = small(HALF, tmp_path)
    training.optimizer.dynamic_scale.assign(scale)
    message = rf"does not learn any more at step {step} of epoch 1: .* {numbers} .*set precision to mixed_bfloat16"
    with pytest.raises(TrainingError, match=message):
        looping(training, spoiled_by(1)).train(1, same_batches(), 200, lambda *_: None)


def test_skipped_steps_are_counted_over_a_stop_and_only_in_a_row(tmp_path: Path):
    stopped = small(HALF, tmp_path)
    stopped.optimizer.dynamic_scale.assign(2.0**90)
    loop = looping(stopped, spoiled_by(1))
    loop.train(1, same_batches(), 30, lambda *_: None)
    stopped.save()
    resumed = small(HALF, tmp_path)
    with pytest.raises(TrainingError, match=r"at step 50 of epoch 2: .*the last 50 steps"):
        looping(resumed, spoiled_by(1), step=30).train(2, same_batches(), 200, lambda *_: None)
    resumed = small(HALF, tmp_path)
    resumed.optimizer.dynamic_scale.assign(2.0**10)  # The next step is good.
    looping(resumed, spoiled_by(9), step=30).train(2, same_batches(), 31, lambda *_: None)
    assert int(resumed.optimizer.skipped) == 0
