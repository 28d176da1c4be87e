"""One training from its first epoch, or its last checkpoint, to the best model."""

import logging
from collections.abc import Callable
from zipfile import BadZipFile

import keras
import tensorflow as tf

from pipeline import dataset as datasets
from pipeline.config import Settings
from pipeline.dataset import Dataset
from pipeline.errors import BadInput, DatasetError, Preempted, StorageError, TenfoldError
from pipeline.input import training_batches, validation_batches
from pipeline.monitor import CometOptions, Monitor, open_monitor
from pipeline.progress import progress
from pipeline.runs import Best, Run, load_best, save_best, save_result
from pipeline.storage import place_of, temporary_beside
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.loop import EpochLoop, Sums
from pipeline.training.models import build_model, with_probabilities
from pipeline.training.quiet import stderr_held_back
from pipeline.training.shards import open_reader
from pipeline.training.steps import Steps
from pipeline.verify import first_damage

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
        keras.utils.set_random_seed(self._settings.seed)
        strategy = one_device()
        with strategy.scope():
            self._model = _built(self._settings, len(self._dataset.labels))
            optimizer = keras.optimizers.Adam(self._settings.learning_rate)
            self._checkpoints = Checkpoints(run.folder / "checkpoints", self._model, optimizer)
        self._checkpoints.restore()
        self._steps = Steps(strategy, self._model, optimizer)

    def run(self, monitor: Monitor) -> None:
        """All epochs that are left."""
        loop = EpochLoop(self._steps, monitor, self._stopping, step=int(self._checkpoints.step))
        done = int(self._checkpoints.epochs_done)
        epochs = range(done + 1, self._settings.epochs + 1)
        with open_reader(self._settings, self._folder, self._dataset, epochs, self._stopping) as self._reader:
            try:
                for epoch in epochs:
                    self._explained_epoch(epoch, loop)
                    done = epoch
            except Preempted:
                self._checkpoints.save(done, loop.step)
                raise

    def _explained_epoch(self, epoch: int, loop: EpochLoop) -> None:
        try:
            self._epoch(epoch, loop)
        except tf.errors.OpError as error:
            reason = self._reason(error)
            if reason is None:
                raise
            raise reason from error

    def _reason(self, error: tf.errors.OpError) -> TenfoldError | None:
        """What TensorFlow's words stand for, where the shards are at fault."""
        if self._reader and self._reader.failure:
            return self._reader.failure
        if not isinstance(error, tf.errors.DataLossError):
            return None
        if self._reader:
            return StorageError(
                f"{error.message}: a copy in the shard cache was damaged after it was checked; run again: it is "
                "fetched anew, and training goes on from its last checkpoint"
            )
        return DatasetError(
            f"{first_damage(self._folder, self._dataset) or error.message}: remove the data set's folder and build "
            "it again; training then goes on from its last checkpoint"
        )

    def _epoch(self, epoch: int, loop: EpochLoop) -> None:
        trained = self._train(epoch, loop)
        validated = loop.evaluate(self._validation_batches())
        values = _values(trained, validated)
        loop.monitor.epoch(epoch=epoch, step=loop.step, values=values)
        self._say(epoch, values)
        best = load_best(self._run)
        if best is None or validated.accuracy > best.metrics["val_accuracy"]:
            self._save_model(epoch, values)
        self._checkpoints.save(epoch, loop.step)

    def _train(self, epoch: int, loop: EpochLoop) -> Sums:
        settings = self._settings
        batches = training_batches(
            self._folder,
            self._dataset,
            epoch=epoch,
            image_size=settings.image_size,
            batch_size=settings.batch_size,
            shuffle_bytes=settings.shuffle_megabytes * 1_000_000,
            seed=settings.seed,
            reader=self._reader,
        )
        what = f"epoch {epoch}/{settings.epochs}"
        with progress(what, self._dataset.splits["train"].examples) as advance:
            return loop.train(epoch, batches, advance)

    def _validation_batches(self) -> tf.data.Dataset:
        settings = self._settings
        return validation_batches(
            self._folder,
            self._dataset,
            image_size=settings.image_size,
            batch_size=settings.batch_size,
            reader=self._reader,
        )

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
