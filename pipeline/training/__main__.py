"""The training process: `python -m pipeline.training RUN_FOLDER PARENT [ATTEMPT]`.

RUN_FOLDER holds a run.json, and PARENT is a process id. failure.json repeats ATTEMPT, so that its reader knows which
attempt failed.

Exit codes: 0 trained; 75 asked to stop, run it again; 1 failed, and failure.json says why. SIGTERM requests a stop: see
`stop.py`.
"""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipeline import storage
from pipeline.errors import FileSystemError, Preempted, TenfoldError, TrainingError
from pipeline.monitor.comet import log_upload_command
from pipeline.runs.mirror import mirrored
from pipeline.runs.run import EXIT_PREEMPTED, load_run, result_of, run_lock, save_failure
from pipeline.storage.local import FULL
from pipeline.system.process import end_with_parent
from pipeline.system.progress import log_to_stderr
from pipeline.training.failure.full_disk import explain_full_disk
from pipeline.training.failure.watchdog import watched
from pipeline.training.gpus import meeting_of, own_gpus
from pipeline.training.log.experiment import log_results
from pipeline.training.stop import Stage, Stop, end_process
from pipeline.training.tensorflow_start import hold_back_stderr

FAIL_S = 300.0
"""Time limit in seconds for the work after a failure, such as copying the last files of the run to its bucket."""
_log = logging.getLogger("pipeline.training")


def main(folder: Path, parent: int, attempt: str = "") -> int:
    """Train the run of `folder`; return the exit code."""
    log_to_stderr()
    stop = Stop()
    stop.obey_sigterm()
    # After the handler is set: if the parent has died already, this sends SIGTERM at once.
    end_with_parent(parent, signal.SIGTERM)
    try:
        with explain_full_disk():
            return _ended(folder, stop, attempt)
    finally:
        # Also after a failure: an offline archive can be uploaded in any case.
        log_upload_command(folder / "comet")


def _ended(folder: Path, stop: Stop, attempt: str = "") -> int:
    try:
        # The trainer of a killed task may still be writing its checkpoint into this folder.
        with run_lock(folder, stop.requested.is_set):
            _train(folder, stop, partial(_leave, folder, attempt, stop))
    except Preempted as reason:
        _log.warning("%s: run again to continue from the last checkpoint", reason)
        return EXIT_PREEMPTED
    except (TenfoldError, OSError) as error:
        failure = _in_words(error)
        # A full disk needs no traceback. For any other OSError, it shows which call failed.
        _log.error("%s", failure, exc_info=isinstance(error, OSError) and error.errno not in FULL)
        _save_failure(folder, failure, attempt)
        return 1
    except Exception as error:  # noqa: BLE001 - raised further, it would end in an exit that waits for all threads
        _log.exception("the training failed unexpectedly")
        _save_failure(folder, _in_words(error), attempt)
        return 1
    return 0


def _in_words(error: Exception) -> TenfoldError:
    if isinstance(error, TenfoldError):
        return error
    if isinstance(error, OSError):
        do = "free some disk space and run again" if error.errno in FULL else "run again"
        return FileSystemError(f"{error}: {do}, and training continues from its last checkpoint")
    return TrainingError(
        f"the training failed unexpectedly ({type(error).__name__}: {error}): see the traceback in its log. Run again, "
        "and training continues from its last checkpoint"
    )


def _save_failure(folder: Path, error: TenfoldError, attempt: str) -> None:
    try:
        save_failure(folder, error, attempt)
    except OSError as reason:  # A full disk must not hide why the training failed.
        _log.warning("the reason of the failure is only in this log, because its file cannot be written: %s", reason)


def _train(folder: Path, stop: Stop, leave: Callable[[TenfoldError], None]) -> None:
    run = load_run(folder)
    run.require_allowed()
    if result_of(run):  # Another process that held the lock has trained it.
        return
    # Attempts that were killed left temporary files. The lock ensures that no other attempt writes here.
    storage.sweep(folder)
    # The servers meet before TensorFlow is loaded: a server that waits for the others holds no GPU.
    with (
        meeting_of(run, stop.requested.is_set, leave) as cluster,
        own_gpus(run.settings, cluster, stop.requested.is_set) as gpus,
    ):
        if cluster:
            stop.before_the_end = cluster.report_end
        stop.enter(Stage.STARTING)
        _log.info("loading TensorFlow")
        with hold_back_stderr():  # The import takes seconds. SIGTERM must have its handler before.
            from pipeline.training.job import run_job

        gpus.confirm()
        stall_s = 60 * run.settings.stall_minutes
        with mirrored(run.folder, run.place, leave):
            with _failing_in_time(stop, leave), watched(run.folder, stall_s, leave) as heartbeat:
                run_job(run, stop.requested.is_set, cluster, heartbeat, stop.enter)
            # Within the mirror, because Comet's offline archive must reach the bucket, too.
            if run.server.is_chief:
                log_results(run)
        # The result is written by server 0. This process must not report success before, since it may still fail.
        if cluster and not run.server.is_chief:
            cluster.wait_for_chief(stop.requested.is_set)


@contextmanager
def _failing_in_time(stop: Stop, leave: Callable[[TenfoldError], None]) -> Iterator[None]:
    """End this process with `leave` FAIL_S seconds after the block failed, if it still lives.

    The watchdog is off by then. The mirror and the readers may wait for a stalled bucket, and would hold the GPU.
    """
    try:
        yield
    except Preempted:
        stop.enter(Stage.SAVING)  # The mirror still has to copy the last files.
        raise
    except Exception as error:
        timer = threading.Timer(FAIL_S, leave, [_in_words(error)])
        timer.daemon = True
        timer.start()
        raise


def _leave(folder: Path, attempt: str, stop: Stop, error: TenfoldError) -> None:
    """End this process, although its main thread is stuck within TensorFlow or waits there for a lost server."""
    if isinstance(error, Preempted):  # Another server was asked to stop. This one ends as if it had been asked itself.
        stop.requested.set()
        return
    _save_failure(folder, error, attempt)
    _log.error("%s", error)
    end_process(1)


if __name__ == "__main__":
    # All files are written. An ordinary exit would wait for all threads.
    end_process(main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
