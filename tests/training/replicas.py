"""Two training steps on one fixed batch: `replicas.py RESULT OPTIONS [INDEX ADDRESS...]`.

Without addresses, the batch is split over two devices of this process. With addresses, this process is one of the
servers and takes its share of the batch. OPTIONS are JSON, for `StepOptions`. The result of `two_steps` is written to
RESULT, an .npz file.
"""

import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.automatic import training_settings
from pipeline.rendezvous.servers import Server
from pipeline.training.model.losses import cross_entropy
from pipeline.training.step.optimizer import build_optimizer, optimizer_options
from pipeline.training.step.steps import StepOptions, Steps
from pipeline.training.step.strategy import on_devices, open_strategy

EXAMPLES = 12
SETTINGS = training_settings({"clip_norm": 0.05, "weight_decay": 0.01})
"""The norm of the gradients is far above `clip_norm`. Clipping each share separately would give other gradients."""


class Pinned:
    """A cluster with known addresses."""

    def __init__(self, index: int, addresses: list[str]) -> None:
        self.server, self.addresses = Server(index, len(addresses)), addresses


def batch(server: Server) -> tuple[tf.Tensor, ...]:
    """Return the share of a server. The last examples are padding, so the shares have unequal numbers of examples."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (EXAMPLES, 5, 5, 3), np.uint8)
    labels = random.integers(0, 3, EXAMPLES).astype(np.int32)
    weights = np.array([1.0] * (EXAMPLES - 4) + [0.0] * 4, np.float32)
    mirrored = random.random(EXAMPLES) < 0.5
    part = slice(server.index * EXAMPLES // server.count, (server.index + 1) * EXAMPLES // server.count)
    return tuple(tf.constant(values[part]) for values in (images, labels, weights, mirrored))


def model() -> keras.Model:
    inputs = keras.Input((5, 5, 3))
    hidden = keras.layers.Flatten()(keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs))
    hidden = keras.layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01))(hidden)
    return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def two_steps(cluster: Pinned | None = None, **options: Any) -> list[np.ndarray]:
    """Return the results of two steps, the weights and the optimizer variables, from all devices of this process."""
    strategy = open_strategy(cluster)
    server = cluster.server if cluster else Server()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        trained = model()
        optimizer = build_optimizer(optimizer_options(SETTINGS, 1), trained)
        optimizer.build(trained.trainable_variables)
    steps = Steps(strategy, trained, optimizer, StepOptions(loss=cross_entropy, flip=True, **options))
    [part] = on_devices(tf.data.Dataset.from_tensors(batch(server)), EXAMPLES // server.count, strategy)
    # In the second step, the last server requests a stop.
    flags = [tf.constant(0.0), tf.constant(float(server.index == server.count - 1))]
    results = [steps.train(*part, should_stop).numpy() for should_stop in flags]
    # The moments of Adam are included, because its first updates depend on little more than the sign of the gradients.
    return [np.array(results), *(variable.numpy() for variable in (*trained.weights, *optimizer.variables))]


def split_processor() -> None:
    """Split the processor into two devices. TensorFlow can do this only before it uses the processor."""
    [processor] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)


def main(result: str, options: str, index: str = "", *addresses: str) -> None:
    if not addresses:
        split_processor()
    cluster = Pinned(int(index), list(addresses)) if addresses else None
    np.savez(result, *two_steps(cluster, **json.loads(options)))


if __name__ == "__main__":
    main(*sys.argv[1:])
