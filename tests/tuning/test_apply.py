"""The change that a training offers on its tab, and makes by itself with advice=apply."""

import json
from pathlib import Path

import pytest

from pipeline.config.automatic import training_settings
from pipeline.dataset.manifest import Dataset, Split
from pipeline.records.format import RecordFormat
from pipeline.runs.files import OFFERS
from pipeline.runs.run import Run
from pipeline.tuning.apply import Advisor
from pipeline.tuning.stages import save_stages
from tests.tuning.test_predictions import DECODING, KEPT, SETTINGS

EPOCHS = 5
_SPLITS = {"train": Split(900, 1, {"a": 900}, ()), "validation": Split(100, 1, {"a": 100}, ())}
DATASET = Dataset("images", "1" * 16, ("a",), {}, RecordFormat(), {}, _SPLITS, {}, {}, {}, {}, {}, {})


def advisor(folder: Path, **values: object) -> Advisor:
    """Return the advisor of a training that is limited by decoding, whose stages were measured."""
    settings = training_settings({**SETTINGS, "crop": "random", "workspace": str(folder), **values})
    save_stages(folder, KEPT)
    return Advisor(Run(folder, "run", "", "1", settings, {"memory_bytes": 1e10}, {}, 1), DATASET)


@pytest.mark.parametrize(
    ("values", "change"),
    [
        ({}, {"cache": "memory"}),
        ({"advice": "off"}, {}),
        ({"crop": "random_resized"}, {}),
    ],
)
def test_the_best_change_surely_gains_and_needs_no_dataset(
    tmp_path: Path, values: dict[str, str], change: dict[str, str]
):
    advised = advisor(tmp_path, **values)
    assert advised.best_change(advised._settings, EPOCHS) == {}  # Nothing is known before the first verdict.
    advised.format_verdict(DECODING)
    assert advised.best_change(advised._settings, EPOCHS) == change
    offers = json.loads((tmp_path / OFFERS).read_text())["offers"]
    assert [offer["change"] for offer in offers][:1] == ([change] if change else [])
    assert all("times faster" in offer["words"] for offer in offers)


def test_what_has_changed_is_not_advised_again(tmp_path: Path):
    advised = advisor(tmp_path)
    advised.best_change(advised._settings.model_copy(update={"cache": "memory"}), EPOCHS)
    sentence = advised.format_verdict(DECODING)
    assert "cache" not in sentence
    assert advised.best_change(advised._settings, EPOCHS) == {}
