"""The input of a training whose settings change between two epochs."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from pipeline import storage
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import StorageError
from pipeline.input import cache, order
from pipeline.runs.changes import (
    Change,
    announce_dataset,
    load_changes,
    replace_changes,
    request_changes,
    request_dataset,
    take_over,
)
from pipeline.runs.files import CHANGES, RUN
from pipeline.runs.launch import prepare_run
from pipeline.runs.offers import Offer, save_offers
from pipeline.runs.run import Run
from pipeline.storage import gcs as google
from pipeline.training import current_input
from pipeline.training.assembly import Training
from pipeline.training.current_input import CurrentInput
from pipeline.training.fit import _change
from pipeline.training.inputs import ServerData
from pipeline.training.state.checkpoint import Position
from standins.fake_gcs import FakeGcs
from tests.runs.one_change import request_change

EXAMPLES, BATCH, STEPS = 34, 8, 5
OFFER = Offer({"prefetch_batches": 16}, "1.6 times faster", (1.6, 1.5, 1.75))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    places = {"workspace": str(tmp_path), "local_folder": str(tmp_path)}
    return settings_from({**places, "image_size": 32, "batch_size": BATCH, "epochs": 4, "cache": "off"})


def opened(run: Run, published: Path, start: Position | None = None) -> CurrentInput:
    """Return the input of an attempt on one device, without a model."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    training: Any = SimpleNamespace(
        run=run,
        start=start or Position(),
        steps_per_epoch=STEPS,
        batch_size=BATCH,
        strategy=strategy,
        steps=SimpleNamespace(train_several=None),
        on_devices=lambda batches: batches,
    )
    data = ServerData(run.settings, published, load(published), run.server, lambda: False)
    return CurrentInput(cast(Training, training), data)


def taken(current: CurrentInput, steps: int) -> Iterator[list[np.ndarray]]:
    """Yield the next batches as arrays: images, labels, weights, the mirrored ones and the numbers."""
    for batch in islice(current.batches, steps):
        yield [each.numpy() for each in batch]


def assert_alike(batches: list[list[np.ndarray]], others: list[list[np.ndarray]]) -> None:
    for one, other in zip(batches, others, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def numbers(batches: list[list[np.ndarray]]) -> list[int]:
    """Return the numbers of the examples of an epoch, without the padding."""
    return [int(number) for batch in batches for number, weight in zip(batch[4], batch[2], strict=True) if weight]


@pytest.mark.parametrize(
    ("change", "same_order"),
    [("cache=memory", False), ("cache=disk", False), ("prefetch_batches=9", True), ("shuffle_megabytes=1", False)],
)
def test_an_attempt_that_goes_on_after_a_change_reads_the_same_batches(
    settings: Settings, published: Path, change: str, same_order: bool, monkeypatch: pytest.MonkeyPatch
):
    """It goes on in the middle of the epoch of the change, and at the end of that epoch."""
    # The small images of tests all fit into the smallest buffer, whose content would decide nothing.
    monkeypatch.setattr(order, "shuffle_elements", lambda _, size: min(EXAMPLES, size // 200_000))
    run = prepare_run(settings, published, "run")
    with opened(run, published) as current:
        assert current.begin(1, 0)
        assert numbers([*taken(current, STEPS)]) != list(range(EXAMPLES))
        request_change(run.folder, *change.split("="), by="Ada")
        assert current.begin(2, STEPS)
        whole = [*taken(current, STEPS)]
        assert not current.begin(3, 2 * STEPS)
        whole += taken(current, 2 * STEPS)
    for epoch in range(3):
        assert sorted(numbers(whole[epoch * STEPS :][:STEPS])) == list(range(EXAMPLES))
    assert str(load_changes(run.folder)[0]) == f"from epoch 2 on: {change}, by Ada"

    for epoch, step in ((2, STEPS + 2), (2, 2 * STEPS), (3, 2 * STEPS)):
        with opened(run, published, Position(epoch - 1, step, keeps=False)) as current:
            assert current.begin(epoch, step)
            assert_alike([*taken(current, 4 * STEPS - step)], whole[step - STEPS :])

    # A training without the change. Images that are kept come in another order from their second epoch on.
    (run.folder / CHANGES).unlink()
    with opened(run, published, Position(2, 2 * STEPS)) as current:
        current.begin(3, 2 * STEPS)
        assert (numbers([*taken(current, STEPS)]) == numbers(whole[STEPS : 2 * STEPS])) == same_order


def test_images_that_do_not_fit_are_refused_and_the_training_goes_on(
    settings: Settings, published: Path, monkeypatch: pytest.MonkeyPatch
):
    run = prepare_run(settings, published, "run")
    with opened(run, published) as current:
        current.begin(1, 0)
        request_changes(run.folder, {"cache": "memory", "shuffle_megabytes": 1}, by="Ada")
        request_change(run.folder, "prefetch_batches", 2, by="Ben")
        monkeypatch.setattr(cache, "available_memory", lambda: 0)
        assert current.begin(2, STEPS)
        assert (current.effect.settings.cache, current.effect.settings.prefetch_batches) == ("off", 2)
        assert not current.inputs.keeps
        refused, together, other = load_changes(run.folder)
        assert refused.refused.startswith("decoded images need about ")
        assert together.refused == refused.refused
        assert other.epoch == 2
        assert len([*taken(current, STEPS)]) == STEPS


def test_an_attempt_keeps_images_although_less_memory_is_free(
    settings: Settings, published: Path, monkeypatch: pytest.MonkeyPatch
):
    run = prepare_run(settings, published, "run")
    with opened(run, published) as current:
        current.begin(1, 0)
        request_change(run.folder, "cache", "memory", by="Ada")
        current.begin(2, STEPS)
        assert current.inputs.keeps
    monkeypatch.setattr(cache, "available_memory", lambda: 0)
    with opened(run, published, Position(1, STEPS + 1, keeps=False)) as current:
        current.begin(2, STEPS + 1)
        assert current.inputs.keeps


def test_an_input_that_is_opened_again_keeps_its_images_although_less_memory_is_free(
    settings: Settings, published: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another program takes the memory meanwhile. Another setting must not end the training."""
    run = prepare_run(settings.model_copy(update={"cache": "memory"}), published, "run")
    with opened(run, published) as current:
        current.begin(1, 0)
        monkeypatch.setattr(cache, "available_memory", lambda: 0)
        request_change(run.folder, "prefetch_batches", 2, by="Ada")
        assert current.begin(2, STEPS)
        assert current.effect.settings.prefetch_batches == 2
        assert current.inputs.keeps


def test_another_order_of_images_that_a_full_disk_keeps_is_refused(
    settings: Settings, published: Path, monkeypatch: pytest.MonkeyPatch
):
    run = prepare_run(settings.model_copy(update={"cache": "disk"}), published, "run")
    with opened(run, published) as current:
        current.begin(1, 0)
        assert len([*taken(current, STEPS), *current.validation]) > STEPS  # All images are kept.
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        request_change(run.folder, "shuffle_megabytes", 1, by="Ada")
        request_change(run.folder, "prefetch_batches", 2, by="Ben")
        assert current.begin(2, STEPS)
        refused, other = load_changes(run.folder)
        assert refused.refused.startswith("decoded images need about ")
        assert (other.epoch, other.refused) == (2, "")
        assert current.effect.settings.shuffle_megabytes == settings.shuffle_megabytes


def test_a_change_whose_gain_was_stored_meanwhile_is_not_taken_again(settings: Settings, published: Path):
    run = prepare_run(settings, published, "run")
    with opened(run, published) as current:
        current.begin(1, 0)
        request_change(run.folder, "prefetch_batches", 2, by="Ada")
        current.begin(2, STEPS)
        [change] = load_changes(run.folder)
        replace_changes(run.folder, {change: replace(change, measured=1.5)})
        current.begin(3, 2 * STEPS)
    assert [(each.epoch, each.measured) for each in load_changes(run.folder)] == [(2, 1.5)]


def test_a_request_waits_for_the_end_of_an_epoch_that_has_begun(settings: Settings, published: Path):
    run = prepare_run(settings, published, "run")
    request_change(run.folder, "prefetch_batches", 2, by="Ada")
    with opened(run, published, Position(0, 2)) as current:
        current.begin(1, 2)
        assert current.effect.settings.prefetch_batches == 4
        assert current.begin(2, STEPS)
        assert current.effect.settings.prefetch_batches == 2


def test_a_change_of_the_checkpoints_does_not_open_the_input_again(settings: Settings, published: Path):
    run = prepare_run(settings, published, "run")
    with opened(run, published) as current:
        current.begin(1, 0)
        before = current.inputs
        request_change(run.folder, "checkpoint_steps", 7, by="Ada")
        assert current.begin(2, STEPS)
        assert current.effect.settings.checkpoint_steps == 7
        assert current.inputs is before


def test_the_loop_keeps_its_stack_of_batches_unless_the_input_is_opened_again(settings: Settings, published: Path):
    """A stack holds batches of the next epoch, too. Without them, their examples would never be read."""
    run = prepare_run(settings, published, "run")
    taken: list[Any] = []
    followed: list[int] = []
    # Only what `_change` uses: a real loop needs a model, and shows the loss of a batch only in its examples.
    loop: Any = SimpleNamespace(step=STEPS, take_from=lambda *given: taken.append(given))
    keeper: Any = SimpleNamespace(follow=lambda settings, _: followed.append(settings.checkpoint_steps))
    with opened(run, published) as current:
        current.begin(1, 0)
        request_change(run.folder, "checkpoint_steps", 7, by="Ada")
        _change(current, 2, loop, keeper, lambda *_: [])
        assert (taken, followed) == ([], [7])
        request_change(run.folder, "prefetch_batches", 5, by="Ada")
        loop.step = 2 * STEPS
        _change(current, 3, loop, keeper, lambda *_: [])
        assert (len(taken), followed) == (1, [7, 7])


@pytest.mark.parametrize(("advice", "value"), [("show", 4), ("apply", 16)])
def test_a_training_makes_the_best_change_only_if_it_may(settings: Settings, published: Path, advice: str, value: int):
    run = prepare_run(settings.model_copy(update={"advice": advice}), published, "run")
    with opened(run, published) as current:
        current.begin(1, 0)
        current.request(2, lambda *_: [{"prefetch_batches": 16}])
        current.begin(2, STEPS)
        assert current.effect.settings.prefetch_batches == value
        # A person decides against it, and the advice stays with that.
        if advice == "apply":
            request_change(run.folder, "prefetch_batches", 8, by="Ada")
            current.request(2, lambda *_: [{"prefetch_batches": 16}])
            current.begin(3, 2 * STEPS)
            assert current.effect.settings.prefetch_batches == 8


def test_a_change_keeps_its_promise_although_the_training_offers_it_no_more(settings: Settings, published: Path):
    """Each verdict writes the offers again, and so does a training that was killed."""
    run = prepare_run(settings, published, "run")
    save_offers(run.folder, [OFFER])
    with opened(run, published) as current:
        current.begin(1, 0)
        request_change(run.folder, "prefetch_batches", 16, by="Ada")
    save_offers(run.folder, [])
    with opened(run, published, Position(1, STEPS)) as current:
        current.begin(2, STEPS)
    assert [(each.epoch, each.promised) for each in load_changes(run.folder)] == [(2, OFFER.promised)]


def test_the_own_change_of_a_training_in_a_bucket_has_its_promise(settings: Settings, published: Path, gcs: FakeGcs):
    """Its offers reach the bucket later."""
    run = prepare_run(settings.model_copy(update={"workspace": "gs://bucket/w", "advice": "apply"}), published, "run")
    storage.write_json(run.training / RUN, json.loads((run.folder / RUN).read_text()))
    save_offers(run.folder, [OFFER])
    with opened(run, published) as current:
        current.begin(1, 0)
        current.request(2, lambda *_: [OFFER.change])
    assert [each.promised for each in load_changes(run.training)] == [OFFER.promised]


def test_a_training_makes_its_own_change_an_epoch_after_that_of_a_person(settings: Settings, published: Path):
    """The record could not tell which one of two made the difference. The build of a dataset changes nothing yet."""
    run = prepare_run(settings.model_copy(update={"advice": "apply"}), published, "run")
    announce_dataset(run.folder, {"prepare": "raw"}, by="Ada")
    with opened(run, published) as current:
        current.begin(1, 0)
        request_change(run.folder, "shuffle_megabytes", 1, by="Ada")
        for epoch in (2, 3):
            current.request(epoch, lambda *_: [OFFER.change])
            current.begin(epoch, (epoch - 1) * STEPS)
    taken = [(each.field, each.epoch) for each in load_changes(run.folder)[1:]]
    assert taken == [("shuffle_megabytes", 2), ("prefetch_batches", 3)]


def test_a_change_that_was_refused_makes_room_for_the_next_one(
    settings: Settings, published: Path, monkeypatch: pytest.MonkeyPatch
):
    run = prepare_run(settings.model_copy(update={"advice": "apply"}), published, "run")
    offered = [{"cache": "memory"}, {"cache": "disk"}, {"prefetch_batches": 16}]
    monkeypatch.setattr(cache, "available_memory", lambda: 0)
    with opened(run, published) as current:
        current.begin(1, 0)
        for epoch in (2, 3):
            current.request(epoch, lambda *_: offered)
            current.begin(epoch, (epoch - 1) * STEPS)
    assert [(each.words, bool(each.refused)) for each in load_changes(run.folder)] == [
        ("cache=memory", True),
        ("prefetch_batches=16", False),
    ]


@pytest.mark.parametrize(
    ("is_early", "is_continued", "why"),
    [
        (False, False, "the training was in its last epoch"),
        (True, False, "the training has ended early"),
        (True, True, "another training continues this one: request it there"),
    ],
)
def test_a_request_that_comes_too_late_is_refused_with_the_reason(
    settings: Settings, published: Path, is_early: bool, is_continued: bool, why: str
):
    run = prepare_run(settings, published, "run")
    with opened(run, published) as current:
        current.begin(2, STEPS)
        if is_continued:
            request_dataset(run.folder, {"prepare": "raw"}, by="Ben")
            assert current.is_continued(3, 2 * STEPS)
        request_change(run.folder, "prefetch_batches", 2, by="Ada")
        current.refuse_rest(is_early)
    assert load_changes(run.folder)[-1].refused == why


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "requested cannot be read" in line]


def test_an_outage_of_the_bucket_delays_an_epoch_once_and_by_seconds(
    settings: Settings,
    published: Path,
    gcs: FakeGcs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    run = prepare_run(settings.model_copy(update={"workspace": "gs://bucket/w"}), published, "run")
    monkeypatch.setattr(google, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(google, "DEADLINE_S", 2.0)
    monkeypatch.setattr(current_input, "READ_S", 0.3)
    monkeypatch.setattr(storage, "LATE_S", 60.0)  # A busy machine ends the requests late.
    with opened(run, published) as current:
        current.begin(1, 0)
        outage = gcs.fail("status", on="get", matches="changes", times=None)
        assert not current.is_continued(2, STEPS)
        fired = outage.fired
        assert not current.begin(2, STEPS)
        assert outage.fired == fired > 0
    [line] = warnings_in(caplog)
    assert "before epoch 2, so the training goes on without them" in line
    assert " within 0.3 s" in line


def test_a_read_that_failed_is_repeated_before_the_next_epoch(
    settings: Settings, published: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    run = prepare_run(settings.model_copy(update={"advice": "apply"}), published, "run")
    reads: list[object] = []

    def failed(place: object) -> list[Change]:
        reads.append(place)
        raise StorageError("the bucket did not answer")

    with opened(run, published) as current:
        current.begin(1, 0)
        request_change(run.folder, "prefetch_batches", 2, by="Ada")
        with monkeypatch.context() as patched:
            patched.setattr(current_input, "load_changes", failed)
            assert not current.is_continued(2, STEPS)
            current.request(2, lambda *_: [{"prefetch_batches": 16}])
            assert not current.begin(2, STEPS)
        assert (len(reads), len(warnings_in(caplog))) == (1, 1)
        assert current.begin(3, 2 * STEPS)
        assert current.effect.settings.prefetch_batches == 2


def test_a_request_that_could_not_be_read_before_the_last_epoch_is_refused_after_it(
    settings: Settings, published: Path, monkeypatch: pytest.MonkeyPatch
):
    run = prepare_run(settings, published, "run")

    def failed(place: object) -> list[Change]:
        raise StorageError("the bucket did not answer")

    with opened(run, published) as current:
        current.begin(3, 2 * STEPS)
        request_change(run.folder, "prefetch_batches", 2, by="Ada")
        with monkeypatch.context() as patched:
            patched.setattr(current_input, "load_changes", failed)
            assert not current.begin(4, 3 * STEPS)
        current.refuse_rest(is_early=False)
    assert load_changes(run.folder)[0].refused == "the training was in its last epoch"


def test_an_attempt_that_only_evaluates_takes_no_request(settings: Settings, published: Path):
    run = prepare_run(settings, published, "run")
    request_change(run.folder, "prefetch_batches", 2, by="Ada")
    with opened(run, published, Position(4, 4 * STEPS)) as current:
        current.begin(5, 4 * STEPS)
        assert current.effect.settings.prefetch_batches == 4
        current.refuse_rest(is_early=False)
    assert load_changes(run.folder)[0].refused == "the training was in its last epoch"


def test_an_attempt_with_advice_off_goes_on_with_the_changes_before_it(settings: Settings, published: Path):
    run = prepare_run(settings, published, "run")
    with opened(run, published) as current:
        current.begin(1, 0)
        request_change(run.folder, "cache", "memory", by="Ada")
        current.begin(2, STEPS)
        whole = [*taken(current, STEPS)]
    run = prepare_run(settings.model_copy(update={"advice": "off"}), published, "run")
    with opened(run, published, Position(1, STEPS + 2, keeps=False)) as current:
        current.begin(2, STEPS + 2)
        assert current.effect.settings.cache == "memory"
        assert_alike([*taken(current, STEPS - 2)], whole[2:])


def test_nothing_changes_with_advice_off(settings: Settings, published: Path):
    run = prepare_run(settings, published, "run")
    request_change(run.folder, "prefetch_batches", 2, by="Ada")
    run = prepare_run(settings.model_copy(update={"advice": "off"}), published, "run")
    with opened(run, published) as current:
        current.begin(1, 0)
        assert current.effect.settings.prefetch_batches == 4
    assert load_changes(run.folder)[0].is_requested


def test_a_training_that_continues_another_one_trains_an_epoch_before_it_ends_for_a_third_one(
    settings: Settings, published: Path
):
    """The request comes while it loads. Without an epoch of its own, it would have no best model."""
    run = prepare_run(settings, published, "run")
    take_over(run.folder, Change("dataset", "compression=gzip", at=1.0, by="Ada", epoch=3))
    request_dataset(run.folder, {"prepare": "raw"}, by="Ben")
    with opened(run, published, Position(2, 2 * STEPS)) as current:
        current.begin(3, 2 * STEPS)
        assert not current.is_continued(3, 2 * STEPS)
        assert load_changes(run.folder)[1].is_requested
        assert current.is_continued(4, 3 * STEPS)
    assert [change.epoch for change in load_changes(run.folder)] == [3, 4]


def test_a_training_goes_on_while_a_dataset_is_built_for_another_one(settings: Settings, published: Path):
    run = prepare_run(settings, published, "run")
    announce_dataset(run.folder, {"prepare": "raw"}, by="Ada")
    before = load_changes(run.folder)
    with opened(run, published) as current:
        current.begin(1, 0)
        assert not current.is_continued(2, STEPS)
        assert not current.begin(2, STEPS)
        assert load_changes(run.folder) == before
        current.refuse_rest(is_early=False)
    assert [change.refused for change in load_changes(run.folder)] == ["the training was in its last epoch"]


def test_an_attempt_with_advice_off_ends_before_the_epoch_that_the_one_before_it_has_stored(
    settings: Settings, published: Path
):
    run = prepare_run(settings, published, "run")
    request_dataset(run.folder, {"prepare": "raw"}, by="Ada")
    with opened(run, published, Position(1, STEPS)) as current:
        assert current.is_continued(2, STEPS)
    run = prepare_run(settings.model_copy(update={"advice": "off"}), published, "run")
    with opened(run, published, Position(1, STEPS)) as current:
        assert current.is_continued(2, STEPS)


def test_a_training_with_advice_off_does_not_end_for_another_one(settings: Settings, published: Path):
    run = prepare_run(settings, published, "run")
    request_dataset(run.folder, {"prepare": "raw"}, by="Ada")
    run = prepare_run(settings.model_copy(update={"advice": "off"}), published, "run")
    with opened(run, published, Position(1, STEPS)) as current:
        assert not current.is_continued(2, STEPS)
    assert load_changes(run.folder)[0].is_requested
