"""One training from its first epoch, or its last checkpoint, to the best model."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
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
from pipeline.runs import Best, Run, load_best, save_best, save_result
from pipeline.storage import place_of, temporary_beside
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.evaluate import evaluate
from pipeline.training.export import export
from pipeline.training.inputs import open_inputs
from pipeline.training.loop import Batch, EpochLoop, Sums
from pipeline.training.models import build_model, with_probabilities
from pipeline.training.optimizer import build_optimizer
from pipeline.training.phases import build_steps
from pipeline.training.quiet import stderr_held_back

_log = logging.getLogger(__name__)


def run_job(run: Run, stopping: Callable[[], bool], gang: Gang | None = None) -> None:
    """Train what `run` says, with the servers of a gang where there are several; server 0 writes what comes of it.

    `stopping` is asked between steps. Raises Preempted, after a checkpoint, where it says so; TrainingError where the
    loss is no number, or a server is gone.
    """
    # Before the monitor: Comet's thread draws from Python's random numbers, from which Keras takes the first weights.
    training = _Training(run, stopping, gang)
    comet = comet_options(run) if run.server.is_chief else None
    with open_monitor(run.folder, run.settings.sample_hz, comet) as monitor, _losses_named(gang):
        training.run(monitor)
    if run.server.is_chief:
        save_result(run, monitor.comet_location or "")


@contextmanager
def _losses_named(gang: Gang | None) -> Iterator[None]:
    """Around what waits for the other servers: say which one is gone, where TensorFlow only says that one is."""
    try:
        yield
    except tf.errors.OpError as error:
        lost = gang.loss(SILENT_S) if gang else None
        if lost is None:
            raise
        raise lost from error


def comet_options(run: Run) -> CometOptions:
    """The experiment of a run: the same for every retry, another one for other settings or data."""
    return CometOptions(
        project=run.settings.comet_project,
        identity=f"{run.run_id}/{run.dataset_version}/{run.folder.name}",
        name=f"{run.settings.dataset_name} {run.settings.model} {run.run_id}",
        parameters={**run.settings.model_dump(), "dataset_version": run.dataset_version},
    )


class _Training:
    def __init__(self, run: Run, stopping: Callable[[], bool], gang: Gang | None) -> None:
        self._run, self._stopping = run, stopping
        self._settings: Settings = run.settings
        self._folder = place_of(run.dataset)
        self._dataset: Dataset = datasets.load(self._folder)
        self._batch_size = self._settings.batch_size // run.server.count
        self._steps_per_epoch = steps_per_epoch(self._dataset, self._batch_size, run.server.count)
        self._strategy = open_strategy(gang)
        keras.utils.set_random_seed(self._settings.seed)
        with self._strategy.scope():
            self._model = _built(self._settings, len(self._dataset.labels))
            optimizer = build_optimizer(self._settings, self._model, self._steps_per_epoch)
            self._checkpoints = Checkpoints(run.folder / "checkpoints", self._model, optimizer)
        if run.server.is_chief:
            self._checkpoints.restore()
        spread(self._checkpoints.variables, run.server, self._strategy)
        told = self._settings, self._strategy, self._model, optimizer, self._dataset, self._steps_per_epoch
        self._steps = build_steps(*told)

    def run(self, monitor: Monitor) -> None:
        """All epochs that are left, then the evaluation of the best model."""
        saved = self._checkpoints
        loop = EpochLoop(self._steps, monitor, self._stopping, step=int(saved.step), sums=saved.sums)
        done = int(saved.epochs_done)
        epochs = range(done + 1, self._settings.epochs + 1)
        told = self._settings, self._folder, self._dataset, loop.step, self._stopping, saved.keeps
        with open_inputs(*told) as self._inputs:
            validation = self._on_device(self._inputs.validation)
            training = iter(self._on_device(self._inputs.training))
            keep_large_blocks()
            with closing(one_ahead(training)) as batches:
                try:
                    for epoch in epochs:
                        with self._explained():
                            self._epoch(epoch, loop, batches, validation)
                        done = epoch
                except Preempted:
                    saved.save(done, loop.step, loop.sums, self._inputs.keeps)
                    raise
            # Where no checkpoint is written any more: the model now gets the weights of the best epoch.
            with self._explained():
                evaluate(self._run, self._dataset, self._strategy, self._model, validation, self._stopping)
        export(with_probabilities(self._model), self._settings, self._dataset, self._run.export_folder)

    def _on_device(self, batches: tf.data.Dataset) -> Iterable[Batch]:
        """The batches, sent to the device ahead of the step that needs them."""
        distributed: Iterable[Batch] = self._strategy.experimental_distribute_dataset(batches)
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

    def _epoch(self, epoch: int, loop: EpochLoop, batches: Iterator[Batch], validation: Iterable[Batch]) -> None:
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
        self._checkpoints.save(epoch, loop.step, loop.sums, self._inputs.keeps)

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
