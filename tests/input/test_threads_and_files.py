"""The threads and open files of the input pipeline."""

import os
from pathlib import Path
from threading import get_native_id

import pytest
import tensorflow as tf

from pipeline.input import BatchOptions, training_batches
from pipeline.input.order import tf_options
from pipeline.input.shard_pieces import MAX_OPEN_FILES
from tests.conftest import MakeImages
from tests.published import publish
from tests.waiting import until


def test_the_input_has_as_many_threads_as_usable_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    numbers = tf.data.Dataset.range(500).map(
        lambda number: tf.numpy_function(lambda _: get_native_id(), [number], tf.int64), num_parallel_calls=8
    )
    assert len({int(thread) for thread in numbers.with_options(tf_options())}) == 1


@pytest.mark.long
def test_so_many_shards_are_open_at_once(make_images: MakeImages, tmp_path: Path):
    shards = MAX_OPEN_FILES + 6
    source = make_images({"cats": shards * 8, "dogs": shards * 8})
    folder = publish(source, tmp_path / "workspace", num_shards=shards)
    options = BatchOptions(image_size=16, batch_size=1, shuffle_bytes=1, prefetch_batches=1)

    def open_files() -> int:
        return sum(path.resolve().is_relative_to(str(folder)) for path in Path("/proc/self/fd").iterdir())

    batches = iter(training_batches(folder, options))
    next(batches)
    until(lambda: open_files() == MAX_OPEN_FILES)
    assert all(open_files() <= MAX_OPEN_FILES for _ in batches)
