"""The training process: `python -m pipeline.training RUN_FOLDER`, which holds a run.json.

Exit codes: 0 trained; 75 asked to stop, checkpoint written, run it again; 1 failed, and failure.json says why.
SIGTERM means: write a checkpoint and leave.
"""

import logging
import signal
import sys
import threading
from pathlib import Path

from pipeline.errors import Preempted, TenfoldError
from pipeline.process import end_with_parent
from pipeline.progress import log_words
from pipeline.runs import EXIT_PREEMPTED, exclusive, load_run, save_failure
from pipeline.training.quiet import stderr_held_back

_log = logging.getLogger("pipeline.training")


def main(folder: Path) -> int:
    """Train the run of `folder`; return the exit code."""
    log_words()
    end_with_parent(signal.SIGTERM)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with exclusive(folder):
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
    with stderr_held_back():  # the import takes seconds: SIGTERM must be heeded before it
        from pipeline.training.job import run_job

    run_job(load_run(folder), stop.is_set)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
