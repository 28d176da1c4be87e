"""The metric beside the loss, and its best value."""

import pandas
import pytest

from pipeline.evaluation.best_epoch import best_epoch, epoch_metric


@pytest.mark.parametrize(
    ("columns", "title", "epoch", "text"),
    [
        ({"val_accuracy": [0.5, 0.75, 0.75]}, "best validation accuracy", 2, "75.0%"),
        ({"val_mae": [float("nan"), 20.0, 12.3]}, "best validation mean absolute error", 3, "12.30"),
    ],
)
def test_the_best_epoch_has_the_best_validation(columns: dict[str, list[float]], title: str, epoch: int, text: str):
    best = best_epoch(pandas.DataFrame({"step": [1, 2, 3], **columns}))
    assert best is not None
    assert (best.title, best.epoch, best.text) == (title, epoch, text)


@pytest.mark.parametrize("columns", [{}, {"step": [1], "loss": [0.5]}, {"step": [1], "val_accuracy": [float("nan")]}])
def test_without_a_validation_there_is_no_best_epoch(columns: dict[str, list[float]]):
    assert best_epoch(pandas.DataFrame(columns)) is None


@pytest.mark.parametrize(("names", "key"), [((), "accuracy"), (("loss", "val_mae"), "mae"), (("mae",), "mae")])
def test_the_values_of_an_epoch_name_their_metric(names: tuple[str, ...], key: str):
    assert epoch_metric(names).key == key
