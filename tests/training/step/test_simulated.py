"""Trainings on a simulated accelerator."""

from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.evaluation.metrics import EVALUATION
from pipeline.monitor import read
from pipeline.report import report_run
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import load_result, training_folder
from pipeline.training.job import run_job
from pipeline.training.step.optimizer import NO_LOSS_SCALING
from pipeline.training.step.simulated import SimulatedSteps, batches_without_data


@pytest.mark.long
def test_simulated_steps_take_the_configured_time(tmp_path: Path, published: Path) -> None:
    places = {"workspace": str(tmp_path), "image_size": 32, "batch_size": 8, "epochs": 2}
    run = prepare_run(settings_from({**places, "simulated_step_ms": 30.0}), published, "some run")
    run_job(run, lambda: False)
    batches = read(run.folder / "record", "batches")
    # The end of a step can be noted late, on a busy machine in particular. The next one then counts for less.
    assert batches["step/compute_ms"].mean() >= 29.0
    assert batches["step/compute_ms"].min() < 45.0
    assert read(run.folder / "record", "epochs")["epoch/validation_s"].min() >= 0.029
    result = load_result(run.folder)
    assert result is not None
    assert len(result["limits"]) >= 1
    assert (result["metrics"], result["baselines"], result["baseline"]) == ({}, {}, "")
    assert result["headline"] == "simulated accelerator: the model learned nothing"
    assert not (run.folder / EVALUATION).exists()
    assert not {"loss", "accuracy", "val_loss", "val_accuracy"} & {*read(run.folder / "record", "epochs")}
    page = report_run(run.folder).read_text()
    assert "because the accelerator was simulated" in page
    assert "The steps were simulated, so the model learned nothing." in page
    assert "No epoch was completed" not in page
    assert "best validation accuracy" not in page


def test_simulated_steps_count_examples_and_pass_on_a_stop_request() -> None:
    steps = SimulatedSteps(tf.distribute.get_strategy(), 0.0)
    weights = tf.constant([1.0, 1.0, 0.0])
    images, labels, mirrored = tf.zeros((3, 8, 8, 3), tf.uint8), tf.zeros(3, tf.int32), tf.zeros(3, bool)
    trained = steps.train(images, labels, weights, mirrored, tf.constant(1.0))
    assert trained.numpy().tolist() == [0.0, 0.0, 2.0, 1.0, *NO_LOSS_SCALING]
    assert steps.evaluate(images, labels, weights, tf.constant(0.0)).numpy().tolist() == [0.0, 0.0, 2.0, 0.0]


def test_a_simulated_validation_takes_a_step_for_each_batch_and_reads_no_data() -> None:
    now = [100.0]
    steps = SimulatedSteps(tf.distribute.get_strategy(), 3.0, lambda: now[0])
    results = [steps.evaluate(*batch, tf.constant(0.0)) for batch in batches_without_data(2)]
    assert [each.ended for each in results] == [103.0, 106.0]
    assert [each.sums.numpy().tolist() for each in results] == 2 * [[0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("simulated_step_ms", "is_same"), [(0.0, True), (40.0, False)])
def test_a_simulated_training_has_another_folder(tmp_path: Path, simulated_step_ms: float, is_same: bool) -> None:
    plain = settings_from({"workspace": str(tmp_path)})
    other = plain.model_copy(update={"simulated_step_ms": simulated_step_ms})
    assert (training_folder(plain, "run", "v") == training_folder(other, "run", "v")) == is_same


def test_a_simulated_accelerator_takes_one_step_after_another_beside_the_host() -> None:
    now = [100.0]
    steps = SimulatedSteps(tf.distribute.get_strategy(), 3.0, lambda: now[0])
    weights = tf.ones(2)

    def sent() -> tuple[float, float]:
        result = steps.evaluate(tf.zeros((2, 8, 8, 3), tf.uint8), tf.zeros(2, tf.int32), weights, tf.constant(0.0))
        return result.began, result.ended

    assert sent() == (100.0, 103.0)
    now[0] = 102.0  # It still computes the first step.
    assert sent() == (103.0, 106.0)
    now[0] = 107.5
    assert sent() == (107.5, 110.5)
