"""What is known of an epoch that is over: values for the record, and words for a person."""

from collections.abc import Mapping

from pipeline.training.loop import Sums


def values_of(trained: Sums, validated: Sums) -> dict[str, float]:
    """Losses, accuracies (0 to 1), times in seconds and examples a second, by the names that the record has."""
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


def in_words(values: Mapping[str, float]) -> str:
    """The same in one line."""
    return (
        f"loss {values['loss']:.4f}, accuracy {values['accuracy']:.1%}; "
        f"validation loss {values['val_loss']:.4f}, accuracy {values['val_accuracy']:.1%}; "
        f"{values['epoch/time_s']:.1f} s, {values['input/wait_fraction']:.1%} of it waiting for data, "
        "the first batch included"
    )
