"""What a training under way can change by itself, predicted with each verdict on it, and what became of it."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from pipeline.config.automatic import TrainingSettings
from pipeline.config.declarations import ChangesDataset
from pipeline.config.settings import declared
from pipeline.config.workspace import workspace_of
from pipeline.dataset.manifest import Dataset
from pipeline.errors import TenfoldError
from pipeline.monitor.epochs import whole_epochs
from pipeline.monitor.limits import Limit
from pipeline.monitor.load import Load
from pipeline.monitor.record import last_row
from pipeline.monitor.verdict import Verdict
from pipeline.runs.changes import CONTINUES, load_changes, newest_settings
from pipeline.runs.continuation import save_measured
from pipeline.runs.offers import Offer, save_offers
from pipeline.runs.promises import last_change, machine_of, promises_on, prove, save_promises
from pipeline.runs.run import Run
from pipeline.storage import place_of
from pipeline.system.host import host_facts
from pipeline.system.resources import available_memory
from pipeline.tuning.advice import advice, with_advice
from pipeline.tuning.predictions import Facts, Prediction, facts_of, predictions, since_change
from pipeline.tuning.rates import LAST_EPOCHS

if TYPE_CHECKING:
    import pandas

FEWER_EPOCHS = 0.9
"""Without a new verdict, changes are predicted again only when this share of the epochs is left. A prediction takes
about 10 ms, and an epoch may take 200 ms."""
_log = logging.getLogger(__name__)


class Advisor:
    """Predicts what changes of a training gain, and offers those that it can make at its next epoch.

    The monitor's thread asks for verdicts, and the training's thread for offers.
    """

    def __init__(self, run: Run, dataset: Dataset) -> None:
        self._run, self._dataset = run, dataset
        self._lock = threading.Lock()
        """Held while the state below changes, and while the offers are written."""
        self._settings, self._epochs_left = run.settings, run.settings.epochs
        """Those of the last epoch, of which a verdict is, and the epochs that an offer is about."""
        self._verdict: Verdict | None = None
        """The last one; None if some of its steps may have had other settings."""
        self._changed_at = 0.0
        """When a change of the settings was noticed, which is after the first epoch with it (Unix s). The first epoch
        of an attempt counts as such an epoch if it decodes the images that are kept. Infinite until it has ended."""
        self._epochs: pandas.DataFrame | None = None
        """The `whole_epochs` before the verdict."""
        self._ended: pandas.DataFrame | None = None
        """The newest `whole_epochs`, of which only the monitor's thread knows."""
        self._found: Sequence[Mapping[str, Any]] = []
        """Those of the changes that were offered last that the training can make by itself."""
        self._since = 0
        """The first epoch with these settings, or the epoch that decodes the images to keep; 0 without either."""
        self._machine = machine_of(host_facts())
        # Before images are kept, which is when cache=auto decides by it.
        self._free_at_start = available_memory()
        self._is_on = run.settings.advice != "off"
        self._kept = promises_on(run.training, self._machine) if self._is_on and run.server.is_chief else []
        try:
            changes = load_changes(run.training)
            self._settings = newest_settings(run.settings, changes)
            decodes_first = self._facts(Verdict((Limit.UNKNOWN,), "", Load()), self._settings).decodes_first
            self._since, self._changed_at = last_change(changes, decodes_first), inf if decodes_first else 0.0
        except (TenfoldError, OSError) as error:
            _log.warning("the changes of the training are unknown: %s", error)

    def format_verdict(self, verdict: Verdict) -> str:
        """Return the verdict as a sentence with the next thing to do. Store the changes that the tab offers."""
        # Before the lock, for which the training waits between two epochs: a long record takes seconds.
        epochs = self._whole_epochs() if self._is_on else None
        with self._lock:
            # With slow steps, a verdict goes back over many minutes.
            self._verdict = None if verdict.since < self._changed_at else verdict
            # Those with the current settings, but for the first, which opens its input.
            self._epochs = None if epochs is None else epochs.loc[self._since + 1 :]
            settings, is_known = self._settings, self._is_on and self._verdict is not None
            self._offer()
        found = predictions(self._facts(verdict, settings)) if is_known else []
        return with_advice(verdict, settings, self._dataset.settings, found)

    def format_whole(self, verdict: Verdict) -> str:
        """Return the verdict on the whole training as a sentence with the next thing to do.

        If a setting has changed, or images are kept, the steps of the record differ. Then the advice follows from the
        later ones, if they are enough.
        """
        if not self._since:
            return self.format_verdict(verdict)
        dataset = self._dataset.settings
        facts = self._facts_since_change(verdict) if self._is_on else None
        if not facts or facts.verdict.limit is Limit.UNKNOWN:
            return with_advice(verdict, self._settings, dataset)
        return f"{verdict.sentence} {advice(facts.verdict, self._settings, dataset, predictions(facts))}".strip()

    def best_changes(self, settings: TrainingSettings, epochs_left: int) -> Sequence[Mapping[str, Any]]:
        """Return the values to change before the next epoch, the best change first; none if no change surely gains.

        `settings` are those of the epoch before.
        """
        with self._lock:
            is_new = settings != self._settings or self._changed_at == inf
            if is_new:
                self._since = self._run.settings.epochs - epochs_left
                self._verdict, self._changed_at = None, time.time()
            if is_new or epochs_left <= FEWER_EPOCHS * self._epochs_left:
                self._settings, self._epochs_left = settings, epochs_left
                self._offer()
            return self._found

    def save_promises(self) -> None:
        """Add what was promised of the changes of a training that is over, and what they did, to its workspace."""
        run = self._run
        training = run.training
        try:
            workspace = workspace_of(training)
            proved = prove(run.folder, run.training, run.settings.epochs, run.continued_folder)
            name = str(training).removeprefix(f"{workspace}/")
            save_promises(workspace, name, self._machine, proved)
            if continued := next((each for each in proved if each.field == CONTINUES and each.measured), None):
                save_measured(place_of(run.settings.continues), continued)
        except (TenfoldError, OSError) as error:
            _log.warning("what the advice promised is not in the table of the workspace: %s", error)

    def _facts_since_change(self, verdict: Verdict) -> Facts | None:
        """Return what is known of the later steps of a training that is over; None if its changes cannot be read."""
        try:
            changes = load_changes(self._run.training)
        except (TenfoldError, OSError) as error:
            _log.warning("no gain is predicted, because the changes of the training cannot be read: %s", error)
            return None
        return since_change(self._facts(verdict, self._settings), self._run.folder, changes)

    def _offer(self) -> None:
        """Find the changes that the training can make by itself, and store its offers. The lock must be held."""
        found: list[Prediction] = []
        if self._is_on and self._verdict:
            settings = self._settings.model_copy(update={"epochs": self._epochs_left})
            found = _worth_making(self._facts(self._verdict, settings))
        self._found = [each.change for each in found if each.at_epoch]
        if self._is_on and self._run.server.is_chief:
            try:
                save_offers(self._run.folder, [Offer(each.change, each.words(), tuple(each.factor)) for each in found])
            except (TenfoldError, OSError) as error:
                _log.warning("the changes that the training offers cannot be stored: %s", error)

    def _whole_epochs(self) -> "pandas.DataFrame":
        """Return the newest epochs that have ended. The record is only read from the last but one of them on."""
        import pandas

        known = pandas.DataFrame() if self._ended is None else self._ended
        record = self._run.folder / "record"
        since, last = (known["time"].iloc[-2], known.index[-1]) if len(known) > 1 else (None, 0)
        try:
            newest = last_row(record, "epochs")
            # An epoch may have millions of steps, and there is a verdict every minute.
            if newest is None or (len(known) and newest["step"] == known.index[-1]):
                return known
            found = whole_epochs(record, since, 2 * LAST_EPOCHS).loc[last:]
            if last:
                found = pandas.concat([known.loc[: last - 1], found])
            self._ended = found[-2 * LAST_EPOCHS :]
            return self._ended
        except OSError:  # The disk is slow to answer, or full: the next verdict comes soon.
            return known

    def _facts(self, verdict: Verdict, settings: TrainingSettings) -> Facts:
        examples = {name: split.examples for name, split in self._dataset.splits.items()}
        return facts_of(
            verdict,
            settings,
            self._dataset.settings,
            examples,
            folder=self._run.folder,
            memory_bytes=available_memory() if settings.cache == "off" else self._free_at_start,
            kept=self._kept,
            epochs=self._epochs,
        )


def _worth_making(facts: Facts) -> list[Prediction]:
    """Return the changes that are worth making, and that a training under way can make: itself, or by its end.

    `facts` are about the epochs that are left.
    """
    by_dataset = declared(ChangesDataset).keys()
    minutes_left = facts.settings.epochs * facts.train_examples / max(facts.verdict.examples_per_s, 1e-9) / 60

    def pays(each: Prediction) -> bool:
        """Whether a new dataset takes less time than it saves. For one, kept images are decoded again."""
        saved = minutes_left * (1 - 1 / each.factor.value)
        return each.change.keys() <= by_dataset and not facts.keeps_decoded and each.costs.minutes < saved

    return [each for each in predictions(facts) if each.is_gain and (each.at_epoch or pays(each))]
