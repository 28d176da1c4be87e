"""One training from its first epoch, or its last checkpoint, to the best model."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any
from zipfile import BadZipFile

import keras
import tensorflow as tf

from pipeline import dataset as datasets
from pipeline.config import Settings
from pipeline.dataset import Dataset
from pipeline.errors import BadInput, Preempted, StorageError
from pipeline.input import one_ahead, steps_per_epoch
from pipeline.input.damage import DAMAGE, damage_named
from pipeline.malloc import keep_large_blocks
from pipeline.monitor import CometOptions, Monitor, open_monitor
from pipeline.progress import progress
from pipeline.runs import Best, Run, forget_bests, load_best, save_best, save_result
from pipeline.storage import place_of, temporary_beside
from pipeline.training.blame import examples_in_words
from pipeline.training.checkpoint import Checkpoints, Interval, Position
from pipeline.training.evaluate import evaluate
from pipeline.training.export import export
from pipeline.training.inputs import open_inputs
from pipeline.training.loop import Batch, EpochLoop, NumberedBatch, Sums
from pipeline.training.models import build_model, with_probabilities
from pipeline.training.optimizer import build_optimizer
from pipeline.training.phases import build_steps
from pipeline.training.quiet import stderr_held_back

_log = logging.getLogger(__name__)


def run_job(run: Run, stopping: Callable[[], bool]) -> None:
    """Train what `run` says and write its result; `stopping` is asked between steps.

    Raises Preempted, after a checkpoint, where `stopping` says so; TrainingError where the loss is no number.
    """
    # Before the monitor: Comet's thread draws from Python's random numbers, from which Keras takes the first weights.
    training = _Training(run, stopping)
    with open_monitor(run.folder, run.settings.sample_hz, comet_options(run)) as monitor:
        training.run(monitor)
    save_result(run, monitor.comet_location or "")


def comet_options(run: Run) -> CometOptions:
    """The experiment of a run: the same for every retry, another one for other settings or data."""
    return CometOptions(
        project=run.settings.comet_project,
        identity=f"{run.run_id}/{run.dataset_version}/{run.folder.name}",
        name=f"{run.settings.dataset_name} {run.settings.model} {run.run_id}",
        parameters={**run.settings.model_dump(), "dataset_version": run.dataset_version},
    )


def one_device() -> tf.distribute.Strategy:
    """The first GPU, else the CPU, said in one line."""
    with stderr_held_back():
        gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:  # else TensorFlow takes all memory of every GPU it sees
        tf.config.experimental.set_memory_growth(gpu, True)
    _log.info("training on %s", gpus[0].name if gpus else "the CPU: no GPU was found")
    return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")


class _Training:
    def __init__(self, run: Run, stopping: Callable[[], bool]) -> None:
        self._run, self._stopping = run, stopping
        self._settings: Settings = run.settings
        self._folder = place_of(run.dataset)
        self._dataset: Dataset = datasets.load(self._folder)
        self._steps_per_epoch = steps_per_epoch(self._dataset, self._settings.batch_size)
        keras.utils.set_random_seed(self._settings.seed)
        self._strategy = one_device()
        with self._strategy.scope():
            self._model = _built(self._settings, len(self._dataset.labels))
            optimizer = build_optimizer(self._settings, self._model, self._steps_per_epoch)
            kept = self._settings.checkpoints_kept
            self._checkpoints = Checkpoints(run.folder / "checkpoints", self._model, optimizer, kept)
        self._start = self._checkpoints.restore()
        forget_bests(run, self._start.epochs_done)
        told = self._settings, self._strategy, self._model, optimizer, self._dataset, self._steps_per_epoch
        self._steps = build_steps(*told)

    def run(self, monitor: Monitor) -> None:
        """All epochs that are left, then the evaluation of the best model."""
        start, settings = self._start, self._settings
        loop = EpochLoop(self._steps, monitor, self._stopping, step=start.step, sums=start.sums)
        loop.after_step, loop.describe = partial(self._save_where_due, loop), self._in_words
        self._interval = Interval(settings.checkpoint_minutes, settings.checkpoint_steps, start.step)
        done = start.epochs_done
        epochs = range(done + 1, settings.epochs + 1)
        told = settings, self._folder, self._dataset, loop.step, self._stopping, start.keeps
        with open_inputs(*told) as self._inputs:
            validation = self._on_device(self._inputs.validation)
            training = iter(self._on_device(self._inputs.training))
            keep_large_blocks()
            with self._checkpoints, closing(one_ahead(training)) as batches:
                try:
                    for epoch in epochs:
                        with self._explained():
                            self._epoch(epoch, loop, batches, validation)
                        done = epoch
                except Preempted:
                    self._save(loop, done)
                    self._checkpoints.wait()
                    raise
            # Where no checkpoint is written any more: the model now gets the weights of the best epoch.
            with self._explained():
                evaluate(self._run, self._dataset, self._strategy, self._model, validation, self._stopping)
        export(with_probabilities(self._model), self._settings, self._dataset, self._run.export_folder)

    def _on_device(self, batches: tf.data.Dataset) -> Iterable[Any]:
        """The batches, sent to the device ahead of the step that needs them."""
        distributed: Iterable[Any] = self._strategy.experimental_distribute_dataset(batches)
        return distributed

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Around what reads batches: say which shard is damaged, or why no more came."""
        readers = self._inputs.readers
        try:
            with nullcontext() if readers.train else damage_named(self._folder):
                yield
        except tf.errors.OpError as error:
            if readers.failure:
                raise readers.failure from error
            if readers.train and isinstance(error, DAMAGE):
                raise StorageError(
                    f"{error.message}: a copy in the shard cache was damaged after it was checked; run again: it is "
                    "fetched anew, and training goes on from its last checkpoint"
                ) from error
            raise

    def _save_where_due(self, loop: EpochLoop, epochs_done: int) -> None:
        # One after another: a disk that is slower than that must not stop the steps.
        if self._interval.is_over(loop.step) and not self._checkpoints.busy:
            self._save(loop, epochs_done)

    def _save(self, loop: EpochLoop, epochs_done: int) -> None:
        position = Position(epochs_done, loop.step, loop.sums, self._inputs.keeps)
        # The record first: it would lack steps that nobody does again.
        self._checkpoints.save(position, loop.monitor.flush)
        self._interval.begin(loop.step)

    def _in_words(self, batch: NumberedBatch) -> str:
        return examples_in_words(self._strategy, self._folder, self._dataset, batch)

    def _epoch(
        self, epoch: int, loop: EpochLoop, batches: Iterator[NumberedBatch], validation: Iterable[Batch]
    ) -> None:
        what = f"epoch {epoch}/{self._settings.epochs}"
        with progress(what, self._dataset.splits["train"].examples) as advance:
            trained = loop.train(epoch, batches, epoch * self._steps_per_epoch, advance)
        loop.sums = trained  # again: the checkpoint of a stop in the validation must have them
        validated = loop.evaluate(validation)
        loop.sums = Sums()
        values = _values(trained, validated)
        loop.monitor.epoch(epoch=epoch, step=loop.step, values=values)
        self._say(epoch, values)
        best = load_best(self._run)
        if best is None or validated.accuracy > best.metrics["val_accuracy"]:
            self._save_model(epoch, values)
        self._save(loop, epoch)

    def _save_model(self, epoch: int, values: dict[str, float]) -> None:
        path = self._run.folder / f"model-{epoch:05d}.keras"
        with temporary_beside(path, ending=".tmp.keras") as temporary:
            with_probabilities(self._model).save(temporary)
            temporary.replace(path)
        metrics = {name: values[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")}
        save_best(self._run, Best(epoch, path.name, metrics))

    def _say(self, epoch: int, values: dict[str, float]) -> None:
        _log.info(
            "epoch %d/%d: loss %.4f, accuracy %.1f%%; validation loss %.4f, accuracy %.1f%%; "
            "%.1f s, %.1f%% of it waiting for data, the first batch included",
            epoch,
            self._settings.epochs,
            values["loss"],
            100 * values["accuracy"],
            values["val_loss"],
            100 * values["val_accuracy"],
            values["epoch/time_s"],
            100 * values["input/wait_fraction"],
        )


def _built(settings: Settings, classes: int) -> keras.Model:
    try:
        return build_model(settings, classes)
    except (ValueError, OSError, KeyError, BadZipFile) as error:  # whatever a file of weights may hold
        raise BadInput(f"model {settings.model} with weights {settings.weights!r} cannot be made: {error}") from error


def _values(trained: Sums, validated: Sums) -> dict[str, float]:
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
