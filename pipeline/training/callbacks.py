"""Keras callbacks in a loop that is not Keras's: when they are called, and what they can decide.

Only server 0 has callbacks. At the start of each epoch the other servers follow it: whether there is an epoch, and its
learning rate.

A checkpoint does not hold the state of callbacks (the patience of EarlyStopping, for instance), because some of them
keep objects that cannot be stored. Instead, a training that goes on makes them again and replays the epochs that are
done, with the values in the record. Their counts are then as before. During the replay they hold a stand-in for the
model. Otherwise ModelCheckpoint would save the current weights as those of the first epoch, and ReduceLROnPlateau would
reduce a learning rate again that the checkpoint already holds reduced.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import SettingsError, TenfoldError, TrainingError
from pipeline.monitor.record import as_recorded, rows
from pipeline.runs.run import Run
from pipeline.training.model.own_functions import explain_errors, import_function, type_and_message
from pipeline.training.state.checkpoint import Position
from pipeline.training.step.dispatch import Result
from pipeline.training.step.keras_internals import attach_optimizer, set_direction
from pipeline.training.step.loop import Features, Sums, TakesSteps
from pipeline.training.step.optimizer import OptimizerOptions
from pipeline.training.step.strategy import broadcast, broadcast_variables

_TIME, _STOP = "callbacks/time_s", "callbacks/stop"
"""Values of the record about the callbacks: their seconds in an epoch, and 1 if they ended the training."""
_NOT_REPLAYED = ("global_step", _TIME, _STOP, "epoch/callbacks_s", "epoch/checkpoint_s")
"""These values of the record are not replayed, because callbacks did not get them when the epoch ended."""
_BATCH_METHODS = tuple(f"on{split}_batch_{end}" for split in ("", "_train", "_test") for end in ("begin", "end"))
_log = logging.getLogger(__name__)


class Callbacks:
    """The callbacks of one training.

    Call `begin`, then `begin_epoch`, `validate` and `end_epoch` for each epoch, then `end`. Each raises TrainingError
    if a callback fails. A training without callbacks pays nothing.
    """

    def __init__(
        self,
        run: Run,
        model: keras.Model,
        optimizer: keras.Optimizer,
        options: OptimizerOptions,
        strategy: tf.distribute.Strategy,
        steps_per_epoch: int,
        metric: str = "accuracy",
    ) -> None:
        """Make the callbacks, which get the metric of the task by this name.

        Raises SettingsError if they are no callbacks, or cannot work in this training.
        """
        self._run, self._model, self._optimizer, self._strategy = run, model, optimizer, strategy
        self._options, self._steps_per_epoch, self._metric = options, steps_per_epoch, metric
        self._all = _own_callbacks(run, options) if run.server.is_chief else []
        self._call = _TimedCalls(keras.callbacks.CallbackList(self._all))
        self._batches = _BatchCalls(self._call, metric)
        self._resumed_epoch = 0
        """The epoch, from 1, in the middle of which the training goes on; 0 if it goes on between two epochs."""
        self._logs: dict[str, float] = {}
        self._seconds_before = 0.0

    def clock(self) -> float:
        """Return seconds for the loop. The clock stands still while callbacks work, which is no time of a step."""
        return time.perf_counter() - self._call.seconds

    def seconds(self) -> float:
        """Return for how many seconds the clock stood still."""
        return self._call.seconds

    def report_batches_of(self, steps: TakesSteps) -> TakesSteps:
        """Return steps that report each batch to the callbacks; `steps` itself if no callback listens to batches."""
        return _ReportingSteps(steps, self._batches) if any(map(_listens_to_batches, self._all)) else steps

    def begin(self, start: Position) -> None:
        """Call the callbacks at the begin of the training, and replay the epochs before `start`."""
        if not self._all:
            return
        attach_optimizer(self._model, self._optimizer)
        # Keras sets it in `fit`, which is not called here, and callbacks read it.
        self._model.stop_training = False
        known = {"epochs": self._run.settings.epochs, "steps": self._steps_per_epoch, "verbose": 0}
        self._call("set_params", {**known, "epochs_done": start.epochs_done})
        self._call("set_model", self._model)
        self._call("on_train_begin")
        if start.step:
            self._replay(start)

    def begin_epoch(self, epoch: int) -> bool:
        """Begin an epoch (from 1), and return whether it is to be trained. All servers must call this together."""
        # The replay has begun the epoch in which the training goes on.
        if self._all and epoch != self._resumed_epoch and not self._should_stop:
            self._batches.begin()
            self._call("on_epoch_begin", epoch - 1)
        return not self._server_0_should_stop()

    def validate(self, evaluate: Callable[[], Sums]) -> Sums:
        """Return what `evaluate` returns, and call the callbacks before and after it."""
        if not self._all:
            return evaluate()
        self._batches.begin()
        self._call("on_test_begin")
        sums = evaluate()
        self._call("on_test_end", _means(sums, self._metric))
        return sums

    def end_epoch(self, epoch: int, values: Mapping[str, float]) -> dict[str, float]:
        """End an epoch (from 1) with its values. Return the values of the callbacks themselves, for the record."""
        if not self._all:
            return {}
        # As the record has them: two epochs that are equal must still be so after a stop.
        self._logs = {name: as_recorded(value) for name, value in values.items()}
        self._call("on_epoch_end", epoch - 1, self._logs)
        if self._should_stop:
            _log.info("a callback ends the training after epoch %d", epoch)
        seconds, self._seconds_before = self._call.seconds - self._seconds_before, self._call.seconds
        return {_TIME: seconds, _STOP: float(self._should_stop)}

    def end(self) -> None:
        """Call the callbacks after the last epoch. They may give the model other weights."""
        if self._all:
            self._call("on_train_end", self._logs)

    def _replay(self, start: Position) -> None:
        """Replay the epochs that are done, and the begin of the epoch in which the training goes on."""
        # The stand-in ignores saving and loading. Its learning rate is the one before any callback changes it.
        ignored = dict.fromkeys(("save", "save_weights", "load_weights", "set_weights"), lambda *_, **__: None)
        optimizer = _StandIn(self._optimizer, {"learning_rate": self._options.highest_rate})
        stand_in: Any = _StandIn(self._model, {"optimizer": optimizer, "stop_training": False, **ignored})
        self._call("set_model", stand_in)
        for row in rows(self._run.folder / "record", "epochs"):
            if row.step <= start.epochs_done:
                self._logs = {name: value for name, value in row.values.items() if name not in _NOT_REPLAYED}
                self._call("on_epoch_begin", row.step - 1)
                self._call("on_epoch_end", row.step - 1, self._logs)
                stand_in.stop_training |= bool(row.values.get(_STOP))
        done = start.step - start.epochs_done * self._steps_per_epoch
        if done:
            self._resumed_epoch = start.epochs_done + 1
            # A copy, because the loop adds its steps to `start.sums` itself.
            self._batches.begin(done, replace(start.sums))
            self._call("on_epoch_begin", start.epochs_done)
        self._call("set_model", self._model)
        self._model.stop_training = stand_in.stop_training

    @property
    def _should_stop(self) -> bool:
        return bool(self._all) and bool(self._model.stop_training)

    def _server_0_should_stop(self) -> bool:
        """Return whether the callbacks of server 0 end the training. The others take its learning rate, too."""
        # All servers have the same settings, so they agree on whether this collective takes place.
        if self._run.server.count == 1 or not self._run.settings.callbacks:
            return self._should_stop
        if self._options.schedule is None:
            broadcast_variables([self._optimizer.learning_rate], self._strategy)
        [should_stop] = broadcast([tf.constant(float(self._should_stop))], self._strategy)
        return bool(should_stop)


class _TimedCalls:
    """Calls callbacks, counts the seconds that they take, and explains their errors in one sentence."""

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
            raise TrainingError(f"a callback failed in {event} ({type_and_message(error)})") from error
        finally:
            self.seconds += time.perf_counter() - start


class _BatchCalls:
    """Calls callbacks before and after each batch, with the means since the epoch began."""

    def __init__(self, call: _TimedCalls, metric: str) -> None:
        self._call, self._metric = call, metric
        self.begin()

    def begin(self, count: int = 0, sums: Sums | None = None) -> None:
        """Begin an epoch, or its validation, of which `count` batches with these sums are done."""
        # A validation never runs within the steps of an epoch, so one count is enough.
        self._count, self._sums = count, sums or Sums()

    def take(self, kind: str, step: Callable[..., Result], batch: tuple[Features, ...]) -> tf.Tensor:
        """Return what `step` returns for a batch, and call the callbacks of "train" or "test" before and after it.

        The callbacks get the result of each step before the next one is sent, because they can change the learning
        rate or the weights.
        """
        self._call(f"on_{kind}_batch_begin", self._count)
        result = step(*batch).numpy()  # This waits for the device.
        loss, correct, examples = result[:3].tolist()
        self._sums.add(int(examples), loss, correct)
        self._call(f"on_{kind}_batch_end", self._count, _means(self._sums, self._metric))
        self._count += 1
        with tf.device("CPU:0"):
            return tf.constant(result)


class _ReportingSteps:
    train_several = None
    """Callbacks are called between two steps."""

    def __init__(self, steps: TakesSteps, batches: _BatchCalls) -> None:
        self._steps, self._batches = steps, batches

    @property
    def python_calls(self) -> int:
        return self._steps.python_calls

    def train(self, *batch: Features) -> tf.Tensor:
        return self._batches.take("train", self._steps.train, batch)

    def evaluate(self, *batch: Features) -> tf.Tensor:
        return self._batches.take("test", self._steps.evaluate, batch)


class _StandIn:
    """Has the attributes of `original`. Setting one does not change `original`."""

    def __init__(self, original: Any, own: Mapping[str, Any]) -> None:
        # Attributes of the instance win over `__getattr__`, which Python calls only for missing ones.
        self.__dict__.update(own)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _means(sums: Sums, metric: str) -> dict[str, float]:
    return {"loss": sums.mean_loss, metric: sums.mean_metric}


def _listens_to_batches(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback does something for each batch. LambdaCallback has functions in place of methods."""
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(keras.callbacks.Callback, name)
        for name in _BATCH_METHODS
    )


def _own_callbacks(run: Run, options: OptimizerOptions) -> list[keras.callbacks.Callback]:
    if not run.settings.callbacks:
        return []
    what = f"callbacks {run.settings.callbacks!r}"
    function = import_function(what, run.settings.callbacks)
    folder = run.folder / "callbacks"
    folder.mkdir(exist_ok=True)
    with explain_errors(f"{what} failed, called with ({folder})"):
        callbacks = function(folder)
    if not isinstance(callbacks, list) or not all(isinstance(each, keras.callbacks.Callback) for each in callbacks):
        raise SettingsError(f"{what} must return a list of keras.callbacks.Callback, got {callbacks!r}")
    for callback in callbacks:
        _require_possible(callback, what, options)
        set_direction(callback)
    return callbacks


def _require_possible(callback: keras.callbacks.Callback, what: str, options: OptimizerOptions) -> None:
    """Refuse a callback that would fail, or do harm, after the first epoch."""
    name = f"{what} cannot have {type(callback).__name__}"
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise SettingsError(f"{name}: remove it, because Tenfold writes checkpoints itself and continues from them")
    if isinstance(callback, keras.callbacks.TensorBoard) and not find_spec("tensorboard"):
        raise SettingsError(
            f"{name} without the package tensorboard: install the package, or set tensorboard=true instead"
        )
    sets_rate = isinstance(callback, keras.callbacks.LearningRateScheduler | keras.callbacks.ReduceLROnPlateau)
    if sets_rate and options.schedule:
        raise SettingsError(
            f"{name}, because it and the learning rate schedule would both set the learning rate: set "
            "learning_rate_schedule=constant, warmup_epochs=0 and freeze_epochs=0, or remove the callback"
        )
