"""What a training runs on: one device, all GPUs of a machine, or those of several machines."""

import logging
from collections.abc import Iterable, Sequence

import tensorflow as tf

from pipeline.errors import BadInput
from pipeline.rendezvous import Gang
from pipeline.servers import Server
from pipeline.training.quiet import stderr_held_back

_log = logging.getLogger(__name__)


def open_strategy(gang: Gang | None) -> tf.distribute.Strategy:
    """The strategy for the devices of all servers. Must come before anything else that TensorFlow does.

    Raises BadInput where the servers of one machine are more than its GPUs.
    """
    gpus = _own_gpus(gang)
    if gang:
        return _of_servers(gang)
    # Several CPUs only where someone has split this one, as tests do.
    devices = [device.name for device in tf.config.list_logical_devices("GPU" if gpus else "CPU")]
    return tf.distribute.MirroredStrategy(devices) if len(devices) > 1 else tf.distribute.OneDeviceStrategy(devices[0])


def per_replica(batches: tf.data.Dataset, batch_size: int, strategy: tf.distribute.Strategy) -> tf.data.Dataset:
    """The batches of a server, of `batch_size`, cut into those of its devices.

    Raises BadInput where that leaves a remainder.
    """
    replicas = len(strategy.extended.worker_devices)
    if batch_size % replicas:
        raise BadInput(
            f"batch_size must be a multiple of {strategy.num_replicas_in_sync}, the GPUs of all training servers: "
            f"it leaves {batch_size} examples for {replicas} GPUs"
        )
    return batches.rebatch(batch_size // replicas) if replicas > 1 else batches


def on_devices(batches: tf.data.Dataset, strategy: tf.distribute.Strategy) -> Iterable[tuple[tf.Tensor, ...]]:
    """The batches of the devices of this server, sent there ahead of the step that needs them."""
    distributed: Iterable[tuple[tf.Tensor, ...]] = strategy.distribute_datasets_from_function(lambda _: batches)
    return distributed


def spread(values: Sequence[tf.Variable], server: Server, strategy: tf.distribute.Strategy) -> None:
    """Have all servers take the values that server 0 has."""

    def told(value: tf.Tensor) -> tf.Tensor:
        first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        return tf.where(first, value, tf.zeros_like(value))

    @tf.function
    def summed() -> list[tf.Tensor]:
        return [strategy.reduce("SUM", strategy.run(told, args=(_wide(value),)), axis=None) for value in values]

    if server.count > 1:
        for variable, value in zip(values, summed(), strict=True):
            variable.assign(tf.cast(value, variable.dtype))


def agreed(wish: bool, strategy: tf.distribute.Strategy) -> bool:
    """Whether all servers wish it."""
    refused = strategy.run(lambda: tf.constant(float(not wish)))
    return float(strategy.reduce("SUM", refused, axis=None)) == 0


def _own_gpus(gang: Gang | None) -> list[tf.config.PhysicalDevice]:
    """Those of this process, said in one line."""
    with stderr_held_back():
        found = tf.config.list_physical_devices("GPU")
    gpus = gang.own_part(found) if gang else found
    if found and not gpus:
        raise BadInput(f"num_training_servers: this machine has {len(found)} GPUs, and more training servers")
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:  # else TensorFlow takes all memory of every GPU it sees
        tf.config.experimental.set_memory_growth(gpu, True)
    _log.info("training on %s", ", ".join(gpu.name for gpu in gpus) or "the CPU: no GPU was found")
    return gpus


def _of_servers(gang: Gang) -> tf.distribute.Strategy:
    cluster = tf.train.ClusterSpec({"worker": gang.addresses})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=gang.server.index, rpc_layer="grpc"
    )
    with stderr_held_back():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    # Else the servers ask each other before each batch whether all have one. Their shares are of equal length.
    strategy.extended.experimental_enable_get_next_as_optional = False
    return strategy


def _wide(value: tf.Variable) -> tf.Tensor:
    """Of a type that every collective takes."""
    return tf.cast(value, tf.int64) if value.dtype.is_integer else tf.convert_to_tensor(value)
