"""What a training does before it loads TensorFlow: its servers meet, and each takes its GPUs until the end."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pipeline.config.settings import Settings
from pipeline.errors import BadInput, Preempted, TenfoldError, TrainingError
from pipeline.monitor.gpu import MASK, visible_uuids
from pipeline.rendezvous import Cluster, join_cluster
from pipeline.rendezvous.gpu_shares import require_equal_shares
from pipeline.rendezvous.servers import CLUSTER
from pipeline.runs.run import Run
from pipeline.system.gpu_locks import GpuLocks, default_folder
from pipeline.training.tensorflow_start import found_gpus

_LOOK_EVERY_S = 0.5
_log = logging.getLogger(__name__)


class OwnGpus:
    """The GPUs that this process has taken, by UUID."""

    def __init__(self, uuids: Sequence[str], locks: GpuLocks, per_server: int) -> None:
        self.uuids, self._locks, self._per_server = uuids, locks, per_server

    def confirm(self, list_found: Callable[[], Sequence[object]] = found_gpus) -> None:
        """Compare with the GPUs that TensorFlow finds. If it finds none, other trainings can have them.

        Raises:
            BadInput: If it finds another number than the settings ask for.
        """
        found = len(list_found())
        if self._per_server and found != self._per_server:
            raise BadInput(
                f"gpus_per_server={self._per_server}, but TensorFlow found {found} GPUs: run `make env CUDA=yes`, or "
                "set gpus_per_server=0 to train on what TensorFlow finds"
            )
        if not found:
            self._locks.release()


def meeting_of(
    run: Run, should_stop: Callable[[], bool], leave: Callable[[TenfoldError], None]
) -> AbstractContextManager[Cluster | None]:
    """Return the meeting of the servers of a training, as `join_cluster` does. A single server meets nobody."""
    if run.server.count == 1:
        return nullcontext()
    return join_cluster(
        run.training / CLUSTER,
        run.server,
        wait_s=60 * run.settings.server_wait_minutes,
        should_stop=should_stop,
        leave=leave,
        gpus=visible_uuids(),
        gpus_per_server=run.settings.gpus_per_server,
    )


@contextmanager
def own_gpus(settings: Settings, cluster: Cluster | None, should_stop: Callable[[], bool]) -> Iterator[OwnGpus]:
    """Take the GPUs of this server for the block. CUDA shows this process no other GPU from then on.

    Raises:
        BadInput: If there are fewer GPUs than the settings ask for.
        TrainingError: If other trainings hold them for longer than `server_wait_minutes`.
        Preempted: If a stop is requested.
    """
    per_server, wait_s = settings.gpus_per_server, 60 * settings.server_wait_minutes
    seen, locks = visible_uuids(), GpuLocks(default_folder())

    def take(servers: int) -> list[str]:
        return _taken(locks, seen, servers * per_server or len(seen), wait_s, should_stop)

    try:
        if cluster is None:
            require_equal_shares([seen], per_server)
        uuids: list[str] = []
        if seen:
            uuids = cluster.take_gpus(take, should_stop) if cluster else take(1)
            locks.join(uuids)
            # TensorFlow and the monitor read it later. TensorFlow would take memory of each GPU that it sees.
            os.environ[MASK] = ",".join(uuids)
        yield OwnGpus(uuids, locks, per_server)
    finally:
        locks.release()


def _taken(
    locks: GpuLocks, seen: Sequence[str], count: int, wait_s: float, should_stop: Callable[[], bool]
) -> list[str]:
    """Return `count` of the GPUs that this process sees, once so many are free, and hold them."""
    deadline, is_waiting = time.monotonic() + wait_s, False
    while (taken := locks.take(seen, count)) is None:
        if not is_waiting:
            is_waiting = True
            _log.info("waiting for %d of %d GPUs: other trainings on this machine use them", count, len(seen))
        if should_stop():
            raise Preempted("the training was asked to stop while it waited for GPUs")
        if time.monotonic() > deadline:
            raise TrainingError(
                f"this training needs {count} of the {len(seen)} GPUs that it sees, but other trainings on this "
                f"machine still use them after {wait_s / 60:g} minutes (server_wait_minutes): run again when one has "
                "ended, set a smaller gpus_per_server, or run fewer trainings at once (TENFOLD_TRAININGS_AT_ONCE)"
            )
        time.sleep(_LOOK_EVERY_S)
    return taken
