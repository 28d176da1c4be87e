"""What a training saves while it goes on: checkpoints, and the model of the best epoch."""

import logging
import math
from collections.abc import Mapping

import keras
import tensorflow as tf

from pipeline.config.automatic import TrainingSettings
from pipeline.monitor.record import rows
from pipeline.runs.changes import take_over
from pipeline.runs.continuation import require_end
from pipeline.runs.run import Best, Run, load_best, rewind_best_epochs, save_best, save_early_end
from pipeline.storage import crc32c_of, place_of, temporary_beside
from pipeline.storage.local import sync_path
from pipeline.training.model.models import with_probabilities
from pipeline.training.model.task import Task
from pipeline.training.state.checkpoint import Checkpoints, Interval, Position
from pipeline.training.step.loop import EpochLoop
from pipeline.training.step.strategy import broadcast, broadcast_variables

_log = logging.getLogger(__name__)


def restored(run: Run, checkpoints: Checkpoints, strategy: tf.distribute.Strategy) -> Position:
    """Restore the last checkpoint, and return its position. Server 0 reads it, and the others take its variables.

    The first checkpoint of a training that continues another one is the last one of that training.

    Raises:
        TrainingError: If it holds other variables than `checkpoints`.
        BadInput: If the training that is continued still goes on.
    """
    start = Position()
    if run.server.is_chief:
        start = checkpoints.restore()
        if run.settings.continues and not start.step:
            end = require_end(place_of(run.settings.continues))
            start = checkpoints.continue_from(end.checkpoint)
            take_over(run.training, end.change)
        # Epochs after the checkpoint are trained again, and may come out differently.
        rewind_best_epochs(run, start.epochs_done)
    if run.server.count > 1:
        broadcast_variables(checkpoints.variables, strategy)
        # float64, because float32 cannot hold each step above 16.7 million.
        [row] = broadcast([tf.constant(start.row, tf.float64)], strategy)
        start = Position.of_row(row.numpy().tolist())
    return start


class Keeper:
    """Writes the checkpoints of a loop, and the model if it is the best so far. Only server 0 writes.

    `keeps` is that of `follow`. The time until the first checkpoint counts from the creation of this object.
    """

    def __init__(
        self, run: Run, loop: EpochLoop, checkpoints: Checkpoints, model: keras.Model, task: Task, keeps: bool
    ) -> None:
        self._run, self._loop, self._checkpoints = run, loop, checkpoints
        self._model, self._task = model, task
        self.follow(run.settings, keeps)

    def follow(self, settings: TrainingSettings, keeps: bool) -> None:
        """From now on, write a checkpoint as often as these settings say.

        `keeps` says whether the input keeps decoded images. It is stored, because later attempts must do the same.
        """
        self._keeps = keeps
        self._interval = Interval(settings.checkpoint_minutes, settings.checkpoint_steps, self._loop.step)

    def steps_until_due(self, step: int) -> float:
        """Return after how many steps from `step` on a checkpoint is due: 0 if now, infinity if never."""
        if not self._run.server.is_chief:
            return math.inf
        steps = self._interval.steps_left(step)
        # A checkpoint that is due while another is being written is put off: a slow disk must not stop the steps.
        return 1 if steps <= 0 and self._checkpoints.is_busy else steps

    def save(self, epochs_done: int) -> None:
        """Write a checkpoint, in the background. Raises StorageError if the one before failed."""
        if not self._run.server.is_chief:
            return
        position = Position(epochs_done, self._loop.step, self._loop.sums, self._keeps)
        with self._loop.standing_still():
            # The record is flushed before the checkpoint appears. Otherwise, it lacks steps that no attempt repeats.
            self._checkpoints.save(position, self._loop.monitor.flush)
        self._interval.begin(self._loop.step)

    def save_if_best(self, epoch: int, values: Mapping[str, float]) -> None:
        """Write the model if the values of an epoch are better than those of all epochs before it.

        Steps of a simulated accelerator do not change the model. So that of the first epoch is written.
        """
        if not self._run.server.is_chief:
            return
        best, can_improve = load_best(self._run), not self._run.settings.simulated_step_ms
        if best is None or (can_improve and self._task.is_better(values, best.metrics)):
            self._save_model(epoch, values)

    def has_stalled(self, epochs_done: int) -> bool:
        """Return whether the last `patience` epochs, at least one, were not better than the best one.

        True on all servers but 0.
        `best.json` decides. It goes back to the last checkpoint with the training, so after a stop the count goes on.
        """
        if not self._run.server.is_chief:
            return True
        best, patience = load_best(self._run), self._run.settings.patience
        if best is None or epochs_done - best.epoch < patience:
            return False
        _log.info("the training ends early: no epoch since %d was better (patience=%d)", best.epoch, patience)
        return True

    def save_early_end(self, epoch: int) -> None:
        """Store that the training ended early after an epoch (from 1); 0 if it goes on."""
        if self._run.server.is_chief:
            save_early_end(self._run, epoch)

    def replace_lost_best(self, epochs_done: int) -> None:
        """Save the model of the last epoch if no model of a better one is left, as after damage to a disk.

        The next epochs would save one, but there may be none. Call it if the training goes on at the end of an epoch:
        the model then has the weights of that epoch.
        """
        if not self._run.server.is_chief or not epochs_done or load_best(self._run):
            return
        values = [row.values for row in rows(self._run.folder / "record", "epochs") if row.step == epochs_done]
        if values:
            _log.warning("no model of a best epoch can be read: using the model of epoch %d instead", epochs_done)
            self._save_model(epochs_done, values[-1])

    def _save_model(self, epoch: int, values: Mapping[str, float]) -> None:
        path = self._run.folder / f"model-{epoch:05d}.keras"
        # Keras saves a model only under a name that ends with .keras.
        with temporary_beside(path, ending=".tmp.keras") as temporary:
            with_probabilities(self._model, self._task).save(temporary)
            sync_path(temporary)
            checksum = f"{crc32c_of(temporary):08x}"
            temporary.replace(path)
        # Values that are not finite are missing in the record, and so in the values of a lost epoch.
        names = [prefix + name for prefix in ("", "val_") for name in ("loss", self._task.metric)]
        if self._run.settings.simulated_step_ms:
            names = []
        metrics = {name: values.get(name, math.nan) for name in names}
        save_best(self._run, Best(epoch, path.name, metrics, checksum))
