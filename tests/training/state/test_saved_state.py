"""When a training saves checkpoints and models."""

import threading
from pathlib import Path

import keras
import pytest

from pipeline.config.automatic import training_settings
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.runs.run import Run, load_best
from pipeline.training.model.task import OneLabel, SeveralLabels, Task
from pipeline.training.state.checkpoint import Checkpoints, Position
from pipeline.training.state.saved_state import Keeper
from pipeline.training.step.loop import EpochLoop, Sums


class Record:
    """A fake monitor whose flush returns when `there` is set."""

    def __init__(self) -> None:
        self.flush_requested, self.there = threading.Event(), threading.Event()
        self.there.set()

    def flush(self) -> None:
        self.flush_requested.set()
        self.there.wait()


class SavedTraining:
    """A training at step 20, with its files in a folder."""

    def __init__(self, folder: Path, index: int = 0, task: Task | None = None, **settings: float) -> None:
        given = {"workspace": str(folder), "num_training_servers": index + 1, "batch_size": 32, **settings}
        self.run = Run(folder, "run", "", "1", training_settings(given), {}, {}, 1, index)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        self.checkpoints = Checkpoints(folder / "checkpoints", model, keras.optimizers.Adam())
        self.record = Record()
        self.loop = EpochLoop(None, self.record, lambda: False, step=20, sums=Sums(12, 3.5))  # type: ignore[arg-type]
        self.keeper = Keeper(self.run, self.loop, self.checkpoints, model, task or OneLabel(), keeps=True)

    def save_if_due(self) -> None:
        if self.keeper.steps_until_due(self.loop.step) <= 0:
            self.keeper.save(epochs_done=2)

    def steps_with_a_checkpoint(self, last: int) -> list[int]:
        """Take the steps up to `last`. Return the steps of all checkpoints in the folder."""
        while self.loop.step < last:
            self.loop.step += 1
            self.save_if_due()
        self.checkpoints.wait()
        return [int(path.stem.rpartition("-")[2]) for path in sorted(self.run.folder.glob("checkpoints/*"))]


def test_a_checkpoint_holds_the_position_of_the_loop(tmp_path: Path):
    training = SavedTraining(tmp_path)
    training.keeper.save(epochs_done=2)
    training.checkpoints.wait()
    assert training.checkpoints.restore() == Position(2, 20, Sums(12, 3.5), keeps=True)


def test_checkpoints_are_written_when_due_without_blocking_steps(tmp_path: Path):
    training = SavedTraining(tmp_path, checkpoint_minutes=0, checkpoint_steps=4)
    training.record.there.clear()
    training.loop.step = 24
    training.save_if_due()
    training.record.flush_requested.wait()
    assert not [*tmp_path.glob("checkpoints/*.npz")]  # not before the record of its steps is on the disk
    training.loop.step = 28  # due, but the previous checkpoint is still being written
    training.save_if_due()
    training.record.there.set()
    training.checkpoints.wait()
    assert training.steps_with_a_checkpoint(29) == [24, 29]
    assert training.steps_with_a_checkpoint(32) == [24, 29]


def test_only_server_0_writes_checkpoints_and_models(tmp_path: Path):
    training = SavedTraining(tmp_path, index=1, checkpoint_minutes=0, checkpoint_steps=1)
    training.keeper.save(epochs_done=2)
    training.keeper.save_if_best(1, values(0.5, 0.5))
    assert training.steps_with_a_checkpoint(24) == []
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("task", "best"), [(OneLabel(), [1, 3]), (SeveralLabels(), [1, 2])])
def test_a_model_is_saved_for_each_new_best_epoch(tmp_path: Path, task: Task, best: list[int]):
    training = SavedTraining(tmp_path, task=task)
    epochs = {1: values(0.5, 0.9), 2: values(0.4, 0.8), 3: values(0.6, 0.85), 4: values(0.6, 0.85)}
    for epoch, each in epochs.items():
        training.keeper.save_if_best(epoch, each)
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == [f"model-{epoch:05d}.keras" for epoch in best]
    found = load_best(training.run)
    assert found is not None
    assert (found.epoch, found.metrics) == (best[-1], epochs[best[-1]])


def values(accuracy: float, loss: float) -> dict[str, float]:
    """Return the values of an epoch."""
    return {"loss": 1.0, "accuracy": 0.3, "val_loss": loss, "val_accuracy": accuracy}


def recorded(training: SavedTraining, *epochs: int) -> None:
    record = RecordSink(training.run.folder / "record")
    for epoch in epochs:
        values = {"loss": 1.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": epoch / 10}
        record.write(Row("epochs", 1000.0 + epoch, epoch, values))
    record.close()


def test_the_model_of_the_last_epoch_replaces_a_lost_best_model(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    training = SavedTraining(tmp_path)
    recorded(training, 1, 2, 3)
    training.keeper.replace_lost_best(epochs_done=2)  # no checkpoint includes the third epoch
    best = load_best(training.run)
    assert best
    assert (best.epoch, best.metrics["val_accuracy"]) == (2, 0.2)
    assert (tmp_path / best.model).exists()
    assert "no model of a best epoch can be read: using the model of epoch 2 instead" in caplog.text


def test_an_epoch_without_validation_values_can_replace_a_lost_best_model(tmp_path: Path):
    training = SavedTraining(tmp_path)
    record = RecordSink(training.run.folder / "record")
    record.write(Row("epochs", 1000.0, 1, {"loss": 1.0, "accuracy": 0.5}))  # the other values were not finite
    record.close()
    training.keeper.replace_lost_best(epochs_done=1)
    best = load_best(training.run)
    assert best
    assert best.epoch == 1


@pytest.mark.parametrize("epochs_done", [0, 2])
def test_an_existing_best_model_is_not_replaced(tmp_path: Path, epochs_done: int):
    training = SavedTraining(tmp_path)
    recorded(training, 1, 2)
    if epochs_done:
        training.keeper.save_if_best(1, {"loss": 1.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.9})
    before = load_best(training.run)
    training.keeper.replace_lost_best(epochs_done)
    assert load_best(training.run) == before
