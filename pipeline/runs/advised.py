"""With `advice=apply`, a training under way is continued on a new dataset without a person.

The process that waits for the training looks at what it offers, and starts the run, or the command, that builds the
dataset. Everything else is as if a person had asked for it (pipeline/runs/continuation.py).
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.config.declarations import ChangesDataset
from pipeline.config.settings import declared
from pipeline.errors import FileSystemError, StorageError
from pipeline.runs.changes import ADVICE, BUILD, load_changes
from pipeline.runs.offers import load_offers
from pipeline.runs.run import Run

Start = Callable[[Run, Mapping[str, Any]], None]
"""Starts what builds a dataset with these settings, and continues a training on it."""
_log = logging.getLogger(__name__)


class AdvisedDataset:
    """Starts, at most once, what continues a training on a new dataset, if that is the best change that it offers."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._is_decided = False

    def look(self, run: Run) -> None:
        """Look at the offers of a training. An error costs a warning only."""
        if self._is_decided:
            return
        try:
            if values := self._advised(run):
                self._start(run, values)
                self._is_decided = True
        except (StorageError, FileSystemError, OSError) as error:
            _log.warning("whether to continue the training on a new dataset is unknown until the next look: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on, and each look would find it
            self._is_decided = True
            _log.warning("the training is not continued on a new dataset, as the advice is: %s", error)

    def _advised(self, run: Run) -> Mapping[str, Any]:
        """Return the settings of the dataset; none if another change is better, or comes first.

        As with any other change that a training makes by itself, somebody's earlier request counts, even if it was
        refused. A build that the advice itself began, in an attempt that was stopped, is begun again.
        """
        best = next(iter(load_offers(run.folder)), None)
        if best is None or not best.change.keys() <= declared(ChangesDataset).keys():
            return {}
        changes = [each for each in load_changes(run.training) if (each.field, each.by) != (BUILD, ADVICE)]
        self._is_decided = any(best.change.keys() & change.dataset_values.keys() for change in changes)
        is_waiting = any(change.is_requested for change in changes)
        return {} if self._is_decided or is_waiting else best.change
