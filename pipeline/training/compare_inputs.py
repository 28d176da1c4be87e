"""The process that measures inputs: `python -m pipeline.training.compare_inputs FOLDER PARENT`.

FOLDER has `comparison.json` (pipeline/tuning/measurement.py), and PARENT is a process id. The same model trains from
each contender in turn. Complete measurements are not repeated, so a process that was stopped is simply started again.

Exit codes: 0 all is measured; 75 stopped on request; 1 failed, and failure.json says why.
"""

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import Preempted, TenfoldError
from pipeline.monitor.limits import OTHERS
from pipeline.runs.run import EXIT_PREEMPTED, run_lock, save_failure
from pipeline.storage import is_bucket
from pipeline.system.cores import usable_cores
from pipeline.system.process import end_with_parent
from pipeline.system.progress import log_to_stderr, progress
from pipeline.training.tensorflow_start import hold_back_stderr
from pipeline.tuning.contenders import CONTENDERS
from pipeline.tuning.measurement import (
    Comparison,
    Failure,
    Measurement,
    Turn,
    load_comparison,
    load_measurement,
    save_measurement,
    turn_folder,
    turns,
)

if TYPE_CHECKING:
    from pipeline.training.contest import Contest

MAX_ATTEMPTS = 3
"""How often a measurement is made at most if other programs disturb it."""
_log = logging.getLogger("pipeline.training.compare_inputs")


def main(folder: Path, parent: int) -> int:
    """Measure all contenders of the comparison in `folder`; return the exit code."""
    log_to_stderr()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    end_with_parent(parent, signal.SIGTERM)
    try:
        with run_lock(folder, stop.is_set):  # Two processes would write into the same folders.
            _measure_all(folder, stop)
    except Preempted as reason:
        _log.warning("%s", reason)
        return EXIT_PREEMPTED
    except TenfoldError as error:
        _log.error("%s", error)
        save_failure(folder, error, "")
        return 1
    return 0


def _measure_all(folder: Path, stop: threading.Event) -> None:
    _log.info("loading TensorFlow")
    with hold_back_stderr():
        from pipeline.training.contest import Contest

    comparison = load_comparison(folder)
    settings = settings_from(dict(comparison.settings))
    folders = {prepare: Path(place) for prepare, place in comparison.datasets.items()}
    contest = Contest(settings, folders, comparison.source_root, stop.is_set)
    order = turns(settings.contenders.split(","), settings.rounds)
    failures: dict[str, Failure] = {}
    with progress("measure", len(order), "measurements") as advance:
        for turn in order:
            own = turn_folder(folder, turn)
            measured = load_measurement(own) or failures.get(turn.contender)
            if measured is None:
                measured = why_not(turn.contender, comparison) or _measure(contest, turn, own)
                save_measurement(own, measured)
            if isinstance(measured, Failure) and turn.contender not in failures:
                failures[turn.contender] = measured
                _log.warning("%s: left out, because %s", CONTENDERS[turn.contender].title, measured.why)
            advance(1)


def why_not(contender: str, comparison: Comparison) -> Failure | None:
    """Return why a contender cannot take part; None if it can."""
    if not CONTENDERS[contender].reads_files:
        return None
    if is_bucket(comparison.source_root):
        return Failure(contender, "its images are in a bucket, and raw files are only read from a disk")
    if load(Path(comparison.datasets[CONTENDERS[contender].prepare])).records.multi_label:
        return Failure(contender, "its images have several labels, and raw files are only read with one")
    return None


def _measure(contest: "Contest", turn: Turn, folder: Path) -> Measurement | Failure:
    """Measure one contender once. A measurement that other programs disturb is made again."""
    import tensorflow as tf

    title = CONTENDERS[turn.contender].title
    try:
        source = contest.input_of(CONTENDERS[turn.contender])
        for repeated in range(MAX_ATTEMPTS):
            measured = contest.measure(source, turn.round, folder, repeated)
            others = measured.other_cores or 0.0
            if others <= OTHERS * usable_cores():
                break
            _log.warning(
                "%s: other programs kept %.1f of %d cores busy during round %d", title, others, usable_cores(),
                turn.round + 1,
            )  # fmt: skip
        return measured
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
        return Failure(turn.contender, f"TensorFlow cannot read a raw image: {str(error).splitlines()[0][:300]}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
