"""Steps of a model: alone, in the loop of a training, and fed from the datasets."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import keras
import tensorflow as tf

from benchmarks.harness.rounds import turned
from benchmarks.on_gpu import Report, Row
from benchmarks.on_gpu.section import in_words
from pipeline.config.automatic import TrainingSettings, training_settings
from pipeline.dataset.manifest import load
from pipeline.input import training_batches
from pipeline.input.options import batch_options
from pipeline.monitor import open_monitor
from pipeline.training.model.tensor_kind import build_model_of
from pipeline.training.step.loop import EpochLoop, TakesSteps
from pipeline.training.step.optimizer import build_optimizer, optimizer_options
from pipeline.training.step.phases import build_steps, step_options
from pipeline.training.step.strategy import open_strategy, taken_ahead

ALONE, LOOP = "alone", "in the loop"
VARIANTS = (
    ("float32", {"precision": "float32"}),
    ("bfloat16", {"precision": "mixed_bfloat16"}),
    ("bfloat16 with XLA", {"precision": "mixed_bfloat16", "xla": True}),
)
ROUNDS = 3
MIN_STEPS, WARM_STEPS = 5, 10
EPOCHS = 1_000_000
"""More than any measurement takes."""


def steps(job: dict[str, Any], report: Report) -> None:
    """Measure the steps of a model in each precision, with XLA and without.

    The job has `settings`, `datasets` by name, and the `seconds` of a measurement. A variant that fails, for example
    because the memory is too small, does not end the others.
    """
    strategy = open_strategy(None)
    for name, changed in VARIANTS:
        try:
            row = _variant(name, training_settings({**job["settings"], **changed}), strategy, job)
        except Exception as error:  # noqa: BLE001 - reported, as said above
            row = Row(name, in_words(error), {"error": in_words(error)})
        report(row)
        gc.collect()


def _variant(name: str, settings: TrainingSettings, strategy: tf.distribute.Strategy, job: dict[str, Any]) -> Row:
    built = _built(settings, strategy, Path(next(iter(job["datasets"].values()))))
    numbers: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=job["folder"])))
        monitor = stack.enter_context(open_monitor(folder))
        loop = EpochLoop(built, monitor, should_stop=lambda: False)

        def opened(dataset: str, is_kept: bool = False) -> Iterator[Any]:
            batches = training_batches(dataset, batch_options(settings), epochs=EPOCHS, numbered=True)
            kept = batches.take(1).cache().repeat() if is_kept else batches
            return stack.enter_context(closing(taken_ahead(kept, settings.batch_size, strategy)))

        def in_loop(batches: Iterator[Any], count: int) -> float:
            begin = time.perf_counter()
            loop.train(1, batches, loop.step + count, lambda *_: None)
            return (time.perf_counter() - begin) / count

        one = opened(next(iter(job["datasets"].values())), is_kept=True)
        numbers["first_step_s"] = in_loop(one, 1)
        numbers |= _without_input(built, one, in_loop, job["seconds"])
        for kind, dataset in job["datasets"].items():
            batches = opened(dataset)
            in_loop(batches, WARM_STEPS)  # They also empty the buffers of the input.
            numbers[f"{kind}_ms"] = 1000 * in_loop(batches, _count(2 * job["seconds"], numbers["step_ms"]))
    return Row(name, _in_words(numbers, settings.batch_size, [*job["datasets"]]), numbers)


def _built(settings: TrainingSettings, strategy: tf.distribute.Strategy, dataset: Path) -> TakesSteps:
    """Return the steps of a new model, as a training makes them."""
    content = load(dataset)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build_model_of(settings, content)
        optimizer = build_optimizer(optimizer_options(settings, steps_per_epoch=100), model)
        optimizer.build(model.trainable_variables)
    return build_steps(strategy, model, optimizer, step_options(settings, content, 100, 1))


def _without_input(
    built: TakesSteps, batches: Iterator[Any], in_loop: Callable[[Iterator[Any], int], float], seconds: float
) -> dict[str, float]:
    """Return the times of a step on a batch that is in memory, in alternating rounds.

    Alone, the steps are sent one after another, and only the result of the last one is read. What a step takes longer
    in the loop is the gap between two steps, in which the accelerator has nothing to do.
    """
    features, labels, weights, mirrored, _ = next(batches)
    goes_on = tf.constant(0.0)

    def alone(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            result = built.train(features, labels, weights, mirrored, goes_on)
        result.numpy()
        return (time.perf_counter() - begin) / count

    alone(MIN_STEPS)
    count = _count(seconds, 1000 * alone(MIN_STEPS))
    runs = {ALONE: lambda: alone(count), LOOP: lambda: in_loop(batches, count)}
    rounds = [{name: 1000 * runs[name]() for name in turned([ALONE, LOOP], number)} for number in range(ROUNDS)]
    return {
        "step_ms": median(each[ALONE] for each in rounds),
        "loop_ms": median(each[LOOP] for each in rounds),
        "gap_ms": median(each[LOOP] - each[ALONE] for each in rounds),
    }


def _count(seconds: float, step_ms: float) -> int:
    return max(MIN_STEPS, int(1000 * seconds / step_ms))


def _in_words(numbers: dict[str, Any], batch_size: int, kinds: list[str]) -> str:
    def rate(step_ms: float) -> str:
        return f"{1000 * batch_size / step_ms:,.0f} images/s"

    fed = (
        f"from {kind} {rate(numbers[f'{kind}_ms'])} ({numbers['step_ms'] / numbers[f'{kind}_ms']:.0%})"
        for kind in kinds
    )
    return (
        f"{numbers['step_ms']:.2f} ms a step of {batch_size}, {rate(numbers['step_ms'])}; gap between steps "
        f"{numbers['gap_ms']:.2f} ms; {', '.join(fed)}; first step {numbers['first_step_s']:.1f} s"
    )
