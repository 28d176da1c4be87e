"""What a training runs on: one device, all GPUs of a machine, or those of several machines."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import BadInput, ServerLost
from pipeline.input.tensorflow_internals import sigterm_handler_kept, take_batches_of_equal_number
from pipeline.rendezvous import Gang
from pipeline.training.tensorflow_start import stderr_held_back

EXPLAINED_S = 15.0
"""How long it may take until the others have heard why a server is gone."""
_UNREACHED = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError)
"""What TensorFlow raises where another server is gone."""
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


def on_devices(batches: tf.data.Dataset, batch_size: int, strategy: tf.distribute.Strategy) -> Iterable[Any]:
    """The batches of this server, of `batch_size`, cut for its devices and sent there ahead of the step.

    Raises BadInput where that leaves a remainder.
    """
    share = share_of_device(batch_size, strategy)
    if strategy.num_replicas_in_sync == 1:
        # Not as the strategy distributes them, which costs 0.2 ms a batch: it has one device.
        return _on_device(batches, strategy.extended.worker_devices[0])
    cut = batches if share == batch_size else batches.rebatch(share, drop_remainder=True)
    distributed: Iterable[Any] = strategy.distribute_datasets_from_function(lambda _: cut)
    return distributed


def _on_device(batches: tf.data.Dataset, device: str) -> Iterable[Any]:
    sent: Iterable[Any] = batches
    if "CPU" not in device.upper():
        sent = batches.apply(tf.data.experimental.prefetch_to_device(device))
    return sent


def share_of_device(batch_size: int, strategy: tf.distribute.Strategy) -> int:
    """How many examples each device takes of a batch of this server. Raises BadInput where that leaves a remainder."""
    devices = len(strategy.extended.worker_devices)
    if batch_size % devices:
        raise BadInput(
            f"batch_size must be a multiple of {strategy.num_replicas_in_sync}, the GPUs of all training servers: it "
            f"leaves {batch_size} examples for {devices} GPUs"
        )
    return batch_size // devices


def take_from_first(variables: Sequence[keras.Variable], strategy: tf.distribute.Strategy) -> None:
    """Have the variables hold what server 0 has in them; all servers have to do it together."""
    values = from_first([_wide(variable.value) for variable in variables], strategy)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.cast(value, variable.dtype))


def from_first(values: list[tf.Tensor], strategy: tf.distribute.Strategy) -> list[tf.Tensor]:
    """What server 0 has in place of these values; all servers have to ask together."""

    def of_replica(given: list[tf.Tensor]) -> list[tf.Tensor]:
        is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
        return [tf.where(is_first, value, tf.zeros_like(value)) for value in given]

    return _summed(values, strategy, of_replica)


def agreed(wish: bool, strategy: tf.distribute.Strategy) -> bool:
    """Whether all servers wish it."""
    return float(_summed([tf.constant(float(not wish))], strategy)[0]) == 0


def _summed(
    values: list[tf.Tensor],
    strategy: tf.distribute.Strategy,
    of_replica: Callable[[list[tf.Tensor]], list[tf.Tensor]] = lambda given: given,
) -> list[tf.Tensor]:
    """The sums over all replicas of what each makes of its server's values."""

    def summed(given: list[tf.Tensor]) -> list[tf.Tensor]:
        told = strategy.run(of_replica, args=(given,))
        return [strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None) for value in told]

    found: list[tf.Tensor] = tf.function(summed)(values)
    return found


@contextmanager
def losses_named(gang: Gang | None) -> Iterator[None]:
    """Around what waits for the other servers: say which one is gone, where TensorFlow only says that one is."""
    try:
        yield
    except _UNREACHED as error:
        if gang is None:
            raise
        raise gang.loss(EXPLAINED_S) or ServerLost(
            "another training server cannot be reached any more: run again, so that all go on together"
        ) from error


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
    with sigterm_handler_kept(), stderr_held_back():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    take_batches_of_equal_number(strategy)
    return strategy


def _wide(value: tf.Tensor) -> tf.Tensor:
    """The same in a type that collectives take."""
    return tf.cast(value, tf.int64) if value.dtype.is_integer else tf.convert_to_tensor(value)
