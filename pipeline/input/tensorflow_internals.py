"""What this project uses of TensorFlow beside its documented interface. Seen in TensorFlow 2.21.0.

After an upgrade, run `tests/input/test_tensorflow_internals.py`: it fails if something of this has changed. Messages of
errors are read in `pipeline/input/exhaustion.py` and `pipeline/input/damage.py`.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

_PYTHON_OPERATIONS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""`tf.py_function` and `tf.numpy_function` become these operations in a graph."""
_POSITION_WIDTH = 7
"""Characters of a position in the files of `Dataset.cache`, which hold at most ten million elements."""


# --- graphs -----------------------------------------------------------------------------------------------------------


def seed_graph(seed: int) -> None:
    """Seed the random operations of the function that TensorFlow traces now.

    A function of `flat_map` has a graph of its own. The seed of `shuffle` there follows from that of the graph, and by
    default from the seed of the whole process, which belongs to the model.
    """
    tf.compat.v1.set_random_seed(seed)


def traced_graph() -> tf.Graph:
    """Return the graph of the function that TensorFlow traces now."""
    return tf.compat.v1.get_default_graph()


def python_calls(graph: tf.Graph) -> int:
    """Return how many operations of a graph, and of the functions that it calls, call Python code.

    Python code runs on one core, and the accelerator waits for it.
    """
    definition = graph.as_graph_def()
    functions = (function.node_def for function in definition.library.function)
    return sum(node.op in _PYTHON_OPERATIONS for nodes in (definition.node, *functions) for node in nodes)


# --- the files of Dataset.cache ---------------------------------------------------------------------------------------


def is_cached(prefix: str) -> bool:
    """Return whether the files of `Dataset.cache(prefix)` are complete: the index is written last."""
    return Path(f"{prefix}.index").exists()


def read_cache(prefix: str) -> None:
    """Read all files of `Dataset.cache(prefix)`, which have the format of a checkpoint with a checksum for each tensor.

    Raises:
        OpError: If a file is damaged or cannot be read.
        ValueError, IndexError, RuntimeError: If the index is damaged.
    """
    reader = tf.train.load_checkpoint(prefix)
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)


def read_cached(prefix: str, positions: tf.Tensor, spec: Sequence[tf.TensorSpec]) -> tuple[tuple[tf.Tensor, ...], ...]:
    """Return the elements at these positions of the complete files of `Dataset.cache(prefix)`, without the others.

    Args:
        prefix: The argument of `Dataset.cache`.
        positions: Positions from 0, int64 of a static shape (n,).
        spec: The `element_spec` of the dataset, whose elements are tuples of tensors.

    Raises:
        OpError: If a file is damaged or cannot be read.
    """
    elements = positions.shape[0]
    # The first tensor of the eighth element has the name "      7_0".
    numbers = tf.strings.as_string(positions, width=_POSITION_WIDTH)
    names = tf.stack([tf.strings.join([numbers, f"_{place}"]) for place in range(len(spec))], axis=1)
    tensors = iter(
        tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=tf.reshape(names, [-1]),
            shape_and_slices=tf.fill([elements * len(spec)], ""),
            dtypes=[tensor.dtype for tensor in spec] * elements,
        )
    )
    return tuple(tuple(tf.ensure_shape(next(tensors), each.shape) for each in spec) for _ in range(elements))


def remove_cache(prefix: str) -> None:
    """Remove the files of `Dataset.cache(prefix)`, the half-written ones too: TensorFlow does not write over them."""
    folder, name = Path(prefix).parent, Path(prefix).name
    for path in folder.glob(f"{name}*"):
        path.unlink(missing_ok=True)


# --- training servers -------------------------------------------------------------------------------------------------


def take_batches_of_equal_number(strategy: tf.distribute.Strategy) -> None:
    """Skip the collective check before each batch that all other servers have one, too.

    Only for servers whose shares have the same number of batches. Otherwise, the others would hang at the last step.
    """
    strategy.extended.experimental_enable_get_next_as_optional = False


@contextmanager
def sigterm_handler_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM within the block.

    The servers of MultiWorkerMirroredStrategy take the signal for themselves, to tell each other of it, and the handler
    of this process would not be called.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
