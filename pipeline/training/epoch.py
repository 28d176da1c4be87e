"""The values of an epoch, for the record and for the log."""

from collections.abc import Mapping

from pipeline.training.loop import Sums


def values_of(trained: Sums, validated: Sums) -> dict[str, float]:
    """Return losses, accuracies (0 to 1), times in seconds and examples per second, by their names in the record."""
    return {
        "loss": trained.mean_loss,
        "accuracy": trained.accuracy,
        "val_loss": validated.mean_loss,
        "val_accuracy": validated.accuracy,
        "epoch/time_s": trained.time_s,
        "epoch/validation_s": validated.time_s,
        "input/wait_fraction": trained.wait_fraction,
        "input/examples_per_s": trained.examples / trained.time_s,
    }


def format_values(values: Mapping[str, float]) -> str:
    """Return the values of an epoch in one line."""
    return (
        f"loss {values['loss']:.4f}, accuracy {values['accuracy']:.1%}; "
        f"validation loss {values['val_loss']:.4f}, accuracy {values['val_accuracy']:.1%}; "
        f"{values['epoch/time_s']:.1f} s, {values['input/wait_fraction']:.1%} of it waiting for data, "
        "the first batch included"
    )
