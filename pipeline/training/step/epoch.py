"""The values of an epoch, for the record and for the log."""

from collections.abc import Mapping

from pipeline.training.step.loop import Sums


def values_of(trained: Sums, validated: Sums, metric: str = "accuracy") -> dict[str, float]:
    """Return losses, metrics, times in seconds and examples per second, by their names in the record.

    The metric is that of the task: the accuracy (0 to 1), or for a regression the mean absolute error.
    """
    return {
        "loss": trained.mean_loss,
        metric: trained.mean_metric,
        "val_loss": validated.mean_loss,
        f"val_{metric}": validated.mean_metric,
        "epoch/time_s": trained.time_s,
        "epoch/validation_s": validated.time_s,
        "input/wait_fraction": trained.wait_fraction,
        "input/examples_per_s": trained.examples / trained.time_s,
    }


def format_values(values: Mapping[str, float]) -> str:
    """Return the values of an epoch in one line."""
    if "accuracy" in values:
        trained, validated = (f"accuracy {values[name]:.1%}" for name in ("accuracy", "val_accuracy"))
    else:
        trained, validated = (f"mean absolute error {values[name]:.4g}" for name in ("mae", "val_mae"))
    return (
        f"loss {values['loss']:.4f}, {trained}; validation loss {values['val_loss']:.4f}, {validated}; "
        f"{values['epoch/time_s']:.1f} s, {values['input/wait_fraction']:.1%} of it waiting for data, "
        "the first batch included"
    )
