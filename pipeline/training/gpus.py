"""What a process does before it loads TensorFlow: the servers of a training meet, and each takes its GPUs."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from pipeline.config.settings import Settings
from pipeline.errors import BadInput, Preempted, ServerLost, TenfoldError, TrainingError
from pipeline.monitor.gpu import MASK, visible_uuids
from pipeline.rendezvous import Cluster, join_cluster
from pipeline.rendezvous.cluster import WAITING_FOR_GPUS
from pipeline.rendezvous.gpu_shares import gpus_to_take, require_equal_shares
from pipeline.rendezvous.servers import CLUSTER
from pipeline.runs.run import Run
from pipeline.system.gpu_locks import GpuLocks, default_folder
from pipeline.system.wording import counted
from pipeline.training.tensorflow_start import found_gpus

_LOOK_EVERY_S = 0.5
_HIDDEN = "-1"
"""With this value, CUDA_VISIBLE_DEVICES shows no GPU."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnGpus:
    """The GPUs that this process has taken, by UUID."""

    uuids: Sequence[str]
    locks: GpuLocks
    per_server: int = 0
    """How many it must have; 0: any number."""
    shares_machine: bool = False
    """Whether another server of its training runs on the same machine."""

    def confirm(self, list_found: Callable[[], Sequence[object]] = found_gpus) -> None:
        """Compare with the GPUs that TensorFlow finds. If it finds none, other trainings can have them.

        Raises BadInput if it finds another number than the settings ask for, or GPUs that servers cannot divide.
        """
        found, taken = len(list_found()), len(self.uuids)
        if self.per_server and found != self.per_server:
            install = "" if found else "run `make env CUDA=yes`, or "
            raise BadInput(
                f"gpus_per_server={self.per_server}, but TensorFlow found {counted(found, 'GPU')}: {install}set "
                "gpus_per_server=0 to train on what TensorFlow finds"
            )
        if not found:
            self.locks.release()
        elif not taken:
            self._allow_unlisted(found)
        elif found < taken:
            _log.warning(
                "TensorFlow found only %d of the %d GPUs that this training has taken: set gpus_per_server=%d, so that "
                "other trainings can use the rest",
                *(found, taken, found),
            )

    def _allow_unlisted(self, found: int) -> None:
        """Warn that other trainings can use the same GPUs. Raise BadInput if another server of this training would."""
        unlisted = f"TensorFlow found {counted(found, 'GPU')}, but the driver's library NVML lists none"
        if self.shares_machine:
            raise BadInput(
                f"{unlisted}, so the training servers of this machine cannot divide them: repair NVML (`nvidia-smi` "
                "must list the GPUs), or start one server on each machine"
            )
        _log.warning("%s: other trainings may use the same GPUs until `nvidia-smi` lists them", unlisted)


def meeting_of(
    run: Run, should_stop: Callable[[], bool], leave: Callable[[TenfoldError], None]
) -> AbstractContextManager[Cluster | None]:
    """Return the meeting of the servers of a training, as `join_cluster` does. A single server waits for nobody."""
    if run.server.count == 1:
        return nullcontext()
    return join_cluster(
        run.training / CLUSTER,
        run.server,
        wait_s=60 * run.settings.server_wait_minutes,
        should_stop=should_stop,
        leave=leave,
        # Sorted, because CUDA_VISIBLE_DEVICES may show two servers the same GPUs in different orders.
        gpus=sorted(_usable_gpus(run.settings)),
        gpus_per_server=_gpus_per_server(run.settings),
    )


@contextmanager
def own_gpus(settings: Settings, cluster: Cluster | None, should_stop: Callable[[], bool]) -> Iterator[OwnGpus]:
    """Take the GPUs of this server for the block. CUDA shows this process no other GPU from then on.

    Steps of a simulated accelerator use no GPU, so they take none.

    Raises:
        BadInput: If there are fewer GPUs than the settings ask for.
        TrainingError: If other trainings hold them for longer than `server_wait_minutes`.
        ServerLost: If the server that took the GPUs for this one has ended.
        FileSystemError: If this user may not use the locks of this machine.
        Preempted: If a stop is requested.
    """
    per_server, wait_s = _gpus_per_server(settings), 60 * settings.server_wait_minutes
    seen, locks = _usable_gpus(settings), GpuLocks(default_folder())

    def take(servers: int) -> list[str]:
        return _taken(locks, seen, gpus_to_take(seen, servers, per_server), wait_s, should_stop)

    try:
        if cluster is None:
            require_equal_shares([seen], per_server)
        uuids: list[str] = []
        if seen:
            uuids = cluster.take_gpus(take, should_stop) if cluster else take(1)
            if not locks.join(uuids):
                raise ServerLost("the training server that took the GPUs of this machine has ended: run again")
        if seen or settings.simulated_step_ms:
            # TensorFlow and the monitor read it later. TensorFlow would take memory of each GPU that it sees.
            os.environ[MASK] = ",".join(uuids) or _HIDDEN
        yield OwnGpus(uuids, locks, per_server, shares_machine=cluster is not None and cluster.shares_machine)
    finally:
        locks.release()


@contextmanager
def free_gpu() -> Iterator[None]:
    """Take one GPU for the block, if one is free. CUDA shows this process no other GPU from then on, or none."""
    seen, locks = visible_uuids(), GpuLocks(default_folder())
    try:
        if seen:
            taken = locks.take(seen, 1)
            if not taken:
                _log.info("trainings use all GPUs of this machine: this process uses the CPU")
            os.environ[MASK] = ",".join(taken or [_HIDDEN])
        yield
    finally:
        locks.release()


def _usable_gpus(settings: Settings) -> list[str]:
    return [] if settings.simulated_step_ms else visible_uuids()


def _gpus_per_server(settings: Settings) -> int:
    return 0 if settings.simulated_step_ms else settings.gpus_per_server


def _taken(
    locks: GpuLocks, seen: Sequence[str], count: int, wait_s: float, should_stop: Callable[[], bool]
) -> list[str]:
    """Wait until `count` of the GPUs that this process sees are free. Then lock and return them."""
    deadline, is_waiting = time.monotonic() + wait_s, False
    while (taken := locks.take(seen, count)) is None:
        if not is_waiting:
            is_waiting = True
            _log.info(
                "waiting for %d of %d GPUs: other trainings on this machine use them, or are just taking theirs",
                *(count, len(seen)),
            )
        if should_stop():
            raise Preempted(f"the training was asked to stop {WAITING_FOR_GPUS}")
        if time.monotonic() > deadline:
            raise TrainingError(
                f"this training needs {count} of the {len(seen)} GPUs that it sees, but other trainings on this "
                f"machine still use them after {wait_s / 60:g} minutes (server_wait_minutes): run again when one has "
                "ended, set a smaller gpus_per_server, or run fewer trainings at once (TENFOLD_TRAININGS_AT_ONCE)"
            )
        time.sleep(_LOOK_EVERY_S)
    return taken
