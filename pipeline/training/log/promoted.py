"""Log the decision on a promotion to Comet: `python -m pipeline.training.log.promoted RUN PARENT`.

The training logs its results before the decision. A promotion by hand may come days later, on another machine, so this
is a process of its own. Whatever Comet does costs warnings only.
"""

import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NoReturn

from pipeline import storage
from pipeline.monitor.archives import archives
from pipeline.monitor.comet import Session, finish_within, log_upload_command
from pipeline.runs.decision import Decision, decision_in
from pipeline.runs.files import COMET_LOGGED, PROMOTION, RUN, read_required
from pipeline.runs.mirror import fetch
from pipeline.runs.run import Run, load_run
from pipeline.storage import BucketPath, Place, objects, place_of
from pipeline.system.process import end_with_parent
from pipeline.system.progress import log_to_stderr
from pipeline.training.log.experiment import LOGGED_WITHIN_S, comet_options
from pipeline.training.stop import end_process


def main(place: Place, parent: int) -> NoReturn:
    """Log the decision on the run in `place`, and end this process. `parent` is the process that started it."""
    log_to_stderr()
    end_with_parent(parent, signal.SIGTERM)
    finish_within(LOGGED_WITHIN_S, "logging the promotion to Comet", partial(log_promotion, place))
    end_process(0)


def log_promotion(place: Place) -> None:
    """Log the decision in `promotion.json` of a run, and note in `logged.json` that it is logged."""
    decision = decision_in(read_required(place / PROMOTION))
    if decision is None:
        return
    if isinstance(place, Path):
        _log_decision(load_run(place), decision)
        log_upload_command(place / "comet")
    else:
        with tempfile.TemporaryDirectory(prefix="tenfold-") as name:
            folder = Path(name) / place.name  # The name is part of the identity of the experiment.
            folder.mkdir()
            fetch(folder, place, (RUN,))
            _log_decision(load_run(folder), decision)
            _bring_archives(folder / "comet", place / "comet")
    storage.write_json(place / COMET_LOGGED, {**read_required(place / COMET_LOGGED), "promotion": decision.sentence})


def _log_decision(run: Run, decision: Decision) -> None:
    session = Session(run.folder / "comet", comet_options(run), is_addition=True)
    session.experiment.log_other("promotion", decision.badge)
    session.experiment.log_other("promotion_reason", decision.reason)
    session.end()


def _bring_archives(folder: Path, place: BucketPath) -> None:
    """Copy archives to a bucket, after those of the attempts that are there."""
    names = {each.key.partition("/")[0] for each in objects(place)}
    taken = [int(name.removeprefix("try-")) for name in names if name.startswith("try-")]
    for number, archive in enumerate(archives(folder), start=max(taken, default=0) + 1):
        storage.copy_new(archive, place / f"try-{number}" / archive.name)


if __name__ == "__main__":
    main(place_of(sys.argv[1]), int(sys.argv[2]))
