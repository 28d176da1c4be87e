"""The training process: `python -m pipeline.training RUN_FOLDER PARENT`, a folder with a run.json and a process id.

Exit codes: 0 trained; 75 asked to stop, checkpoint written, run it again; 1 failed, and failure.json says why.
SIGTERM means: write a checkpoint and leave.
"""

import logging
import signal
import sys
import threading
from pathlib import Path

from pipeline import storage
from pipeline.errors import Preempted, TenfoldError
from pipeline.process import end_with_parent
from pipeline.progress import log_words
from pipeline.runs import EXIT_PREEMPTED, exclusive, load_result, load_run, save_failure
from pipeline.training.quiet import stderr_held_back

_log = logging.getLogger("pipeline.training")


def main(folder: Path, parent: int) -> int:
    """Train the run of `folder`; return the exit code."""
    log_words()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    end_with_parent(parent, signal.SIGTERM)
    try:
        with exclusive(folder, stop.is_set):
            _train(folder, stop)
    except Preempted as reason:
        _log.warning("%s: checkpoint written; a rerun goes on from there", reason)
        return EXIT_PREEMPTED
    except TenfoldError as error:
        save_failure(folder, error)
        _log.error("%s", error)
        return 1
    return 0


def _train(folder: Path, stop: threading.Event) -> None:
    if load_result(folder):  # a twin that held the lock has done it
        return
    storage.sweep(folder)
    _log.info("loading TensorFlow")
    with stderr_held_back():  # the import takes seconds: SIGTERM must be heeded before it
        from pipeline.training.job import run_job

    run_job(load_run(folder), stop.is_set)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
