"""Which operations of a graph do not run on a GPU. TensorFlow's registry of kernels knows, without a GPU.

Seen in TensorFlow 2.21.0: the wheel `tensorflow` for Linux holds the kernels for CUDA, also on a machine without a GPU.
The wheel `tensorflow-cpu` holds none. TensorFlow silently moves an operation without such a kernel to the host, with
its inputs and outputs.
"""

from collections.abc import Iterator
from functools import cache

import tensorflow as tf
from google.protobuf.message import Message
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

_ON_GPU = ("GPU", "DEFAULT")
"""Kernels of the device DEFAULT serve each device that has no kernel of its own."""


def without_gpu_kernel(function: tf.types.experimental.ConcreteFunction) -> set[str]:
    """Return the operations of a traced function, and of all that it calls, that have no kernel for a GPU.

    Each is its name, and the types of its tensors, such as `GatherV2(Tindices=int32, Tparams=uint8)`.
    """
    return {_described(node) for node in _nodes(function) if not _fitting(node)}


def on_host(function: tf.types.experimental.ConcreteFunction, rows: int) -> set[str]:
    """Return the operations of a traced function whose kernel for a GPU takes a tensor of `rows` rows from the host.

    Kernels of int32 do so, because int32 is mostly a shape: the host waits for the GPU, and copies the tensor. The
    arguments of a function do not count, because those of int32 are on the host already.
    """
    return {
        _described(operation.node_def)
        for operation in function.graph.get_operations()
        for name, tensor in zip(_argument_names(operation), operation.inputs, strict=False)
        if tensor.op.type != "Placeholder" and tensor.shape.rank and tensor.shape[0] == rows
        if any(name in kernel.host_memory_arg for kernel in _fitting(operation.node_def))
    }


def _argument_names(operation: tf.Operation) -> Iterator[str]:
    """Yield the name of the argument of each input. An argument may be a list of tensors."""
    for argument in operation.op_def.input_arg:
        count = operation.get_attr(argument.number_attr) if argument.number_attr else 1
        yield from [argument.name] * count


def _nodes(function: tf.types.experimental.ConcreteFunction) -> Iterator[Message]:
    graph = function.graph.as_graph_def()
    yield from graph.node
    for nested in graph.library.function:
        yield from nested.node_def


def _fitting(node: Message) -> list[Message]:
    """Return the kernels for a GPU that take the types of an operation."""
    fitting = [
        kernel
        for kernel in _kernels(node.op)
        if kernel.device_type in _ON_GPU
        and all(
            _types(node.attr[constraint.name]) <= set(constraint.allowed_values.list.type)
            for constraint in kernel.constraint
        )
    ]
    return [kernel for kernel in fitting if kernel.device_type == "GPU"] or fitting


@cache
def _kernels(operation: str) -> list[Message]:
    return [*get_registered_kernels_for_op(operation).kernel]


def _types(attribute: Message) -> set[int]:
    return {attribute.type} if attribute.type else set(attribute.list.type)


def _described(node: Message) -> str:
    types = (
        f"{name}={','.join(sorted(tf.as_dtype(each).name for each in found))}"
        for name, attribute in sorted(node.attr.items())
        if (found := _types(attribute))
    )
    return f"{node.op}({', '.join(types)})"
