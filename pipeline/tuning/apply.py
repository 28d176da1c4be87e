"""What a training under way can change by itself, predicted with each verdict on it, and what became of it."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.config.automatic import TrainingSettings
from pipeline.config.workspace import workspace_of
from pipeline.dataset.manifest import Dataset
from pipeline.errors import TenfoldError
from pipeline.monitor.verdict import Verdict
from pipeline.runs.offers import Offer, save_offers
from pipeline.runs.promises import Promise, load_promises, machine_of, prove, save_promises
from pipeline.runs.run import Run
from pipeline.tuning.advice import with_advice
from pipeline.tuning.measure import host_facts
from pipeline.tuning.predictions import Prediction, facts_of, predictions

_log = logging.getLogger(__name__)


class Advisor:
    """Predicts what changes of a training gain, and offers those that it can make at its next epoch."""

    def __init__(self, run: Run, dataset: Dataset) -> None:
        self._run, self._dataset = run, dataset
        self._settings = run.settings
        """Those of the last epoch, of which a verdict is. `epochs` is the number of those that are left."""
        self._verdict: Verdict | None = None
        self._found: Sequence[Prediction] = ()
        self._machine = machine_of(host_facts())
        self._kept: list[Promise] = []
        if run.settings.advice != "off" and run.server.is_chief:
            try:
                self._kept = [
                    each for each in load_promises(workspace_of(run.training)) if each.machine == self._machine
                ]
            except (TenfoldError, OSError) as error:
                _log.warning("earlier promises of the advice are unknown: %s", error)

    def format_verdict(self, verdict: Verdict) -> str:
        """Return the verdict as a sentence with the next thing to do. Store the changes that the tab offers."""
        self._verdict = verdict
        self._predict()
        return with_advice(verdict, self._settings, self._dataset.settings, self._found)

    def best_change(self, settings: TrainingSettings, epochs_left: int) -> Mapping[str, Any]:
        """Return the values to change before the next epoch; none if no change surely gains.

        `settings` are those of the epoch before.
        """
        self._settings = settings.model_copy(update={"epochs": epochs_left})
        self._predict()
        return next((each.change for each in _offered(self._found)), {})

    def save_promises(self) -> None:
        """Add what was promised of the changes of a training that is over, and what they did, to its workspace."""
        run = self._run
        training, workspace = run.training, workspace_of(run.training)
        try:
            proved = prove(run.folder, training)
            name = str(training).removeprefix(f"{workspace}/")
            save_promises(workspace, name, self._machine, proved)
        except (TenfoldError, OSError) as error:
            _log.warning("what the advice promised is not in the table of the workspace: %s", error)

    def _predict(self) -> None:
        run, dataset = self._run, self._dataset
        if run.settings.advice != "off" and self._verdict:
            examples = {name: split.examples for name, split in dataset.splits.items()}
            memory = run.host.get("memory_bytes", 0)
            facts = facts_of(
                self._verdict,
                self._settings,
                dataset.settings,
                examples,
                folder=run.folder,
                memory_bytes=memory,
                kept=self._kept,
            )
            self._found = predictions(facts)
        if run.server.is_chief:
            offers = [Offer(each.change, each.words(), tuple(each.factor)) for each in _offered(self._found)]
            save_offers(run.folder, offers)


def _offered(found: Iterable[Prediction]) -> list[Prediction]:
    """Return the changes that are worth making, and that a training under way can make."""
    return [each for each in found if each.at_epoch and each.is_gain]
