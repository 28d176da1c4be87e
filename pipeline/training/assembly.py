"""All objects of one training, wired up: the dataset, the devices, the model, its checkpoints and its steps."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from pipeline.dataset.manifest import load
from pipeline.input import steps_per_epoch
from pipeline.rendezvous import Cluster
from pipeline.runs.run import Run
from pipeline.storage import place_of
from pipeline.training.callbacks import Callbacks
from pipeline.training.failure.device_memory import micro_batches_of
from pipeline.training.model.tensor_kind import build_model_of, task_of
from pipeline.training.state.checkpoint import Checkpoints
from pipeline.training.state.saved_state import restored
from pipeline.training.step.loop import Activity
from pipeline.training.step.optimizer import build_optimizer, optimizer_options
from pipeline.training.step.phases import build_steps, step_options
from pipeline.training.step.strategy import on_devices, open_strategy, share_of_device
from pipeline.training.stop import Stage


class Training:
    """One training, restored from its last checkpoint and ready to go on. All servers must make it together.

    `heartbeat` is called with each step as a sign of life. Readers call `should_stop` even while the steps are stuck.
    `enter` is called when it changes what a stop would lose.

    Raises:
        BadInput: If the settings do not fit the dataset, the model or the devices.
        TrainingError: If the checkpoint holds other variables than the model.
    """

    def __init__(
        self,
        run: Run,
        should_stop: Callable[[], bool],
        cluster: Cluster | None,
        heartbeat: Callable[[], None],
        enter: Callable[[Stage], None],
    ) -> None:
        self.run, self.should_stop, self._heartbeat, self.enter = run, should_stop, heartbeat, enter
        self.activity = Activity()
        settings = run.settings
        self.dataset_folder = place_of(run.dataset)
        self.dataset = dataset = load(self.dataset_folder)
        # This leaves no remainder: `require_shares` refuses a batch that the servers cannot divide.
        self.batch_size = settings.batch_size // run.server.count
        """Examples in a batch of this server."""
        self.steps_per_epoch = steps = steps_per_epoch(dataset, self.batch_size, run.server.count)

        if cluster:
            cluster.wait_until_loaded(should_stop)
        self.strategy = strategy = open_strategy(cluster)  # Before any other work of TensorFlow.
        self.task = task_of(dataset)
        self.device_batch_size = share_of_device(self.batch_size, strategy)
        self.micro_batches = micro_batches_of(run, self.device_batch_size)
        """Equal parts in which a device takes its examples, one after another."""

        of_optimizer = optimizer_options(settings, steps)
        keras.utils.set_random_seed(settings.seed)  # Right before the model, whose first weights follow from it.
        with strategy.scope():
            self.model = model = build_model_of(settings, dataset)
            """It gives logits."""
            self.optimizer = optimizer = build_optimizer(of_optimizer, model)
            self.checkpoints = Checkpoints(run.folder / "checkpoints", model, optimizer)
        self.start = restored(run, self.checkpoints, strategy)
        """Position of the last checkpoint, which model and optimizer were restored from."""

        self.callbacks = Callbacks(run, model, optimizer, of_optimizer, strategy, steps, self.task.metric)
        # After the checkpoint is restored: in the second phase of a transfer learning, the optimizer's count decides.
        of_steps = step_options(settings, dataset, steps, self.micro_batches)
        self.steps = self.callbacks.report_batches_of(build_steps(strategy, model, optimizer, of_steps))
        """They report each batch to the callbacks that listen to batches."""

    def should_stop_at_step(self) -> bool:
        """Give a sign of life, and return whether a stop is requested."""
        self._heartbeat()
        return self.should_stop()

    def on_devices(self, batches: tf.data.Dataset) -> Iterable[Any]:
        """Return the batches of this server as its devices take them."""
        return on_devices(batches, self.batch_size, self.strategy)
