"""What a training under way can change by itself, predicted with each verdict on it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline import storage
from pipeline.config.automatic import TrainingSettings
from pipeline.dataset.manifest import Dataset
from pipeline.monitor.verdict import Verdict
from pipeline.runs.files import OFFERS
from pipeline.runs.run import Run
from pipeline.tuning.advice import with_advice
from pipeline.tuning.predictions import Prediction, facts_of, predictions


class Advisor:
    """Predicts what changes of a training gain, and offers those that it can make at its next epoch."""

    def __init__(self, run: Run, dataset: Dataset) -> None:
        self._run, self._dataset = run, dataset
        self._settings = run.settings
        """Those of the last epoch, of which a verdict is."""
        self._found: Sequence[Prediction] = ()

    def format_verdict(self, verdict: Verdict) -> str:
        """Return the verdict as a sentence with the next thing to do. Store the changes that the tab offers."""
        run, dataset = self._run, self._dataset
        if run.settings.advice != "off":
            examples = {name: split.examples for name, split in dataset.splits.items()}
            memory = run.host.get("memory_bytes", 0)
            facts = facts_of(
                verdict, self._settings, dataset.settings, examples, folder=run.folder, memory_bytes=memory
            )
            self._found = predictions(facts)
        if run.server.is_chief:
            offers = [{"change": dict(each.change), "words": each.words()} for each in _offered(self._found)]
            storage.write_json(run.folder / OFFERS, {"offers": offers})
        return with_advice(verdict, self._settings, dataset.settings, self._found)

    def best_change(self, settings: TrainingSettings) -> Mapping[str, Any]:
        """Return the values to change before the next epoch; none if no change surely gains.

        `settings` are those of the epoch before.
        """
        self._settings = settings
        return next((each.change for each in _offered(self._found)), {})


def _offered(found: Iterable[Prediction]) -> list[Prediction]:
    """Return the changes that are worth making, and that a training under way can make."""
    return [each for each in found if each.at_epoch and each.is_gain]
