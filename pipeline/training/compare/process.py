"""The process that measures inputs: `python -m pipeline.training.compare.process FOLDER PARENT`.

FOLDER has `comparison.json` (pipeline/tuning/measurement.py), and PARENT is a process id. The same model trains from
each contender in turn. Complete measurements are not repeated, so a process that was stopped is simply started again.
A contender that failed in an earlier process is tried again.

Exit codes: 0 all is measured; 75 stopped on request; 1 failed, and failure.json says why.
"""

import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.allowed import require_allowed
from pipeline.errors import BadInput, Preempted, SourceError, TenfoldError
from pipeline.runs.run import EXIT_PREEMPTED, run_lock, save_failure
from pipeline.system.process import end_with_parent
from pipeline.system.progress import log_to_stderr, progress
from pipeline.training.gpus import own_gpus
from pipeline.training.stop import Stage, Stop
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
    from pipeline.training.compare.contest import Contest

MAX_ATTEMPTS = 3
"""How often a measurement is made at most if other programs disturb it."""
_log = logging.getLogger("pipeline.training.compare.process")


def main(folder: Path, parent: int) -> int:
    """Measure all contenders of the comparison in `folder`; return the exit code."""
    log_to_stderr()
    stop = Stop()
    stop.obey_sigterm()
    stop.enter(Stage.STARTING)  # It has nothing to save: each measurement is complete or made again.
    end_with_parent(parent, signal.SIGTERM)
    try:
        with run_lock(folder, stop.requested.is_set):  # Two processes would write into the same folders.
            _measure_all(folder, stop)
    except Preempted as reason:
        _log.warning("%s", reason)
        return EXIT_PREEMPTED
    except TenfoldError as error:
        _log.error("%s", error)
        save_failure(folder, error, "")
        return 1
    return 0


def _measure_all(folder: Path, stop: Stop) -> None:
    comparison = load_comparison(folder)
    settings = comparison.training_settings()
    require_allowed(settings)  # Another user of the folder may have changed its file since the task made it.
    with own_gpus(settings, None, stop.requested.is_set) as gpus:
        _log.info("loading TensorFlow")
        with hold_back_stderr():
            from pipeline.training.compare.contest import Contest

        gpus.confirm()
        _measure_turns(Contest(comparison, stop.requested.is_set), comparison, folder)


def _measure_turns(contest: "Contest", comparison: Comparison, folder: Path) -> None:
    from pipeline.training.compare.contender_inputs import why_not

    contenders, order = comparison.options.names, turns(comparison.options)
    # Before the first measurement: decoded images of an earlier one may still take memory in this process.
    failures = {name: Failure(name, why) for name in contenders if (why := why_not(name, comparison))}
    _require_two(contenders, failures)
    with progress("measure", len(order), "measurements") as advance:
        for turn in order:
            own = turn_folder(folder, turn)
            measured = load_measurement(own)
            # A failure of an earlier attempt may have been repaired since.
            if not isinstance(measured, Measurement):
                measured = failures.get(turn.contender) or _measure(contest, turn, own)
                save_measurement(own, measured)
            if isinstance(measured, Failure) and turn.contender not in failures:
                failures[turn.contender] = measured
                _require_two(contenders, failures)
            advance(1)
    for failure in failures.values():
        _log.warning("%s: left out, because %s", CONTENDERS[failure.contender].title, failure.why)


def _require_two(contenders: Sequence[str], failures: Mapping[str, Failure]) -> None:
    """Refuse a comparison of which fewer than two contenders are left."""
    if len(contenders) - len(failures) < 2:
        reasons = "; ".join(f"{CONTENDERS[each.contender].title}: {each.why}" for each in failures.values())
        raise BadInput(f"fewer than two contenders can be measured ({reasons}): set other contenders")


def _measure(contest: "Contest", turn: Turn, folder: Path) -> Measurement | Failure:
    """Measure one contender once. A measurement that other programs disturb is made again.

    Raises TenfoldError if the reason for an error is not the contender alone: full memory, or a damaged shard.
    """
    import tensorflow as tf

    from pipeline.input.damage import damage_named
    from pipeline.input.exhaustion import is_out_of_files, is_out_of_memory, out_of_files_error

    contender = CONTENDERS[turn.contender]
    try:
        with nullcontext() if contender.reads_files else damage_named(contest.inputs.folder_of(contender)):
            return _undisturbed(contest, turn, folder)
    except tf.errors.OpError as error:
        if is_out_of_files(error):
            raise out_of_files_error(error) from error
        if is_out_of_memory(error):
            raise BadInput(
                "out of memory: set a larger micro_batches or a smaller batch_size, or remove cached from contenders"
            ) from error
        # Others come from the step or the devices.
        of_images = (
            *(tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError),
            *(tf.errors.FailedPreconditionError, tf.errors.DataLossError),
        )
        if not contender.reads_files or not isinstance(error, of_images):
            raise
        return Failure(turn.contender, f"TensorFlow cannot read a raw image: {str(error).splitlines()[0][:300]}")
    except OSError as error:
        # Raw files are opened to empty their page cache. Other files belong to the measurement itself.
        if not contender.reads_files or str(folder) in str(error.filename) or not error.filename:
            raise
        return Failure(turn.contender, f"a raw image cannot be read: {error}")
    except SourceError as error:
        return Failure(turn.contender, str(error))


def _undisturbed(contest: "Contest", turn: Turn, folder: Path) -> Measurement:
    """Measure a contender until other programs disturb it no longer, at most MAX_ATTEMPTS times."""
    contender = CONTENDERS[turn.contender]
    for repeated in range(MAX_ATTEMPTS):
        measured = contest.measure(contender, turn.round, folder, repeated)
        if not measured.disturbed:
            break
        _log.warning(
            "%s: other programs kept %.1f cores busy during round %d", contender.title, measured.other_cores,
            turn.round + 1,
        )  # fmt: skip
    return measured


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
