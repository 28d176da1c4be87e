"""The private parts of TensorFlow that the project uses: these tests fail if an upgrade changes them."""

import signal
from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.input.tensorflow_internals import (
    is_cached,
    python_calls,
    read_cache,
    read_cached,
    remove_cache,
    seed_graph,
    sigterm_handler_kept,
    take_batches_of_equal_number,
    traced_graph,
)


def _doubled(x):
    return tf.py_function(lambda value: 2 * value, [x], tf.float32)


def test_a_graph_of_tensorflow_operations_calls_no_python():
    step = tf.function(lambda x: tf.sqrt(x) + 1)
    assert python_calls(step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph) == 0


def test_python_code_is_counted_in_the_graph_and_in_functions_that_it_calls():
    inner = tf.function(_doubled)

    @tf.function
    def step(x):
        held = tf.numpy_function(lambda value: value, [x], tf.float32)
        return inner(x) + held

    assert python_calls(step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph) == 2


def test_python_code_in_a_branch_is_counted():
    step = tf.function(lambda x: tf.cond(x > 0, lambda: _doubled(x), lambda: x))
    assert python_calls(step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph) == 1


def test_the_traced_graph_is_that_of_the_function():
    graphs: list[tf.Graph] = []

    @tf.function(autograph=False)
    def step(x):
        graphs.append(traced_graph())
        return x + 1

    graph = step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph
    assert graphs[0] is graph


def shuffled(seed: int, seed_of_process: int) -> list[int]:
    """Twenty numbers, shuffled in the function of a `flat_map`."""
    tf.random.set_seed(seed_of_process)

    def numbers(epoch: tf.Tensor) -> tf.data.Dataset:
        seed_graph(seed)
        return tf.data.Dataset.range(20).shuffle(20, epoch, reshuffle_each_iteration=False)

    return [int(number) for number in tf.data.Dataset.range(1, 2).flat_map(numbers).as_numpy_iterator()]


def test_the_seed_of_a_graph_decides_the_order_and_that_of_the_process_does_not():
    assert shuffled(3, seed_of_process=1) == shuffled(3, seed_of_process=2)
    assert shuffled(3, seed_of_process=1) != shuffled(4, seed_of_process=1)


def cached(folder: Path) -> tuple[str, tf.data.Dataset]:
    prefix = str(folder / "images-train")
    return prefix, tf.data.Dataset.range(3).map(lambda number: tf.fill([1000], number)).cache(prefix)


def test_a_cache_is_complete_with_its_index_and_read_as_a_checkpoint(tmp_path: Path):
    prefix, dataset = cached(tmp_path)
    batches = iter(dataset)
    next(batches)
    assert not is_cached(prefix)
    for _ in batches:
        pass
    assert is_cached(prefix)
    read_cache(prefix)
    [data] = tmp_path.glob("images-train.data*")
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(tf.errors.OpError):
        read_cache(prefix)


def test_elements_of_a_cache_are_read_by_position(tmp_path: Path):
    prefix = str(tmp_path / "images-train")
    dataset = tf.data.Dataset.range(12).map(lambda number: (tf.fill([number], number), number)).cache(prefix)
    assert len(list(dataset)) == 12
    found = read_cached(prefix, tf.constant([11, 0, 7], tf.int64), dataset.element_spec)
    assert [(values.numpy().tolist(), int(number)) for values, number in found] == [
        ([11] * 11, 11),
        ([], 0),
        ([7] * 7, 7),
    ]


def test_a_removed_cache_leaves_nothing_and_can_be_written_again(tmp_path: Path):
    prefix, dataset = cached(tmp_path)
    next(iter(dataset))  # Left half written.
    (tmp_path / "images-validation.index").touch()
    remove_cache(prefix)
    assert [path.name for path in tmp_path.iterdir()] == ["images-validation.index"]
    assert len(list(dataset)) == 3


def test_the_switch_for_batches_of_equal_number_exists():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    assert strategy.extended.experimental_enable_get_next_as_optional is True
    take_batches_of_equal_number(strategy)
    assert strategy.extended.experimental_enable_get_next_as_optional is False


def test_the_handler_of_sigterm_is_restored():
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_handler_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
