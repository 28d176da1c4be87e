"""The training process: `python -m pipeline.training RUN_FOLDER PARENT`, a folder with a run.json and a process id.

Exit codes: 0 trained; 75 asked to stop, checkpoint written, run it again; 1 failed, and failure.json says why.
SIGTERM means: write a checkpoint and leave.
"""

import logging
import os
import signal
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from pipeline import storage
from pipeline.errors import FileSystemError, Preempted, TenfoldError
from pipeline.experiment import log_results
from pipeline.mirror import mirrored
from pipeline.monitor.comet import say_archives
from pipeline.process import end_with_parent
from pipeline.progress import log_words
from pipeline.rendezvous import Gang, joined
from pipeline.runs import EXIT_PREEMPTED, Run, exclusive, load_run, result_of, save_failure
from pipeline.servers import CLUSTER
from pipeline.training.quiet import stderr_held_back
from pipeline.training.watchdog import watched

_log = logging.getLogger("pipeline.training")


def main(folder: Path, parent: int) -> int:
    """Train the run of `folder`; return the exit code."""
    log_words()
    stop = _stop_of(signal.SIGTERM)
    end_with_parent(parent, signal.SIGTERM)
    try:
        return _ended(folder, stop)
    finally:
        say_archives(folder / "comet")


def _ended(folder: Path, stop: threading.Event) -> int:
    try:
        with exclusive(folder, stop.is_set):
            _train(folder, stop)
    except Preempted as reason:
        _log.warning("%s: a rerun goes on from the last checkpoint", reason)
        return EXIT_PREEMPTED
    except TenfoldError as error:
        _log.error("%s", error)
        _save_failure(folder, error)
        return 1
    except OSError as error:
        failure = FileSystemError(f"{error}: run again, and training goes on from its last checkpoint")
        _log.exception("%s", failure)
        _save_failure(folder, failure)
        return 1
    return 0


def _save_failure(folder: Path, error: TenfoldError) -> None:
    try:
        save_failure(folder, error)
    except OSError as reason:  # A full disk must not hide why the training failed.
        _log.warning("the reason is only in this log: %s", reason)


def _stop_of(number: signal.Signals) -> threading.Event:
    """What is set when the signal comes, even while the main thread waits for data in TensorFlow.

    Python runs no handler there, but writes the number to the file that it is told of.
    """
    stop = threading.Event()
    signal.signal(number, lambda *_: stop.set())
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)

    def watch() -> None:
        while os.read(reader, 1)[0] != number:
            pass
        stop.set()

    threading.Thread(target=watch, name="signals", daemon=True).start()
    return stop


def _train(folder: Path, stop: threading.Event) -> None:
    run = load_run(folder)
    if result_of(run):  # a twin that held the lock has done it
        return
    storage.sweep(folder)
    with _joined(run, stop) as gang:
        _log.info("loading TensorFlow")
        with stderr_held_back():  # the import takes seconds: SIGTERM must be heeded before it
            from pipeline.training.job import run_job

        stall_s = 60 * run.settings.stall_minutes
        with mirrored(run.folder, run.place):
            with watched(run.folder, stall_s, partial(_leave, run.folder)) as heard:
                run_job(run, stop.is_set, gang, heard)
            if run.server.is_chief:
                log_results(run)
        if gang and not run.server.is_chief:
            gang.wait_for_chief(stop.is_set)


def _joined(run: Run, stop: threading.Event) -> AbstractContextManager[Gang | None]:
    """The other servers, before TensorFlow is loaded: while one waits for them, it holds no GPU."""
    if run.server.count == 1:
        return nullcontext()
    wait_s = 60 * run.settings.server_wait_minutes
    return joined(run.training / CLUSTER, run.server, wait_s, stop.is_set, partial(_leave, run.folder))


def _leave(folder: Path, error: TenfoldError) -> None:
    """End this process while its main thread is stuck within TensorFlow, or waits there for a server that is gone."""
    save_failure(folder, error)
    _log.error("%s", error)
    logging.shutdown()
    os._exit(1)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    logging.shutdown()
    # All is written. An ordinary exit waits for threads, and one of them may wait for a bucket that is stalling.
    os._exit(code)
