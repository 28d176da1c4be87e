"""The training loops that are measured, each as a user would write it, and what a checkpoint takes of ours.

A loop takes a job and returns a function that does so many steps and gives the seconds that they took. A job says:
`model`, `image_size` and `batch_size`, and for some more. All of them train the same model with the same optimizer on
the same batch, which is in memory. Imports are inside, so that no other worker pays for them.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from benchmarks.contenders import Job
from benchmarks.harness.rounds import turned

Loop = Callable[[int], float]
"""From a number of steps to the seconds that they took."""
Rounds = list[dict[str, float]]
"""Seconds by name, of each round."""
CLASSES = 10
WARM_STEPS = 5
BARE, BARE_SYNCED = "bare `tf.function` step, one sync at the end", "bare `tf.function` step, a sync a step"
OURS, OURS_UNSEEN = "**Tenfold**", "**Tenfold**, nothing monitored"
FIT, FIT_XLA = "`Model.fit`", "`Model.fit` as it comes, with XLA"
ONE, TWO = "one device", "two devices"


# --- the loops --------------------------------------------------------------------------------------------------------


def bare(job: Job, synced: bool) -> Loop:
    """Return what a tutorial writes: it gives the mean loss, and counts nothing."""
    import tensorflow as tf

    model, optimizer = _built(job)
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step(images: Any, labels: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    batches = iter(_batches(job))

    def run(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            loss = step(*next(batches))
            if synced:
                float(loss)
        float(loss)
        return time.perf_counter() - begin

    return run


def ours(job: Job, monitored: bool, strategy: Any = None) -> Loop:
    """This project's loop as a training has it: batches fetched ahead, each step recorded, short ones sent together."""
    import tensorflow as tf

    from pipeline.input import one_ahead
    from pipeline.system.progress import progress
    from pipeline.training.inputs import stacked
    from pipeline.training.step.loop import EpochLoop
    from pipeline.training.step.steps import Steps
    from pipeline.training.step.strategy import on_devices

    strategy = strategy or tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model, optimizer = _built(job)
        optimizer.build(model.trainable_variables)
    steps = Steps(strategy, model, optimizer)
    stacks, of_stack = stacked(_numbered(job)) if steps.train_several else (_numbered(job), 1)
    batches = one_ahead(on_devices(stacks, job["batch_size"], strategy))

    def run(count: int) -> float:
        with _monitor(Path(job["folder"]), monitored) as monitor:
            loop = EpochLoop(steps, monitor, lambda: False, stacked=of_stack)
            begin = time.perf_counter()
            with progress("steps", count * job["batch_size"], "images") as advance:
                loop.train(1, batches, count, advance)
            return time.perf_counter() - begin

    return run


def fit(job: Job, xla: bool) -> Loop:
    """Keras's own loop. `xla` is what Keras chooses, where the model allows for it."""
    import keras

    model, optimizer = _built(job)
    model.compile(
        optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        jit_compile="auto" if xla else False,
    )
    batches = _batches(job)

    def run(steps: int) -> float:
        ends: list[float] = []
        seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter()))
        # One more, not counted: with its first step it makes the iterator again.
        model.fit(batches, steps_per_epoch=steps + 1, shuffle=False, verbose=0, callbacks=[seen])
        return ends[-1] - ends[0]

    return run


LOOPS: dict[str, Callable[[Job], Loop]] = {
    BARE: lambda job: bare(job, synced=False),
    BARE_SYNCED: lambda job: bare(job, synced=True),
    OURS: lambda job: ours(job, monitored=True),
    OURS_UNSEEN: lambda job: ours(job, monitored=False),
    FIT: lambda job: fit(job, xla=False),
    FIT_XLA: lambda job: fit(job, xla=True),
}


class _NoMonitor:
    """Takes what the loop reports, and keeps nothing."""

    def batch(self, **values: object) -> None:
        pass


@contextmanager
def _monitor(folder: Path, monitored: bool) -> Iterator[Any]:
    """As of a training without Comet; it samples only while its own loop runs."""
    from pipeline.monitor import open_monitor

    if not monitored:
        yield _NoMonitor()
        return
    with open_monitor(folder) as monitor:
        yield monitor
    shutil.rmtree(folder)


def _built(job: Job) -> tuple[Any, Any]:
    """Return the model and its optimizer, the same for all."""
    import keras

    from pipeline.config.automatic import training_settings
    from pipeline.training.model.models import build_model, model_options
    from pipeline.training.step.optimizer import build_optimizer, optimizer_options

    keras.utils.set_random_seed(0)
    chosen = {name: job[name] for name in ("model", "image_size", "batch_size")}
    settings = training_settings(chosen | {"source_uri": job["folder"]})
    model = build_model(model_options(settings), CLASSES)
    return model, build_optimizer(optimizer_options(settings, steps_per_epoch=100), model)


def linear(image_size: int, classes: int) -> Any:
    """Return a model of next to no work: what is left of its step is what a step costs at all."""
    import keras

    pixels = keras.Input((image_size, image_size, 3))
    flat = keras.layers.Flatten()(keras.layers.Rescaling(1 / 127.5, offset=-1)(pixels))
    return keras.Model(pixels, keras.layers.Dense(classes)(flat))


def _batches(job: Job) -> Any:
    """Return one batch of noise, again and again."""
    import numpy as np
    import tensorflow as tf

    random, count, side = np.random.default_rng(0), job["batch_size"], job["image_size"]
    images = random.integers(0, 256, (count, side, side, 3), np.uint8)
    labels = random.integers(0, CLASSES, count).astype(np.int32)
    batch = (images, labels, np.ones(count, np.float32))
    return tf.data.Dataset.from_tensors(batch).repeat().prefetch(tf.data.AUTOTUNE)


def _numbered(job: Job) -> Any:
    """Return the same as a training has them, for a step that mirrors none."""
    import tensorflow as tf

    count = job["batch_size"]
    more = tf.zeros(count, tf.bool), tf.range(count, dtype=tf.int64)
    return _batches(job).map(lambda *batch: (*batch, *more))


# --- what is measured of them -----------------------------------------------------------------------------------------


def overhead(job: Job) -> Rounds:
    """Return seconds of a step of each loop, round by round."""
    return _alternating({name: make(job) for name, make in LOOPS.items()}, job)


def scaling(job: Job) -> Rounds:
    """Return seconds of a step on one and on two devices that share this processor, round by round."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    both, batch = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]), job["batch_size"]
    loops = {}
    for size in (batch, 2 * batch):
        sized = job | {"batch_size": size}
        loops[f"{ONE}, {size}"] = ours(sized, monitored=False)
        loops[f"{TWO}, {size}"] = ours(sized, monitored=False, strategy=both)
    return _alternating(loops, job)


def _alternating(loops: dict[str, Loop], job: Job) -> Rounds:
    for run in loops.values():
        run(WARM_STEPS)
    seen = []
    for number in range(job["rounds"]):
        order = turned(list(loops), number)
        seen.append({name: loops[name](job["steps"]) / job["steps"] for name in order})
    return seen


def checkpoint(job: Job) -> dict[str, Any]:
    """Measure what a checkpoint costs.

    Returns:
        For each round, the seconds of the call, and the seconds that the following steps lose because the checkpoint is
        still being written. Also the bytes of a checkpoint and the number of weights.
    """
    import tensorflow as tf

    from pipeline.training.state.checkpoint import Checkpoints, Position
    from pipeline.training.step.loop import EpochLoop, Sums
    from pipeline.training.step.steps import Steps
    from pipeline.training.step.strategy import on_devices

    folder = Path(job["folder"])
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model, optimizer = _built(job)
        saved = Checkpoints(folder, model, optimizer)
    loop = EpochLoop(Steps(strategy, model, optimizer), cast(Any, _NoMonitor()), lambda: False)
    batches = iter(on_devices(_numbered(job), job["batch_size"], strategy))

    def steps() -> float:
        begin = time.perf_counter()
        loop.train(1, batches, loop.step + job["steps"], lambda *_: None)
        return time.perf_counter() - begin

    def save() -> float:
        begin = time.perf_counter()
        saved.save(Position(0, loop.step, Sums(), False))
        return time.perf_counter() - begin

    seen = []
    for number in range(-1, job["rounds"]):
        alone, call = steps(), save()
        with_steps = call + steps()
        if number >= 0:  # the first save traces, and the first steps compile
            seen.append({"step_s": alone / job["steps"], "call_s": call, "lost_s": with_steps - alone})
    saved.wait()
    size = max(folder.glob("*.npz")).stat().st_size
    return {"rounds": seen, "bytes": size, "weights": model.count_params()}


TRAININGS = {work.__name__: work for work in (overhead, scaling, checkpoint)}
