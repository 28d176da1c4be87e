"""Checkpoints: their content, when they are due, and recovery from damage."""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import keras
import numpy as np
import pytest

from pipeline.errors import StorageError, TrainingError
from pipeline.training.state.checkpoint import Checkpoints, Interval, Position
from pipeline.training.step.loop import Sums


class Trained:
    """A model of a few variables with one common value, and its checkpoints."""

    def __init__(self, folder: Path, units: int = 2) -> None:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dropout(0.5)])
        optimizer = keras.optimizers.Adam()
        self.checkpoints = Checkpoints(folder, model, optimizer)
        self.variables = [*model.variables, *optimizer.variables]

    def hold(self, value: int) -> "Trained":
        for variable in self.variables:
            variable.assign(np.full(variable.shape, value))
        return self

    def save(self, step: int) -> None:
        """Set all variables to `step`, and write a checkpoint at this step."""
        self.hold(step).checkpoints.save(Position(step=step))
        self.checkpoints.wait()

    @property
    def held(self) -> set[float]:
        return {float(each) for variable in self.variables for each in variable.numpy().ravel()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_restores_the_position_and_all_variables(tmp_path: Path):
    position = Position(2, 47, Sums(12, 3.5, 8.0, 0.25, 1.5), keeps=False)
    with Trained(tmp_path).hold(7).checkpoints as checkpoints:
        checkpoints.save(position)
    again = Trained(tmp_path)
    assert again.checkpoints.restore() == position
    assert again.held == {7}


def test_a_training_without_a_checkpoint_starts_at_step_0(tmp_path: Path):
    assert Trained(tmp_path / "none").checkpoints.restore() == Position(0, 0, Sums(), None)


def test_a_training_continues_another_one_with_all_its_variables_and_its_own_choice_of_a_cache(tmp_path: Path):
    with Trained(tmp_path / "earlier").hold(7).checkpoints as checkpoints:
        checkpoints.save(Position(2, 40, keeps=True))
    [path] = (tmp_path / "earlier").iterdir()
    later = Trained(tmp_path / "later")
    assert later.checkpoints.continue_from(path) == Position(2, 40, Sums(), keeps=None)
    assert later.held == {7}
    content = path.read_bytes()
    for damaged in (content[:100], content[:-30], b""):
        path.write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"is damaged .*, so no training can continue from it"):
            later.hold(1).checkpoints.continue_from(path)
        assert path.exists()
        assert later.held == {1}
    path.write_bytes(content)
    with pytest.raises(TrainingError, match="holds other variables than the model"):
        Trained(tmp_path / "other", units=3).checkpoints.continue_from(path)


def test_older_checkpoints_are_deleted(tmp_path: Path):
    trained = Trained(tmp_path)
    for step in (5, 9, 10, 11, 100):
        trained.save(step)
    assert names(tmp_path) == [f"checkpoint-000000-{step:010d}.npz" for step in (10, 11, 100)]


def test_a_checkpoint_at_the_end_of_an_epoch_is_newer_than_one_at_its_last_step(tmp_path: Path):
    with Trained(tmp_path).checkpoints as checkpoints:
        checkpoints.save(Position(1, 10))
        checkpoints.save(Position(0, 10))
    assert Trained(tmp_path).checkpoints.restore() == Position(1, 10)


def without_its_last_array(content: bytes) -> bytes:
    """Return a valid archive without its last array."""
    buffer = io.BytesIO()
    with ZipFile(io.BytesIO(content)) as source, ZipFile(buffer, "w") as target:
        for name in source.namelist()[:-1]:
            target.writestr(name, source.read(name))
    return buffer.getvalue()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "half of it": lambda content: content[: len(content) // 2],
    "without its end": lambda content: content[:-1],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "an array less": without_its_last_array,
    "something else": lambda content: b"garbage" * 100,
    "a bit of a weight": lambda content: flipped(content, content.index(np.full(2, 20, np.float32).tobytes())),
    "a bit of its position": lambda content: flipped(content, content.index("step".encode("utf-32-le"))),
}


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
):
    trained = Trained(tmp_path)
    for step in (10, 20):
        trained.save(step)
    last = tmp_path / names(tmp_path)[-1]
    last.write_bytes(DAMAGE[damage](last.read_bytes()))
    again = Trained(tmp_path)
    assert again.checkpoints.restore() == Position(step=10)
    assert again.held == {10}
    assert f"the checkpoint {last} is damaged" in caplog.text
    assert not last.exists()


def test_a_training_starts_again_if_all_checkpoints_are_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    trained = Trained(tmp_path)
    for step in (10, 20):
        trained.save(step)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    again = Trained(tmp_path).hold(1)
    assert again.checkpoints.restore() == Position()
    assert again.held == {1}
    assert f"none of the checkpoints in {tmp_path} could be read: the training starts from the beginning" in caplog.text


def test_a_checkpoint_with_a_flipped_bit_is_never_restored_wrongly(tmp_path: Path):
    Trained(tmp_path).save(10)
    [path] = tmp_path.iterdir()
    content = path.read_bytes()
    again = Trained(tmp_path)
    for place in range(0, len(content), 23):
        path.write_bytes(flipped(content, place))
        again.hold(0)
        position = again.checkpoints.restore()
        assert (position, again.held) in [(Position(), {0}), (Position(step=10), {10})], place


def test_a_checkpoint_of_another_model_is_refused_and_not_deleted(tmp_path: Path):
    Trained(tmp_path, units=4).save(10)
    with pytest.raises(TrainingError, match=r"000010\.npz holds other variables than the model.* or remove"):
        Trained(tmp_path).checkpoints.restore()
    assert len(names(tmp_path)) == 1


def test_a_checkpoint_does_not_include_later_changes(tmp_path: Path):
    trained, may_appear = Trained(tmp_path).hold(1), threading.Event()
    trained.checkpoints.save(Position(step=1), may_appear.wait)
    assert trained.checkpoints.is_busy
    trained.hold(2)  # the training continues
    assert not [*tmp_path.glob("*.npz")]
    may_appear.set()
    trained.checkpoints.wait()
    assert not trained.checkpoints.is_busy
    again = Trained(tmp_path)
    again.checkpoints.restore()
    assert again.held == {1}


def no_room() -> None:
    raise OSError(28, "No space left on device")


def test_a_checkpoint_that_cannot_be_written_is_an_error_and_leaves_no_file(tmp_path: Path):
    trained = Trained(tmp_path)
    for report_failure in (trained.checkpoints.wait, lambda: trained.checkpoints.save(Position(step=2))):
        trained.checkpoints.save(Position(step=1), no_room)
        with pytest.raises(StorageError, match=r"000001\.npz cannot be written .*No space left"):
            report_failure()
    with pytest.raises(StorageError, match="No space left"), Trained(tmp_path).checkpoints as checkpoints:
        checkpoints.save(Position(step=1), no_room)
    assert names(tmp_path) == []


def test_a_failed_checkpoint_does_not_hide_the_error_of_the_training(tmp_path: Path):
    checkpoints = Trained(tmp_path).checkpoints
    checkpoints.save(Position(step=1), no_room)
    with pytest.raises(TrainingError, match="nan"), checkpoints:
        raise TrainingError("nan")


@pytest.mark.parametrize(
    ("minutes", "steps", "due"),
    [
        (0.0, 0, []),
        (0.0, 4, [4, 8]),
        (1.0, 0, [6]),  # a step takes ten seconds
        (1.0, 4, [4, 8]),
        (0.5, 4, [3, 6, 9]),
        (0.01, 0, [*range(1, 11)]),
    ],
)
def test_a_checkpoint_is_due_by_time_or_by_steps(minutes: float, steps: int, due: list[int]):
    now = 1000.0
    interval = Interval(minutes, steps, step=100, clock=lambda: now)
    begun = []
    for step in range(1, 11):
        now += 10
        if interval.steps_left(100 + step) <= 0:
            begun.append(step)
            interval.begin(100 + step)
    assert begun == due


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_weights_are_not_written(tmp_path: Path, value: float):
    trained = Trained(tmp_path)
    trained.save(1)
    trained.variables[0].assign(np.full(trained.variables[0].shape, value))
    trained.checkpoints.save(Position(step=2))
    with pytest.raises(TrainingError, match=r"some weights are not finite numbers, so .*2\.npz is not written"):
        trained.checkpoints.wait()
    assert Trained(tmp_path).checkpoints.restore() == Position(step=1)
