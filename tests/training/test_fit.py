"""The values of a completed epoch, and their log line."""

import pytest

from pipeline.training.fit import format_values, values_of
from pipeline.training.step.loop import Sums


def test_values_of_an_epoch_are_means_of_its_sums():
    found = values_of(Sums(40, 20.0, 30.0, wait_s=1.0, time_s=8.0), Sums(10, 2.0, 9.0, time_s=0.5))
    assert found == pytest.approx(
        {
            "loss": 0.5,
            "accuracy": 0.75,
            "val_loss": 0.2,
            "val_accuracy": 0.9,
            "epoch/time_s": 8.0,
            "epoch/validation_s": 0.5,
            "input/wait_fraction": 0.125,
            "input/examples_per_s": 5.0,
        }
    )
    assert format_values(found) == (
        "loss 0.5000, accuracy 75.0%; validation loss 0.2000, accuracy 90.0%; "
        "8.0 s, 12.5% of it waiting for data, the first batch included"
    )


def test_an_epoch_of_simulated_steps_has_times_only():
    found = values_of(Sums(40, 0.0, 0.0, wait_s=1.0, time_s=8.0), Sums(10, 0.0, 0.0, time_s=0.5), metric="")
    assert found == {
        "epoch/time_s": 8.0, "epoch/validation_s": 0.5, "input/wait_fraction": 0.125, "input/examples_per_s": 5.0,
    }  # fmt: skip
    assert format_values(found) == "simulated steps; 8.0 s, 12.5% of it waiting for data, the first batch included"
