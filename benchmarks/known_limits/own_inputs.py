"""A training on a user's own input, for `benchmarks.verdicts`: inputs that Tenfold's own settings cannot make.

    python -m benchmarks.known_limits.own_inputs INPUT FOLDER STEPS STEP_MS PREFETCHED

Takes STEPS simulated steps of STEP_MS milliseconds, with at most PREFETCHED batches ready. Writes the record into
FOLDER, and prints one line of JSON, as `python -m pipeline train --json` does.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline.input.batch_counter import BatchCounter
from pipeline.monitor import open_monitor
from pipeline.monitor.verdict import diagnose_run
from pipeline.training.step.loop import EpochLoop
from pipeline.training.step.simulated import SimulatedSteps

BATCH_SIZE = 8
SIZE = 64
COMPUTE_S = 0.005
"""Processor time for an image that Python computes. A batch of 8 takes 40 ms, a step 20 ms."""
LARGE = (3000, 2000)
MAPPED = "mapped.bin"
MAPPED_MB = 800
"""Size of the file that the input `mapped` reads at random places."""


def main() -> None:
    """Train, and print what limited the training."""
    options = parse()
    folder, prefetched = options.folder, options.prefetched
    images = INPUTS[options.input](folder)
    simulated = SimulatedSteps(tf.distribute.get_strategy(), options.step_ms / 1000)
    counter = BatchCounter(prefetched)
    numbered = images.map(_as_numbered).apply(counter.counted)
    batches = iter(numbered.prefetch(prefetched).with_options(_options()))
    with open_monitor(folder) as monitor:
        loop = EpochLoop(simulated, monitor, should_stop=lambda: False, is_simulated=True, ready_pct=counter.ready_pct)
        loop.train(1, batches, options.steps, lambda *_: None)
    verdict = diagnose_run(folder)
    print(
        json.dumps(
            {
                "limits": [limit.value for limit in verdict.limits],
                "verdict": verdict.sentence,
                "run": str(folder),
            }
        )
    )


def parse() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.known_limits.own_inputs")
    parser.add_argument("input", choices=INPUTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("step_ms", type=float)
    parser.add_argument("prefetched", type=int)
    return parser.parse_args()


def _as_numbered(images: tf.Tensor) -> tuple[tf.Tensor, ...]:
    ones = tf.ones(BATCH_SIZE)
    return images, tf.zeros(BATCH_SIZE, tf.int32), ones, tf.zeros(BATCH_SIZE, bool), tf.zeros(BATCH_SIZE, tf.int64)


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.autotune.enabled = False  # It would run a serial map in parallel. Some inputs must stay serial.
    return options


def _compute_in_python() -> None:
    """Take COMPUTE_S of a core, whatever the speed of the core is: a batch then takes longer than a step anywhere."""
    end = time.thread_time() + COMPUTE_S
    while time.thread_time() < end:
        sum(each * each for each in range(1000))


def _searching(folder: Path) -> tf.data.Dataset:
    """Return a `py_function` that computes in Python, and holds the interpreter's lock."""

    def search(number: tf.Tensor) -> tf.Tensor:
        _compute_in_python()
        return tf.zeros((SIZE, SIZE, 3), tf.uint8)

    def image(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(search, [number], tf.uint8), (SIZE, SIZE, 3))

    return tf.data.Dataset.range(10**9).map(image, num_parallel_calls=4).batch(BATCH_SIZE)


def _generated(folder: Path) -> tf.data.Dataset:
    """Return the images of a Python generator that computes."""

    def images() -> Iterator[np.ndarray]:
        while True:
            _compute_in_python()
            yield np.zeros((SIZE, SIZE, 3), np.uint8)

    spec = tf.TensorSpec((SIZE, SIZE, 3), tf.uint8)
    return tf.data.Dataset.from_generator(images, output_signature=spec).batch(BATCH_SIZE)


def _serial(folder: Path) -> tf.data.Dataset:
    """Large JPEGs that are decoded one after another."""
    noise = np.random.default_rng(0).normal(128, 40, (*LARGE, 3))
    encoded = tf.io.encode_jpeg(tf.constant(noise.clip(0, 255).astype(np.uint8)))

    def image(number: tf.Tensor) -> tf.Tensor:
        return tf.image.decode_jpeg(encoded, channels=3)[:SIZE, :SIZE]

    return tf.data.Dataset.range(10**9).map(image).batch(BATCH_SIZE)


def _asking(folder: Path) -> tf.data.Dataset:
    """Return a slow server: the input waits for each batch and computes nothing."""
    return _waiting(lambda number: 0.08)


def _pausing(folder: Path) -> tf.data.Dataset:
    """Return a fast server that pauses for 0.4 s after every 20 batches. A larger buffer would bridge the pauses."""
    return _waiting(lambda number: 0.4 if number % 20 == 19 else 0.0)


def _stuttering(folder: Path) -> tf.data.Dataset:
    """Return a server that pauses for 2 s after every 20 batches: too slow on average for any buffer."""
    return _waiting(lambda number: 2.0 if number % 20 == 19 else 0.0)


def _waiting(seconds_of: Callable[[int], float]) -> tf.data.Dataset:
    def wait(number: np.int64) -> np.ndarray:
        time.sleep(seconds_of(int(number)))
        return np.zeros((BATCH_SIZE, SIZE, SIZE, 3), np.uint8)

    def images(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(wait, [number], tf.uint8), (BATCH_SIZE, SIZE, SIZE, 3))

    return tf.data.Dataset.range(10**9).map(images)


def _mapped(folder: Path) -> tf.data.Dataset:
    """Return a mapped file (`numpy.memmap`) that is read at random places, from the disk if memory is short."""
    pages = np.memmap(folder.parent / MAPPED, np.uint8, "r").reshape(-1, 4096)
    rng = np.random.default_rng(0)

    def look(number: np.int64) -> np.ndarray:
        seen = pages[rng.integers(0, len(pages), 100), 0].max()
        return np.full((BATCH_SIZE, SIZE, SIZE, 3), seen, np.uint8)

    def images(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(look, [number], tf.uint8), (BATCH_SIZE, SIZE, SIZE, 3))

    return tf.data.Dataset.range(10**9).map(images)


INPUTS: dict[str, Callable[[Path], tf.data.Dataset]] = {
    "searching": _searching,
    "generated": _generated,
    "serial": _serial,
    "asking": _asking,
    "pausing": _pausing,
    "stuttering": _stuttering,
    "mapped": _mapped,
}

if __name__ == "__main__":
    main()
