"""The values of an epoch, for the record and for the log."""

from collections.abc import Mapping

from pipeline.evaluation.best_epoch import epoch_metric
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
    metric = epoch_metric(values)
    trained, validated = (f"{metric.title} {metric.text(values[key])}" for key in (metric.key, metric.validation_key))
    return (
        f"loss {values['loss']:.4f}, {trained}; validation loss {values['val_loss']:.4f}, {validated}; "
        f"{values['epoch/time_s']:.1f} s, {values['input/wait_fraction']:.1%} of it waiting for data, "
        "the first batch included"
    )
