"""With advice=apply, a training is continued on a new dataset if that is the best change that it offers."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.settings import settings_from
from pipeline.errors import BadInput, StorageError
from pipeline.runs import advised
from pipeline.runs.advised import AdvisedDataset
from pipeline.runs.changes import (
    ADVICE,
    announce_dataset,
    load_changes,
    replace_changes,
    request_changes,
    withdraw_dataset,
)
from pipeline.runs.files import CHANGES
from pipeline.runs.launch import prepare_run
from pipeline.runs.offers import Offer, save_offers
from pipeline.runs.run import Run
from tests.conftest import MakeImages
from tests.published import publish

RESIZED = {"prepare": "resize", "prepare_size": 36}
PREFETCHED = {"prefetch_batches": 16}


@pytest.fixture
def run(make_images: MakeImages, tmp_path: Path) -> Run:
    """A training under way, without its process."""
    source = make_images({"a": 12, "b": 12})
    values = {"workspace": str(tmp_path), "source_uri": str(source), "epochs": 5}
    return prepare_run(settings_from(values), publish(source, tmp_path), "run")


class Started:
    """Collects what is started."""

    def __init__(self, error: Exception | None = None) -> None:
        self.values: list[Any] = []
        self.error = error
        self.advised = AdvisedDataset(self)

    def __call__(self, run: Run, values: Any) -> None:
        self.values.append(values)
        if self.error:
            raise self.error

    def after(self, run: Run, *changes: Any) -> list[Any]:
        """Return what is started in all if the training offers these changes, the best one first."""
        save_offers(run.folder, [Offer(change, "1.6 times faster", (1.6, 1.5, 1.75)) for change in changes])
        self.advised.look(run)
        return self.values


def test_the_best_change_is_started_once_if_it_needs_a_new_dataset(run: Run):
    started = Started()
    assert started.after(run) == []
    assert started.after(run, PREFETCHED, RESIZED) == []
    assert started.after(run, RESIZED, PREFETCHED) == [RESIZED]
    assert started.after(run, RESIZED) == [RESIZED]


def test_another_change_comes_first(run: Run):
    """Its gain could not be measured otherwise."""
    started = Started()
    [request] = request_changes(run.training, PREFETCHED, "Ada")
    assert started.after(run, RESIZED) == []
    replace_changes(run.training, {request: request.__class__(**{**request.__dict__, "epoch": 2})})
    assert started.after(run, RESIZED) == [RESIZED]


@pytest.mark.parametrize("is_refused", [False, True])
def test_what_a_person_asked_for_is_not_started_again(run: Run, is_refused: bool):
    started = Started()
    build = announce_dataset(run.training, {"prepare": "raw"}, "Ada")
    if is_refused:
        withdraw_dataset(run.training, build.at, "its source is gone")
    assert started.after(run, RESIZED) == []
    (run.training / CHANGES).unlink()
    assert load_changes(run.training) == []
    assert started.after(run, RESIZED) == []  # It is decided.


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_a_build_that_the_advice_began_is_begun_again(run: Run, is_withdrawn: bool):
    """The command was stopped in the middle of it."""
    build = announce_dataset(run.training, {"prepare": "resize"}, ADVICE)
    if is_withdrawn:
        withdraw_dataset(run.training, build.at, "the build of its dataset has failed")
    assert Started().after(run, RESIZED) == [RESIZED]


def test_an_outage_at_the_start_is_no_decision(run: Run):
    started = Started(StorageError("the bucket does not answer"))
    assert started.after(run, RESIZED) == [RESIZED]
    started.error = None
    assert started.after(run, RESIZED) == [RESIZED] * 2
    assert started.after(run, RESIZED) == [RESIZED] * 2


def test_what_cannot_be_continued_is_said_once(run: Run, caplog: pytest.LogCaptureFixture):
    started = Started(BadInput("the training has callbacks"))
    with caplog.at_level(logging.WARNING):
        assert started.after(run, RESIZED) == [RESIZED] == started.after(run, RESIZED)
    assert caplog.messages == [
        "the training is not continued on a new dataset, as the advice is: the training has callbacks"
    ]


def test_an_outage_costs_a_warning(run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    started = Started()

    def fail(_: Any) -> Any:
        raise StorageError("the bucket does not answer")

    with monkeypatch.context() as outage:
        outage.setattr(advised, "load_changes", fail)
        assert started.after(run, RESIZED) == []
    assert "is unknown until the next look: the bucket does not answer" in caplog.text
    assert started.after(run, RESIZED) == [RESIZED]


def test_offers_of_another_user_are_no_error(run: Run):
    started = Started()
    (run.folder / "offers.json").write_text(
        json.dumps({"offers": [{"change": {}, "words": "", "promised": [1, 1, 1]}]})
    )
    started.advised.look(run)
    assert started.values == []
