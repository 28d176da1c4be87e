"""Trains a model on a dataset in a separate process, because TensorFlow frees a GPU only when its process ends."""

import logging
import os
import platform
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import psutil

from pipeline.config.allowed import require_folder, require_output, require_outputs
from pipeline.config.settings import Settings
from pipeline.errors import (
    CacheDamaged,
    FileSystemError,
    OutOfMemory,
    Preempted,
    TenfoldError,
    TrainingError,
    error_to_json,
)
from pipeline.monitor.open_metrics import METRICS
from pipeline.rendezvous import report_end
from pipeline.rendezvous.servers import CLUSTER, steps_of_epoch
from pipeline.runs.files import FREE_MEMORY, RESULT, with_moved_addresses
from pipeline.runs.mirror import Mirror, claim
from pipeline.runs.requirements import load_usable, require_startable
from pipeline.runs.run import (
    EXIT_PREEMPTED,
    Run,
    load_result,
    result_of,
    save_run,
    take_failure,
    training_folder,
    training_place,
)
from pipeline.runs.training_settings import settings_of_training
from pipeline.storage import BucketPath, Place
from pipeline.system.host import processor_name
from pipeline.system.process import start_module, stop_process
from pipeline.system.resources import available_memory, usable_cores

MAX_DAMAGED = 3
"""If decoded images were damaged this many times in one command, the disk itself is suspect."""
LOOK_S = 10.0
"""Seconds between two looks at a training under way."""
Look = Callable[[Run], None]
_log = logging.getLogger(__name__)


def train(settings: Settings, dataset: Place, run_id: str, look: Look | None = None) -> dict[str, Any]:
    """Train on a dataset and return the result. If the training is complete already, return at once.

    `look` is called every LOOK_S seconds with the run of server 0, in the thread of the caller.

    All training servers are processes on this machine, which share its GPUs. If they run out of memory, they are
    started again and take fewer examples at once. They are also started again if decoded images on the disk were
    damaged.

    Returns {"run", "split", "metrics", "model", "export", "comet", "verdict", "limit", "limits", "wait_fraction",
    "wait_ms", "step_ms", "examples_per_s", "gpu_pct", "cpu_pct", "epochs"}.
    Raises what `TrainingProcess.wait` does.
    """
    damaged = 0
    while True:
        try:
            return _tried(settings, dataset, run_id, look)
        # This ends: each attempt takes at most half of the examples, and a failure with one example is BadInput.
        except OutOfMemory as error:
            _log.warning("%s", error)
        except CacheDamaged as error:
            damaged += 1
            if damaged >= MAX_DAMAGED:
                raise FileSystemError(
                    f"the decoded images were damaged {damaged} times: check the disk of local_folder, or set "
                    "cache=off, and run again; training continues from its last checkpoint"
                ) from error
            _log.warning("%s", error)


def _tried(settings: Settings, dataset: Place, run_id: str, look: Look | None) -> dict[str, Any]:
    runs = [prepare_run(settings, dataset, run_id, index) for index in range(settings.num_training_servers)]
    processes = [TrainingProcess(run, output=sys.stderr.fileno()) for run in runs]
    # Not in a `with` block, whose end would wait for the processes before they are asked to stop.
    pool = ThreadPoolExecutor(len(processes))
    try:
        # All processes are awaited at once. If one is killed, the others are still waiting for it, and must be told.
        waits, ended = [pool.submit(process.wait) for process in processes], list[Future[dict[str, Any]]]()
        for each in waits:
            each.add_done_callback(ended.append)
        while True:
            running = wait(waits, LOOK_S if look else None, return_when=FIRST_EXCEPTION).not_done
            # In the order of their ends: the first error is the cause of the others.
            results = [each.result() for each in [*ended]]
            if len(results) == len(waits):
                return results[0]
            if running and look:
                look(runs[0])
    finally:
        # All are asked first: a server can only stop together with the others, after the same step.
        for process in processes:
            process.request_stop()
        for process in processes:
            process.stop()
        pool.shutdown()


def load_trained_result(settings: Settings, dataset: Place, run_id: str) -> dict[str, Any] | None:
    """Return the result if this run has trained on this dataset with these settings, on any worker; else None.

    Raises what `load_usable` does.
    """
    content = load_usable(settings, dataset)
    training = training_place(settings_of_training(settings, content), run_id, content.version)
    require_outputs([training, training / RESULT])
    result = load_result(training)
    return result and with_moved_addresses(result, training)


def prepare_run(settings: Settings, dataset: Place, run_id: str, index: int = 0, dag: str = "") -> Run:
    """Check what the training needs, and write `run.json` of one of its servers.

    If the workspace is a bucket, the run is first fetched from there. `index` is that of the training server, and `dag`
    is the id of the DAG, if any. Raises what `require_startable` does.
    """
    content = require_startable(settings, dataset)
    # The dataset can have been built under another name than the settings say.
    settings = settings_of_training(settings, content).model_copy(update={"dataset_name": content.name})
    servers = settings.num_training_servers
    run = Run(
        folder=training_folder(settings, run_id, content.version, index),
        run_id=run_id,
        dataset=str(dataset),
        dataset_version=content.version,
        settings=settings,
        host={
            "name": platform.node(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "usable_cores": usable_cores(),
            "memory_bytes": psutil.virtual_memory().total,
            # In a container, it may be much less. The training decides by it whether it keeps decoded images.
            FREE_MEMORY: available_memory(),
        },
        software=_software(),
        steps_per_epoch=steps_of_epoch(content.splits["train"].examples, servers, settings.batch_size // servers),
        index=index,
        dag=dag,
    )
    place = run.place
    require_output(place)
    for folder in (run.folder, *(Path(settings.local_folder) / name for name in ("decoded", "shards", "stages"))):
        require_folder(folder)
    if isinstance(place, BucketPath):
        claim(run.folder, place)
    # `run.json` of a complete training stays: it describes how the result came about.
    if result_of(run) is None:
        save_run(run)
    elif isinstance(place, BucketPath):  # The bucket may have failed at the end of the training.
        Mirror(run.folder, place).sync()
    return run


def _software() -> dict[str, str]:
    """Return the versions of the packages that matter to a training. Without Comet's, a training works, too."""
    versions: dict[str, str] = {}
    for name in ("tensorflow", "keras", "numpy", "pillow", "comet-ml"):
        with suppress(PackageNotFoundError):
            versions[name] = installed_version(name)
    return versions


class TrainingProcess:
    """A process of `python -m pipeline.training`. It starts at once unless the run is complete.

    `output` is the file descriptor that gets the output of the process.
    """

    def __init__(self, run: Run, output: int) -> None:
        self._run = run
        self._attempt = uuid.uuid4().hex
        """Distinguishes the failure of this process from that of another attempt in the same folder."""
        self._process = None
        if result_of(run) is None:
            arguments = (str(run.folder), str(os.getpid()), self._attempt)
            self._process = start_module("pipeline.training", *arguments, output=output)
        else:
            _log.info(
                "the training %s is already complete, with the same data and settings (set another seed to train "
                "again)",
                run.folder,
            )

    def wait(self, look: Look | None = None) -> dict[str, Any]:
        """Wait for the end and return the result. Meanwhile, call `look` every LOOK_S seconds with the run.

        Raises:
            Preempted: If a stop was requested.
            TenfoldError: The error that the process stored, if it failed.
            TrainingError: If it ended without storing an error.
        """
        code = self._code(self._process, look) if self._process else 0
        self._remove_metrics()
        if code == EXIT_PREEMPTED:
            raise Preempted("the training was asked to stop: run it again to continue from its last checkpoint")
        result = result_of(self._run)
        if code or result is None:
            raise self._failure(code)
        return result

    def _code(self, process: "subprocess.Popen[bytes]", look: Look | None) -> int:
        """Return the exit code of the process, once it has ended."""
        while True:
            try:
                return process.wait(LOOK_S if look else None)
            except subprocess.TimeoutExpired:
                if look:
                    look(self._run)

    def _failure(self, code: int) -> TenfoldError:
        """Return the error that the process stored. If it stored none, report its end to the other servers, too."""
        failure = take_failure(self._run.folder, self._attempt)
        if failure is not None:
            return failure
        error = TrainingError(f"the training process ended with {_ending(code)}")
        if self._process is None or self._run.server.count == 1:
            return error
        # Otherwise, the others learn of it only when a connection breaks, or after a minute of silence.
        report_end(self._run.training / CLUSTER, self._process.pid, error_to_json(error))
        return TrainingError(f"training server {self._run.index}: {error}")

    def request_stop(self) -> None:
        """Request a checkpoint and a stop. `wait` then ends."""
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> None:
        """Request a stop. After the grace time, kill the process and all processes that it started."""
        if self._process is not None:
            stop_process(self._process)
            self._remove_metrics()

    def _remove_metrics(self) -> None:
        """Remove the values for dashboards, which a process leaves that is killed or has to end at once."""
        with suppress(OSError):  # The end of the training matters more.
            (self._run.folder / METRICS).unlink(missing_ok=True)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}; its last lines are above"
    hint = " (often out of memory): run the same command to continue from the last checkpoint"
    return signal.Signals(-code).name + (hint if -code == signal.SIGKILL else "")
