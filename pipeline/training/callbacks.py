"""Keras callbacks in a loop that is not Keras's: what they are told, and what they may ask for.

Only server 0 has them. The others follow it at the start of each epoch: whether there is one, and its learning rate.

No checkpoint holds what callbacks count (the patience of EarlyStopping, for instance), and what some of them keep
cannot be written down. Instead a training that goes on makes them anew and tells them again of the epochs that are
done, with the values that the record has of them: they count as before. Meanwhile they hold a stand-in for the model:
ModelCheckpoint would save the weights of the last epoch as those of the first, ReduceLROnPlateau reduce once more a
rate that the checkpoint has as it was left.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import keras
import tensorflow as tf

from pipeline.config import Settings
from pipeline.errors import SettingsError, TenfoldError, TrainingError
from pipeline.monitor.record import as_recorded, rows
from pipeline.runs.run import Run
from pipeline.training.checkpoint import Position
from pipeline.training.loop import Sums, TakesSteps
from pipeline.training.optimizer import may_be_set, scaled_rate
from pipeline.training.strategy import from_first, take_from_first
from pipeline.training.user_functions import explained, in_words, own_function

_TIME, _STOP = "callbacks/time_s", "callbacks/stop"
"""What the record has of the callbacks themselves: seconds in an epoch, and 1 where they ended the training."""
_NOT_TOLD = ("global_step", _TIME)
_OF_BATCHES = tuple(f"on{split}_batch_{end}" for split in ("", "_train", "_test") for end in ("begin", "end"))
_SET_THE_RATE = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
_log = logging.getLogger(__name__)


class Callbacks:
    """Those of one training, in the order of their calls: `begin`, then for each epoch `begin_epoch`, `tested` and
    `end_epoch`, then `end`. Each raises TrainingError where a callback fails. A training without any pays nothing.
    """

    def __init__(
        self,
        run: Run,
        model: keras.Model,
        optimizer: keras.Optimizer,
        strategy: tf.distribute.Strategy,
        steps_per_epoch: int,
    ) -> None:
        """Make them. Raises SettingsError where they are none, or cannot work in this training."""
        self._run, self._model, self._optimizer, self._strategy = run, model, optimizer, strategy
        self._steps_per_epoch = steps_per_epoch
        self._all = _made(run) if run.server.is_chief else []
        self._tell = _Telling(keras.callbacks.CallbackList(self._all))
        self._under_way = 0
        """The epoch, from 1, in whose middle the training goes on; 0: in none."""
        self._logs: dict[str, float] = {}
        self._seconds_before = 0.0

    def clock(self) -> float:
        """Seconds for the loop. It stands still while callbacks work, which is neither waiting nor computing."""
        return time.perf_counter() - self._tell.seconds

    def seconds(self) -> float:
        """For which the clock stood still."""
        return self._tell.seconds

    def told_by(self, steps: TakesSteps) -> TakesSteps:
        """Steps that tell of each batch; `steps` itself where no callback listens to batches."""
        self._steps = _TellingSteps(steps, self._tell)
        return self._steps if any(map(_listens, self._all)) else steps

    def begin(self, start: Position) -> None:
        """Tell that the training begins, or goes on from `start`."""
        if not self._all:
            return
        # Set, not compiled: what ModelCheckpoint saves could not be loaded without the class of our optimizer.
        self._model.optimizer, self._model.stop_training = self._optimizer, False
        known = {"epochs": self._run.settings.epochs, "steps": self._steps_per_epoch, "verbose": 0}
        self._tell("set_params", {**known, "epochs_done": start.epochs_done})
        self._tell("set_model", self._model)
        self._tell("on_train_begin")
        if start.step:
            self._tell_again(start)

    def begin_epoch(self, epoch: int) -> bool:
        """Whether `epoch` (from 1) is to be trained; all servers have to ask together."""
        if self._all and epoch != self._under_way and not self._stops:
            self._steps.begin("train")
            self._tell("on_epoch_begin", epoch - 1)
        return not self._agreed_stop()

    def tested(self, evaluate: Callable[[], Sums]) -> Sums:
        """What `evaluate` gives; tell when it begins and ends."""
        if not self._all:
            return evaluate()
        self._steps.begin("test")
        self._tell("on_test_begin")
        sums = evaluate()
        self._tell("on_test_end", _means(sums))
        return sums

    def end_epoch(self, epoch: int, values: Mapping[str, float]) -> dict[str, float]:
        """Tell of an epoch (from 1) and its values. Returns what else the record shall have of it."""
        if not self._all:
            return {}
        # As the record has them: two epochs that are equal must still be so after a stop.
        self._logs = {name: as_recorded(value) for name, value in values.items()}
        self._tell("on_epoch_end", epoch - 1, self._logs)
        if self._stops:
            _log.info("a callback ends the training after epoch %d", epoch)
        seconds, self._seconds_before = self._tell.seconds - self._seconds_before, self._tell.seconds
        return {_TIME: seconds, _STOP: float(self._stops)}

    def end(self) -> None:
        """Tell that no epoch follows; the model may have other weights afterwards."""
        if self._all:
            self._tell("on_train_end", self._logs)

    def _tell_again(self, start: Position) -> None:
        """Of the epochs that are done, and of the one under way that it began."""
        stand_in = _stand_in(self._model, self._optimizer, self._run.settings)
        self._tell("set_model", stand_in)
        for epoch, logs in _recorded(self._run, start.epochs_done):
            stopped, self._logs = logs.pop(_STOP, 0.0), logs
            self._tell("on_epoch_begin", epoch - 1)
            self._tell("on_epoch_end", epoch - 1, logs)
            stand_in.stop_training |= bool(stopped)
        done = start.step - start.epochs_done * self._steps_per_epoch
        if done:
            self._under_way = start.epochs_done + 1
            self._steps.begin("train", done, replace(start.sums))
            self._tell("on_epoch_begin", start.epochs_done)
        self._tell("set_model", self._model)
        self._model.stop_training = stand_in.stop_training

    @property
    def _stops(self) -> bool:
        return bool(self._all) and bool(self._model.stop_training)

    def _agreed_stop(self) -> bool:
        """Whether server 0 stops; the others take its learning rate, too."""
        if self._run.server.count == 1 or not self._run.settings.callbacks:
            return self._stops
        if may_be_set(self._run.settings):
            take_from_first([self._optimizer.learning_rate], self._strategy)
        [stops] = from_first([tf.constant(float(self._stops))], self._strategy)
        return bool(stops)


class _Telling:
    """Calls callbacks, counts the seconds that they take, and says in one sentence why they failed."""

    def __init__(self, callbacks: keras.callbacks.CallbackList) -> None:
        self._callbacks = callbacks
        self.seconds = 0.0

    def __call__(self, event: str, *values: Any) -> None:
        start = time.perf_counter()
        try:
            getattr(self._callbacks, event)(*values)
        except TenfoldError:
            raise
        except Exception as error:
            raise TrainingError(f"a callback failed in {event} ({in_words(error)})") from error
        finally:
            self.seconds += time.perf_counter() - start


@dataclass
class _Batches:
    """Those of an epoch, or of a validation, that were taken."""

    count: int = 0
    sums: Sums = field(default_factory=Sums)


class _TellingSteps:
    """Steps that tell callbacks of each batch, and of the means since the epoch began."""

    def __init__(self, steps: TakesSteps, tell: _Telling) -> None:
        self._steps, self._tell = steps, tell
        self._batches: dict[str, _Batches] = {}

    def begin(self, kind: str, *of_batches: Any) -> None:
        """Begin anew, or where `_Batches` stood, with those of a kind: "train" or "test"."""
        self._batches[kind] = _Batches(*of_batches)

    def train(self, *batch: tf.Tensor) -> tf.Tensor:
        return self._told("train", self._steps.train, batch)

    def evaluate(self, *batch: tf.Tensor) -> tf.Tensor:
        return self._told("test", self._steps.evaluate, batch)

    def _told(self, kind: str, step: Callable[..., tf.Tensor], batch: tuple[tf.Tensor, ...]) -> tf.Tensor:
        done = self._batches[kind]
        self._tell(f"on_{kind}_batch_begin", done.count)
        found = step(*batch)
        loss, right, examples = found.numpy().tolist()[:3]
        done.sums.add(int(examples), loss, right)
        self._tell(f"on_{kind}_batch_end", done.count, _means(done.sums))
        done.count += 1
        return found


class _StandIn:
    """Has all that `original` has; what is set in it stays in it."""

    def __init__(self, original: Any, own: Mapping[str, Any]) -> None:
        self.__dict__.update(own)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _stand_in(model: keras.Model, optimizer: keras.Optimizer, settings: Settings) -> Any:
    """A model, with the optimizer of a training that begins, which is neither saved nor given weights."""
    rate = _StandIn(optimizer, {"learning_rate": scaled_rate(settings)})
    changes = dict.fromkeys(("save", "save_weights", "load_weights", "set_weights"), _do_nothing)
    return _StandIn(model, {"optimizer": rate, "stop_training": False, **changes})


def _do_nothing(*_: Any, **__: Any) -> None: ...


def _recorded(run: Run, epochs_done: int) -> Iterator[tuple[int, dict[str, float]]]:
    """The epochs (from 1) that are done, and what the record has of each."""
    for row in rows(run.folder / "record", "epochs"):
        if row.step <= epochs_done:
            yield row.step, {name: value for name, value in row.values.items() if name not in _NOT_TOLD}


def _means(sums: Sums) -> dict[str, float]:
    return {"loss": sums.mean_loss, "accuracy": sums.accuracy}


def _listens(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback does something for each batch: LambdaCallback has functions of its own in place of methods."""
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(keras.callbacks.Callback, name)
        for name in _OF_BATCHES
    )


def _made(run: Run) -> list[keras.callbacks.Callback]:
    if not run.settings.callbacks:
        return []
    what = f"callbacks {run.settings.callbacks!r}"
    function = own_function(what, run.settings.callbacks)
    folder = run.folder / "callbacks"
    folder.mkdir(exist_ok=True)
    with explained(f"{what} failed, called with ({folder})"):
        found = function(folder)
    if not isinstance(found, list) or not all(isinstance(each, keras.callbacks.Callback) for each in found):
        raise SettingsError(f"{what} must return a list of keras.callbacks.Callback, got {found!r}")
    for callback in found:
        _require_possible(callback, what, run.settings)
        _say_which_way(callback)
    return found


def _require_possible(callback: keras.callbacks.Callback, what: str, settings: Settings) -> None:
    """Refuse now what would fail, or do harm, after the first epoch."""
    name = f"{what} cannot have {type(callback).__name__}"
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise SettingsError(f"{name}: checkpoints are written anyway, and a training goes on from them; leave it out")
    if isinstance(callback, keras.callbacks.TensorBoard) and not find_spec("tensorboard"):
        raise SettingsError(f"{name} without the package tensorboard: install it, or set tensorboard=true instead")
    if isinstance(callback, _SET_THE_RATE) and not may_be_set(settings):
        raise SettingsError(
            f"{name}, which sets the learning rate, where a schedule does: set learning_rate_schedule=constant, "
            "warmup_epochs=0 and freeze_epochs=0, or leave it out"
        )


def _say_which_way(callback: Any) -> None:
    """Say that more accuracy is better: Keras knows it of the metrics of a compiled model alone."""
    if getattr(callback, "mode", "") == "auto" and str(getattr(callback, "monitor", "")).endswith("accuracy"):
        callback.mode = "max"
