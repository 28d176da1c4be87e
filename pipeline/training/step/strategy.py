"""The devices of a training: one, all GPUs of a machine, or those of several machines."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import BadInput, ServerLost
from pipeline.input import one_ahead
from pipeline.input.exhaustion import plain_message
from pipeline.input.tensorflow_internals import sigterm_handler_kept, take_batches_of_equal_number
from pipeline.rendezvous import Cluster
from pipeline.system.malloc import keep_large_blocks
from pipeline.training.tensorflow_start import found_gpus, hold_back_stderr

EXPLAINED_S = 15.0
"""Time limit, in seconds, for the reason why a server is gone to reach this one."""
SENT_AHEAD = 2
"""Batches that wait on the devices for the step. With several devices, this is TensorFlow's default: one batch is
there, and one is on its way. With one device, its default doubles the buffer after each pause, up to 256 batches."""
_UNREACHED = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError)
"""Errors that TensorFlow raises if another server is gone."""
_log = logging.getLogger(__name__)


def open_strategy(cluster: Cluster | None) -> tf.distribute.Strategy:
    """Return the strategy for the devices of all servers. Call it before anything else that TensorFlow does."""
    gpus = found_gpus()
    for gpu in gpus:  # By default, TensorFlow takes all memory of every GPU that it sees.
        tf.config.experimental.set_memory_growth(gpu, True)
    _log.info("training on %s", ", ".join(gpu.name for gpu in gpus) or "the CPU: no GPU was found")
    if cluster:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": cluster.addresses}),
            task_type="worker",
            task_id=cluster.server.index,
            rpc_layer="grpc",
        )
        with sigterm_handler_kept(), hold_back_stderr():
            strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        take_batches_of_equal_number(strategy)
        return strategy
    # There are several CPUs only if someone has split this one, as tests do.
    devices = [device.name for device in tf.config.list_logical_devices("GPU" if gpus else "CPU")]
    return tf.distribute.MirroredStrategy(devices) if len(devices) > 1 else tf.distribute.OneDeviceStrategy(devices[0])


def on_devices(batches: tf.data.Dataset, batch_size: int, strategy: tf.distribute.Strategy) -> Iterable[Any]:
    """Divide the batches of this server, of `batch_size`, among its devices, and send them there ahead of the step.

    Raises BadInput as `share_of_device` does.
    """
    share = share_of_device(batch_size, strategy)
    sent: Iterable[Any] = batches
    if strategy.num_replicas_in_sync > 1:  # For one device, the strategy's own way would cost 0.2 ms a batch.
        shares = batches if share == batch_size else batches.rebatch(share, drop_remainder=True)
        sent = strategy.distribute_datasets_from_function(lambda _: shares)
    elif is_on_gpu(strategy):
        [device] = strategy.extended.worker_devices
        sent = batches.apply(tf.data.experimental.prefetch_to_device(device, SENT_AHEAD))
    return sent


def batches_ahead(strategy: tf.distribute.Strategy) -> int:
    """Return how many batches `taken_ahead` holds while the training takes none."""
    is_sent = strategy.num_replicas_in_sync > 1 or is_on_gpu(strategy)
    return 1 + (SENT_AHEAD if is_sent else 0)  # `one_ahead` holds one.


def is_on_gpu(strategy: tf.distribute.Strategy) -> bool:
    """Return whether the steps run on GPUs."""
    return "GPU" in strategy.extended.worker_devices[0].upper()


def taken_ahead(batches: tf.data.Dataset, batch_size: int, strategy: tf.distribute.Strategy) -> Generator[Any]:
    """Return a generator of the batches of `on_devices`, each taken one step ahead. Closing it ends its thread."""
    sent = iter(on_devices(batches, batch_size, strategy))
    # After the strategy has begun to distribute batches: TensorFlow then sets malloc to fetch each image from the
    # system.
    keep_large_blocks()
    return one_ahead(sent)


def share_of_device(batch_size: int, strategy: tf.distribute.Strategy) -> int:
    """Return how many examples each device takes of a batch of this server. Raises BadInput if there is a remainder."""
    devices = len(strategy.extended.worker_devices)
    if batch_size % devices:
        raise BadInput(
            f"batch_size must be a multiple of {strategy.num_replicas_in_sync}, the number of GPUs of all training "
            f"servers: this server would share {batch_size} examples among {devices} GPUs"
        )
    return batch_size // devices


def broadcast_variables(variables: Sequence[keras.Variable], strategy: tf.distribute.Strategy) -> None:
    """Set the variables to the values of server 0. All servers must call this together."""
    own = [variable.value for variable in variables]
    # Collectives take no small integers.
    wide = [tf.cast(each, tf.int64) if each.dtype.is_integer else tf.convert_to_tensor(each) for each in own]
    for variable, value in zip(variables, broadcast(wide, strategy), strict=True):
        variable.assign(tf.cast(value, variable.dtype))


def broadcast(values: list[tf.Tensor], strategy: tf.distribute.Strategy) -> list[tf.Tensor]:
    """Return the values of server 0 in place of these. All servers must call this together."""

    def of_replica(own: list[tf.Tensor]) -> list[tf.Tensor]:
        is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
        # Not a product with 0 or 1: a value that is not finite would become NaN.
        return [tf.where(is_first, value, tf.zeros_like(value)) for value in own]

    return _summed(values, strategy, of_replica)


def all_agree(answer: bool, strategy: tf.distribute.Strategy) -> bool:
    """Return whether the answer of all servers is yes. All servers must call this together."""
    # The sum counts the servers that say no.
    return float(_summed([tf.constant(float(not answer))], strategy)[0]) == 0


def _summed(
    values: list[tf.Tensor],
    strategy: tf.distribute.Strategy,
    of_replica: Callable[[list[tf.Tensor]], list[tf.Tensor]] = lambda own: own,
) -> list[tf.Tensor]:
    """Return the sums over all replicas of what `of_replica` returns for the values of its server."""

    def summed(own: list[tf.Tensor]) -> list[tf.Tensor]:
        results = strategy.run(of_replica, args=(own,))
        return [strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None) for value in results]

    sums: list[tf.Tensor] = tf.function(summed, autograph=False)(values)
    return sums


@contextmanager
def lost_servers_named(cluster: Cluster | None) -> Iterator[None]:
    """Wrap what waits for the other servers: name the server that is gone, if TensorFlow only says that one is."""
    try:
        yield
    except _UNREACHED as error:
        if cluster is None:
            raise
        # The error may be one of this server, such as that of a faulty GPU.
        _log.warning("a step with the other servers failed", exc_info=error)
        raise cluster.loss(EXPLAINED_S) or ServerLost(
            f"another training server can no longer be reached, or this one failed ({plain_message(error)}): run "
            "again, so that all servers continue together"
        ) from error
