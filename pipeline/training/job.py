"""One training from its first epoch, or its last checkpoint, to the best model."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import Any
from zipfile import BadZipFile

import keras
import tensorflow as tf

from pipeline.config import Settings
from pipeline.dataset import manifest as datasets
from pipeline.dataset.manifest import Dataset
from pipeline.errors import BadInput, Preempted, StorageError
from pipeline.input import one_ahead, steps_per_epoch
from pipeline.input.damage import DAMAGE, damage_named
from pipeline.input.exhaustion import is_out_of_files, is_out_of_memory, out_of_files
from pipeline.monitor import Monitor, Sink, closing_sink, open_monitor
from pipeline.monitor.all_servers import SampleSender, aggregate
from pipeline.monitor.live import LiveVerdict
from pipeline.monitor.overview import OVERVIEW, OverviewSink
from pipeline.monitor.record import rows
from pipeline.monitor.verdict import Verdict
from pipeline.rendezvous import Gang
from pipeline.runs.files import VERDICT
from pipeline.runs.run import Run, save_result
from pipeline.storage import place_of
from pipeline.system.malloc import keep_large_blocks
from pipeline.system.progress import progress
from pipeline.training.bad_batch import examples_in_words
from pipeline.training.callbacks import Callbacks
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.device_memory import out_of_memory, parts_of_batch
from pipeline.training.epoch import in_words, values_of
from pipeline.training.evaluate import evaluate
from pipeline.training.experiment import comet_options
from pipeline.training.export import export
from pipeline.training.inputs import Readers, open_inputs, open_validation, would_keep
from pipeline.training.loop import Batch, EpochLoop, NumberedBatch, Sums
from pipeline.training.models import build_model, with_probabilities
from pipeline.training.optimizer import build_optimizer, rate_now
from pipeline.training.phases import build_steps
from pipeline.training.saved_state import Keeper, restored
from pipeline.training.strategy import agreed, losses_named, on_devices, open_strategy, share_of_device
from pipeline.training.task import task_of
from pipeline.training.tensorboard import TensorBoardSink
from pipeline.tuning.advice import with_advice

_log = logging.getLogger(__name__)


def run_job(
    run: Run, stopping: Callable[[], bool], gang: Gang | None = None, heard: Callable[[], None] = lambda: None
) -> None:
    """Train what `run` says, with the servers of a gang where there are several; server 0 writes what comes of it.

    `stopping` is asked between steps, and `heard` called with each, of the validation and the evaluation too. Raises
    Preempted, after a checkpoint, where it says so; TrainingError where the loss is no number, or a server is gone;
    OutOfMemory where the next try takes fewer examples at once.
    """
    # Before the monitor: Comet's thread draws from Python's random numbers, from which Keras takes the first weights.
    training = _Training(run, stopping, gang, heard)
    with (
        closing_sink(OverviewSink(run.folder / OVERVIEW)) as overview,
        _tensorboard(run, training) as trackers,
        _monitored(run, gang, [overview, *trackers], training.doing, training.advised) as monitor,
        losses_named(gang),
    ):
        training.run(monitor)
    if run.server.is_chief:
        save_result(run, monitor.comet_location or "", training.advised)


def _monitored(
    run: Run, gang: Gang | None, sinks: Sequence[Sink], doing: Callable[[], str], words: Callable[[Verdict], str]
) -> AbstractContextManager[Monitor]:
    """Each server records its own machine; trackers are told by server 0, for all."""
    comet = comet_options(run) if run.server.is_chief else None
    live = LiveVerdict(words, run.folder / VERDICT, doing)
    if gang is None:
        return open_monitor(run.folder, run.settings.sample_hz, comet, [live, *sinks])
    of_all = {"servers": lambda: aggregate(gang.samples)} if run.server.is_chief else {}
    return open_monitor(run.folder, run.settings.sample_hz, comet, [live, *sinks, SampleSender(gang.tell)], of_all)


@contextmanager
def _tensorboard(run: Run, training: "_Training") -> Iterator[Sequence[Sink]]:
    if not (run.settings.tensorboard and run.server.is_chief):
        yield ()
        return
    done = (row for row in rows(run.folder / "record", "epochs") if row.step <= training.epochs_done)
    with closing_sink(TensorBoardSink(run.folder / "tensorboard", done)) as sink:
        yield (sink,)


class _Training:
    def __init__(self, run: Run, stopping: Callable[[], bool], gang: Gang | None, heard: Callable[[], None]) -> None:
        self._run, self._stopping, self._heard = run, stopping, heard
        self._settings: Settings = run.settings
        self._folder = place_of(run.dataset)
        self._dataset: Dataset = datasets.load(self._folder)
        self._task = task_of(self._dataset.records)
        self._batch_size = self._settings.batch_size // run.server.count
        self._steps_per_epoch = steps_per_epoch(self._dataset, self._batch_size, run.server.count)
        self._strategy = open_strategy(gang)
        self._share = share_of_device(self._batch_size, self._strategy)
        self._parts = parts_of_batch(run, self._share)
        keras.utils.set_random_seed(self._settings.seed)
        with self._strategy.scope():
            self._model = _built(self._settings, len(self._dataset.labels))
            optimizer = build_optimizer(self._settings, self._model, self._steps_per_epoch)
            kept = self._settings.checkpoints_kept
            self._checkpoints = Checkpoints(run.folder / "checkpoints", self._model, optimizer, kept)
        self._optimizer = optimizer
        self._start = restored(run, self._checkpoints, self._strategy)
        told = self._settings, self._strategy, self._model, optimizer, self._dataset, self._steps_per_epoch
        self._callbacks = Callbacks(run, self._model, optimizer, self._strategy, self._steps_per_epoch)
        self._compiled = build_steps(*told, self._parts)
        self._steps = self._callbacks.told_by(self._compiled)
        self._loop: EpochLoop | None = None

    def doing(self) -> str:
        """What the training does now, in words for a person who waits for the next step."""
        return self._loop.doing if self._loop else "opening the dataset"

    def advised(self, verdict: Verdict) -> str:
        """The verdict, and the next thing to do."""
        return with_advice(verdict, self._settings, self._dataset.settings)

    @property
    def epochs_done(self) -> int:
        """How many are behind the checkpoint that it goes on from."""
        return self._start.epochs_done

    def run(self, monitor: Monitor) -> None:
        """All epochs that are left, then the evaluation of the best model."""
        start, settings = self._start, self._settings
        clocks = self._callbacks.clock, self._callbacks.seconds
        loop = EpochLoop(self._steps, monitor, self._stopping_at_step, start.step, start.sums, *clocks)
        self._loop, loop.describe = loop, self._in_words
        told = settings, self._folder, self._dataset, self._run.server, loop.step, self._stopping, self._keeps()
        with open_inputs(*told) as self._inputs:
            kept = self._checkpoints, self._model, self._task, self._inputs.keeps
            self._keeper = Keeper(self._run, loop, *kept)
            loop.after_step = self._keeper.save_where_due
            loop.ready_pct = self._inputs.counter.ready_pct
            loop.python_calls = lambda: self._compiled.python_calls
            loop.is_simulated = bool(settings.simulated_step_ms)
            if not start.sums.examples:
                self._keeper.replace_lost_best(start.epochs_done)
            self._train(loop)
            if self._run.server.is_chief:
                # Where no checkpoint is written any more: the model now gets the weights of the best epoch.
                self._evaluate()
        if self._run.server.is_chief:
            try:
                export(with_probabilities(self._model, self._task), settings, self._dataset, self._run.export_folder)
            except tf.errors.ResourceExhaustedError as error:
                raise (out_of_files(error) if is_out_of_files(error) else error) from error

    def _keeps(self) -> bool | None:
        """Whether decoded images are kept; None where it is not decided, and this server alone may."""
        if self._start.keeps is not None or self._run.server.count == 1:
            return self._start.keeps
        return agreed(would_keep(self._settings, self._dataset, self._run.server), self._strategy)

    def _train(self, loop: EpochLoop) -> None:
        done = self._start.epochs_done
        validation = self._on_devices(self._inputs.validation)
        training = iter(self._on_devices(self._inputs.training))
        keep_large_blocks()
        with self._checkpoints, closing(one_ahead(training)) as batches:
            try:
                self._callbacks.begin(self._start)
                for epoch in range(done + 1, self._settings.epochs + 1):
                    if not self._callbacks.begin_epoch(epoch):
                        break
                    with self._explained(self._inputs.readers):
                        self._epoch(epoch, loop, batches, validation)
                    done = epoch
                self._callbacks.end()
            except Preempted:
                self._keeper.save(done)
                self._checkpoints.wait()
                raise

    def _evaluate(self) -> None:
        with self._whole_validation() as (batches, readers), self._explained(readers):
            told = self._run, self._dataset, self._strategy, self._model
            evaluate(*told, self._on_devices(batches), self._stopping_at_step, self._parts)

    def _stopping_at_step(self) -> bool:
        # Not `_stopping` itself: readers ask that while they wait, also where the steps are stuck.
        self._heard()
        return self._stopping()

    def _whole_validation(self) -> AbstractContextManager[tuple[tf.data.Dataset, Readers]]:
        if self._run.server.count == 1:  # what is kept of it can be used again
            return nullcontext((self._inputs.validation, self._inputs.readers))
        return open_validation(self._settings, self._folder, self._dataset, self._run.server, self._stopping)

    def _on_devices(self, batches: tf.data.Dataset) -> Iterable[Any]:
        return on_devices(batches, self._batch_size, self._strategy)

    @contextmanager
    def _explained(self, readers: Readers) -> Iterator[None]:
        """Around what takes batches: say which shard is damaged, why no more came, or that they were too large."""
        try:
            with nullcontext() if readers.train else damage_named(self._folder):
                yield
        except tf.errors.OpError as error:
            if readers.failure:
                raise readers.failure from error
            if is_out_of_memory(error):
                raise out_of_memory(self._run, self._share, self._parts) from error
            if is_out_of_files(error):
                raise out_of_files(error) from error
            if isinstance(error, DAMAGE) and (damaged := readers.damaged_copy):
                raise StorageError(
                    f"{damaged} was damaged or removed after it was checked: run again; the shard is fetched again, "
                    "and training goes on from its last checkpoint"
                ) from error
            raise

    def _in_words(self, batch: NumberedBatch, spoiled: Sequence[float]) -> str:
        return examples_in_words(
            self._strategy, self._run.server, self._folder, self._dataset, batch=batch, spoiled=spoiled
        )

    def _epoch(
        self, epoch: int, loop: EpochLoop, batches: Iterator[NumberedBatch], validation: Iterable[Batch]
    ) -> None:
        what = f"epoch {epoch}/{self._settings.epochs}"
        with progress(what, self._dataset.splits["train"].examples) as advance:
            trained = loop.train(epoch, batches, epoch * self._steps_per_epoch, advance)
        trained_at = time.perf_counter()
        loop.sums = trained  # again: the checkpoint of a stop in the validation must have them
        loop.doing = f"validating after epoch {epoch}"
        validated = self._callbacks.tested(partial(loop.evaluate, validation))
        loop.sums = Sums()
        values = {**values_of(trained, validated), "learning_rate": rate_now(self._optimizer)}
        loop.doing = f"running the callbacks and saving the model after epoch {epoch}"
        values |= self._callbacks.end_epoch(epoch, values)
        values["epoch/callbacks_s"] = max(0.0, time.perf_counter() - trained_at - validated.time_s)
        loop.monitor.epoch(epoch=epoch, step=loop.step, values=values)
        _log.info("%s: %s", what, in_words(values))
        with loop.standing_still():
            self._keeper.save_if_best(epoch, values)
        self._keeper.save(epoch)


def _built(settings: Settings, classes: int) -> keras.Model:
    try:
        return build_model(settings, classes)
    except (ValueError, OSError, KeyError, BadZipFile) as error:  # whatever a file of weights may hold
        raise BadInput(f"model {settings.model} with weights {settings.weights!r} cannot be made: {error}") from error
