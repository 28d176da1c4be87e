"""Trainings on a simulated accelerator."""

from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.monitor import read
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import load_result, training_folder
from pipeline.training.job import run_job
from pipeline.training.step.optimizer import NO_LOSS_SCALING
from pipeline.training.step.simulated import SimulatedSteps


@pytest.mark.long
def test_simulated_steps_take_the_configured_time(tmp_path: Path, published: Path) -> None:
    places = {"workspace": str(tmp_path), "image_size": 32, "batch_size": 8, "epochs": 2}
    run = prepare_run(settings_from({**places, "simulated_step_ms": 30.0}), published, "some run")
    run_job(run, lambda: False)
    batches = read(run.folder / "record", "batches")
    assert batches["step/compute_ms"].min() >= 30.0
    assert batches["step/compute_ms"].min() < 45.0  # A busy machine makes some of them late.
    result = load_result(run.folder)
    assert result is not None
    assert result["metrics"]["loss"] == 0.0
    assert len(result["limits"]) >= 1


def test_simulated_steps_count_examples_and_pass_on_a_stop_request() -> None:
    steps = SimulatedSteps(tf.distribute.get_strategy(), 0.0)
    weights = tf.constant([1.0, 1.0, 0.0])
    images, labels, mirrored = tf.zeros((3, 8, 8, 3), tf.uint8), tf.zeros(3, tf.int32), tf.zeros(3, bool)
    trained = steps.train(images, labels, weights, mirrored, tf.constant(1.0))
    assert trained.numpy().tolist() == [0.0, 0.0, 2.0, 1.0, *NO_LOSS_SCALING]
    assert steps.evaluate(images, labels, weights, tf.constant(0.0)).numpy().tolist() == [0.0, 0.0, 2.0, 0.0]


@pytest.mark.parametrize(("simulated_step_ms", "is_same"), [(0.0, True), (40.0, False)])
def test_a_simulated_training_has_another_folder(tmp_path: Path, simulated_step_ms: float, is_same: bool) -> None:
    plain = settings_from({"workspace": str(tmp_path)})
    other = plain.model_copy(update={"simulated_step_ms": simulated_step_ms})
    assert (training_folder(plain, "run", "v") == training_folder(other, "run", "v")) == is_same
