"""Python code in the graph of a step is found wherever it is called."""

import tensorflow as tf

from pipeline.training.python_calls import python_calls


def _doubled(x):
    return tf.py_function(lambda value: 2 * value, [x], tf.float32)


def test_a_graph_of_tensorflow_operations_calls_no_python():
    step = tf.function(lambda x: tf.sqrt(x) + 1)
    assert python_calls(step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph) == 0


def test_python_code_is_found_in_the_graph_and_in_functions_that_it_calls():
    inner = tf.function(_doubled)

    @tf.function
    def step(x):
        held = tf.numpy_function(lambda value: value, [x], tf.float32)
        return inner(x) + held

    assert python_calls(step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph) == 2


def test_python_code_in_a_branch_is_found():
    step = tf.function(lambda x: tf.cond(x > 0, lambda: _doubled(x), lambda: x))
    assert python_calls(step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph) == 1
