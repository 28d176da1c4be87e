"""Whether a step calls Python code: it runs on one core, and the accelerator waits for it."""

import tensorflow as tf

_TYPES = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""What `tf.py_function` and `tf.numpy_function` become in a graph."""


def python_calls(graph: tf.Graph) -> int:
    """Return how many operations of a graph, and of the functions that it calls, call Python code."""
    definition = graph.as_graph_def()
    functions = (function.node_def for function in definition.library.function)
    return sum(node.op in _TYPES for nodes in (definition.node, *functions) for node in nodes)
