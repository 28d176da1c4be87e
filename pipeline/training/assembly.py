"""All objects of one training, wired up: the dataset, the devices, the model, its checkpoints and its steps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from pipeline.dataset import manifest as datasets
from pipeline.dataset.manifest import Dataset
from pipeline.input import steps_per_epoch
from pipeline.rendezvous import Cluster
from pipeline.runs.run import Run
from pipeline.storage import Place, place_of
from pipeline.training.callbacks import Callbacks
from pipeline.training.failure.device_memory import micro_batches_of
from pipeline.training.model.task import Task
from pipeline.training.model.tensor_kind import build_model_of, task_of
from pipeline.training.state.checkpoint import Checkpoints, Position
from pipeline.training.state.saved_state import restored
from pipeline.training.step.loop import Activity, TakesSteps
from pipeline.training.step.optimizer import build_optimizer, optimizer_options
from pipeline.training.step.phases import build_steps, step_options
from pipeline.training.step.strategy import on_devices, open_strategy, share_of_device


@dataclass(frozen=True)
class Training:
    """One training that is ready to go on from `start`. Each of its objects is complete."""

    run: Run
    dataset: Dataset
    dataset_folder: Place
    task: Task
    steps_per_epoch: int
    batch_size: int
    """Examples in a batch of this server."""
    device_batch_size: int
    """Examples that each device takes of such a batch."""
    micro_batches: int
    """Equal parts in which a device takes its examples, one after another."""
    strategy: tf.distribute.Strategy
    model: keras.Model
    """It gives logits."""
    optimizer: keras.Optimizer
    checkpoints: Checkpoints
    start: Position
    """Position of the last checkpoint, which model and optimizer were restored from."""
    callbacks: Callbacks
    steps: TakesSteps
    """They report each batch to the callbacks that listen to batches."""
    should_stop: Callable[[], bool]
    heartbeat: Callable[[], None]
    activity: Activity = field(default_factory=Activity)

    def should_stop_at_step(self) -> bool:
        """Give a sign of life, and return whether a stop is requested.

        Readers ask `should_stop` itself while they wait, also while the steps are stuck.
        """
        self.heartbeat()
        return self.should_stop()

    def on_devices(self, batches: tf.data.Dataset) -> Iterable[Any]:
        """Return the batches of this server as its devices take them."""
        return on_devices(batches, self.batch_size, self.strategy)


def assemble(
    run: Run, should_stop: Callable[[], bool], cluster: Cluster | None, heartbeat: Callable[[], None]
) -> Training:
    """Build the training of `run` and restore its last checkpoint.

    Args:
        run: What is trained.
        should_stop: Returns whether a stop is requested.
        cluster: The training servers, if there are several. All servers must call this together.
        heartbeat: Called with each step as a sign of life.

    Raises:
        BadInput: If the settings do not fit the dataset, the model or the devices.
        TrainingError: If the checkpoint holds other variables than the model.
    """
    settings = run.settings
    dataset_folder = place_of(run.dataset)
    dataset = datasets.load(dataset_folder)
    # Checked before: `require_shares` refuses a batch that the servers cannot divide.
    batch_size = settings.batch_size // run.server.count
    steps = steps_per_epoch(dataset, batch_size, run.server.count)

    strategy = open_strategy(cluster)
    device_batch_size = share_of_device(batch_size, strategy)
    micro_batches = micro_batches_of(run, device_batch_size)

    of_optimizer = optimizer_options(settings, steps)
    keras.utils.set_random_seed(settings.seed)  # Right before the model, whose first weights follow from it.
    with strategy.scope():
        model = build_model_of(settings, dataset)
        optimizer = build_optimizer(of_optimizer, model)
        checkpoints = Checkpoints(run.folder / "checkpoints", model, optimizer, settings.checkpoints_kept)
    start = restored(run, checkpoints, strategy)

    task = task_of(dataset)
    callbacks = Callbacks(run, model, optimizer, of_optimizer, strategy, steps, task.metric)
    # After the checkpoint is restored: in the second phase of a transfer learning, the optimizer's count decides.
    of_steps = step_options(settings, dataset, steps, micro_batches)
    compiled_steps = build_steps(strategy, model, optimizer, of_steps)
    return Training(
        run=run,
        dataset=dataset,
        dataset_folder=dataset_folder,
        task=task,
        steps_per_epoch=steps,
        batch_size=batch_size,
        device_batch_size=device_batch_size,
        micro_batches=micro_batches,
        strategy=strategy,
        model=model,
        optimizer=optimizer,
        checkpoints=checkpoints,
        start=start,
        callbacks=callbacks,
        steps=callbacks.report_batches_of(compiled_steps),
        should_stop=should_stop,
        heartbeat=heartbeat,
    )
