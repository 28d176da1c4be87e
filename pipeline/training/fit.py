"""The course of a training: the epochs that are left, then the evaluation and the export of the best model."""

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from math import isnan

from pipeline.errors import Preempted
from pipeline.evaluation.best_epoch import epoch_metric
from pipeline.monitor import Monitor
from pipeline.system.progress import progress
from pipeline.training.assembly import Training
from pipeline.training.batch_errors import explain_batch_errors
from pipeline.training.current_input import BestChanges, CurrentInput
from pipeline.training.evaluate import evaluate, judged_groups
from pipeline.training.failure.bad_batch import describe_examples
from pipeline.training.inputs import ServerData
from pipeline.training.served.export import export
from pipeline.training.state.saved_state import Keeper
from pipeline.training.step.loop import EpochLoop, Sums
from pipeline.training.step.optimizer import rate_now
from pipeline.training.step.strategy import all_agree
from pipeline.training.stop import Stage

_log = logging.getLogger(__name__)


def fit(training: Training, monitor: Monitor, best_changes: BestChanges = lambda settings, epochs_left: ()) -> None:
    """Train all epochs that are left. Server 0 then evaluates the best model, and exports it.

    `best_changes` is called before each epoch but the first of an attempt. With advice=apply, the training requests the
    first of them that it can. On a simulated accelerator, no model is evaluated, because none has learned anything.

    Raises:
        Preempted: If a stop was requested. A checkpoint is written before.
        TrainingError: If the loss or the gradients are not finite.
        OutOfMemory: If the next attempt takes fewer examples at once.
    """
    run, settings, start = training.run, training.run.settings, training.start
    data = ServerData(settings, training.dataset_folder, training.dataset, run.server, training.should_stop)
    with CurrentInput(training, data) as current:
        current.begin(start.epochs_done + 1, start.step)
        loop = EpochLoop(
            steps=training.steps,
            monitor=monitor,
            should_stop=training.should_stop_at_step,
            step=start.step,
            sums=start.sums,
            clock=training.callbacks.clock,
            host_s=training.callbacks.seconds,
            describe=partial(
                describe_examples, training.strategy, run.server, training.dataset_folder, training.dataset
            ),
            ready_pct=current.inputs.counter.ready_pct,
            is_simulated=bool(settings.simulated_step_ms),
            activity=training.activity,
            servers=run.server.count,
            stacked=current.inputs.stacked,
        )
        keeps = current.inputs.keeps
        keeper = Keeper(run, loop, training.checkpoints, model=training.model, task=training.task, keeps=keeps)
        keeper.follow(current.effect.settings, keeps)
        if not start.sums.examples:
            # Only at the end of an epoch: in its middle, the weights belong to no epoch.
            keeper.replace_lost_best(start.epochs_done)
        # Before the training, because a missing file must not end it after its last epoch.
        groups = judged_groups(training)
        is_early = _train(training, current, loop, keeper, best_changes)
        if run.server.is_chief and not settings.simulated_step_ms:
            # On one server, decoded validation images that are kept can be used again.
            can_reuse = run.server.count == 1 and training.dataset.judged_split == "validation"
            judged = (
                nullcontext((current.inputs.validation, current.inputs.readers)) if can_reuse else data.open_judged()
            )
            with judged as (batches, readers), explain_batch_errors(training, readers):
                # After the last checkpoint is written, because the model now gets the weights of the best epoch.
                evaluate(training, batches, groups)
    if run.server.is_chief:
        export(training.model, settings, training.dataset, run.export_folder)
    current.refuse_rest(is_early)  # What was requested meanwhile.


def _train(
    training: Training,
    current: CurrentInput,
    loop: EpochLoop,
    keeper: Keeper,
    best_changes: BestChanges,
) -> bool:
    """Train the epochs that are left. Return whether the training ended before the last one.

    If a stop is requested, write a checkpoint and raise Preempted.
    """
    epochs, epochs_done = training.run.settings.epochs, training.start.epochs_done
    keeper.save_early_end(0)
    with training.checkpoints, current.reading:
        try:
            training.callbacks.begin(training.start)
            for epoch in range(epochs_done + 1, epochs + 1):
                if _is_over(training, current, loop, keeper, epochs_done) or not training.callbacks.begin_epoch(epoch):
                    break
                if epoch > training.start.epochs_done + 1:
                    _change(current, epoch, loop, keeper, best_changes)
                with explain_batch_errors(training, current.inputs.readers):
                    _train_epoch(epoch, training, current, loop, keeper)
                epochs_done = epoch
            if epochs_done < epochs:
                keeper.save_early_end(epochs_done)
            current.refuse_rest(is_early=epochs_done < epochs)
            training.callbacks.end()
            return epochs_done < epochs
        except Preempted:
            training.enter(Stage.SAVING)
            # All servers leave after the same step, so its checkpoint is good for all of them.
            keeper.save(epochs_done)
            training.checkpoints.wait()
            raise


def _is_over(training: Training, current: CurrentInput, loop: EpochLoop, keeper: Keeper, epochs_done: int) -> bool:
    """Return whether the training ends early: it does not get better, or another one continues it.

    All servers must call this together.
    """
    is_over = current.is_continued(epochs_done + 1, loop.step)
    is_over = is_over or bool(training.run.settings.patience and keeper.has_stalled(epochs_done))
    # Only server 0 knows its requests and its best epoch. The others agree with whatever it says.
    return is_over if training.run.server.count == 1 else all_agree(is_over, training.strategy)


def _change(current: CurrentInput, epoch: int, loop: EpochLoop, keeper: Keeper, best_changes: BestChanges) -> None:
    """Let the changes that were requested take effect from an epoch on. All servers must call this together."""
    current.request(epoch, best_changes)
    openings = current.openings
    if current.begin(epoch, loop.step):
        if current.openings > openings:  # Otherwise, the rest of a stack of batches is still to be used.
            loop.take_from(current.inputs.counter.ready_pct, current.inputs.stacked)
        keeper.follow(current.effect.settings, current.inputs.keeps)


def _train_epoch(epoch: int, training: Training, current: CurrentInput, loop: EpochLoop, keeper: Keeper) -> None:
    """Train and validate one epoch (from 1), report it to callbacks and monitor, and write what is kept of it."""
    title = f"epoch {epoch}/{training.run.settings.epochs}"
    # Counted from the first epoch, because the steps of an earlier attempt are done already.
    last_step = epoch * training.steps_per_epoch
    with progress(title, training.dataset.splits["train"].examples, training.dataset.unit) as advance:

        def done(*counts: int) -> None:
            if loop.step > training.start.step:  # The first call comes before the first step.
                training.enter(Stage.WORKING)
            advance(*counts)

        trained = loop.train(epoch, current.batches, last_step, done, saver=keeper)
    trained_at = time.perf_counter()

    loop.sums = trained  # The loop has reset them, but the checkpoint of a stop in the validation needs them.
    training.activity.text = f"validating after epoch {epoch}"
    validated = training.callbacks.validate(partial(loop.evaluate, current.validation))
    loop.sums = Sums()
    metric = "" if training.run.settings.simulated_step_ms else training.task.metric
    values = {**values_of(trained, validated, metric), "learning_rate": rate_now(training.optimizer)}

    training.activity.text = f"running the callbacks and saving the model after epoch {epoch}"
    values |= training.callbacks.end_epoch(epoch, values)
    values["epoch/callbacks_s"] = max(0.0, time.perf_counter() - trained_at - validated.time_s)
    if not isnan(training.checkpoints.took_s):  # No checkpoint is complete yet.
        values["epoch/checkpoint_s"] = training.checkpoints.took_s
    loop.monitor.epoch(epoch=epoch, step=loop.step, values=values)
    _log.info("%s: %s", title, format_values(values))

    # The model before the checkpoint: an attempt that goes on from the checkpoint does not save the model again.
    training.enter(Stage.SAVING)
    with loop.standing_still():
        keeper.save_if_best(epoch, values)
    keeper.save(epoch)
    training.enter(Stage.WORKING)


def values_of(trained: Sums, validated: Sums, metric: str = "accuracy") -> dict[str, float]:
    """Return losses, metrics, times in seconds and examples per second, by their names in the record.

    The metric is that of the task: the accuracy (0 to 1), or for a regression the mean absolute error. If it is empty,
    the steps computed nothing, so there is no loss either.
    """
    learned = {
        "loss": trained.mean_loss,
        metric: trained.mean_metric,
        "val_loss": validated.mean_loss,
        f"val_{metric}": validated.mean_metric,
    }
    return {
        **(learned if metric else {}),
        "epoch/time_s": trained.time_s,
        "epoch/validation_s": validated.time_s,
        "input/wait_fraction": trained.wait_fraction,
        "input/examples_per_s": trained.examples / trained.time_s,
    }


def format_values(values: Mapping[str, float]) -> str:
    """Return the values of an epoch in one line."""
    learned = _format_learned(values) if "loss" in values else "simulated steps"
    return (
        f"{learned}; {values['epoch/time_s']:.1f} s, {values['input/wait_fraction']:.1%} of it waiting for data, "
        "the first batch included"
    )


def _format_learned(values: Mapping[str, float]) -> str:
    metric = epoch_metric(values)
    trained, validated = (f"{metric.title} {metric.text(values[key])}" for key in (metric.key, metric.validation_key))
    return f"loss {values['loss']:.4f}, {trained}; validation loss {values['val_loss']:.4f}, {validated}"
