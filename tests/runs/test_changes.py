"""Changes of a training under way: what is refused, what is stored, and which values an epoch gets."""

import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.automatic import TrainingSettings, training_settings
from pipeline.errors import BadInput, DatasetError, SettingsError
from pipeline.runs.changes import (
    CONTINUES,
    Change,
    InEffect,
    as_numbers,
    changeable_settings,
    first_epoch,
    from_numbers,
    in_effect,
    load_changes,
    replace_changes,
    request_changes,
)
from pipeline.runs.files import CHANGES, OFFERS, RESULT, RUN, RUN_FORMAT
from pipeline.runs.offers import Offer, load_offers, save_offers
from tests.runs.one_change import request_change


def training(folder: Path, values: Mapping[str, Any]) -> Path:
    """Write the `run.json` of a training under way, and return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / RUN).write_text(json.dumps({"format": RUN_FORMAT, "settings": settings(values).model_dump()}))
    return folder


def settings(values: Mapping[str, Any]) -> TrainingSettings:
    return training_settings(values)


def test_a_request_waits_until_the_training_takes_it(tmp_path: Path):
    folder = training(tmp_path, {})
    requested = request_change(folder, "prefetch_batches", "16", "Ada")
    assert load_changes(folder) == [requested]
    assert requested.value == 16
    assert str(requested) == "from the next epoch on: prefetch_batches=16, requested by Ada"
    taken = Change(**{**vars(requested), "epoch": 3})
    replace_changes(folder, {requested: taken})
    assert load_changes(folder) == [taken]
    assert str(taken) == "from epoch 3 on: prefetch_batches=16, by Ada"


@pytest.mark.parametrize(
    ("values", "field", "value", "sentence"),
    [
        ({}, "prefetch_batches", "many", "prefetch_batches must be a whole number"),
        ({}, "prefetch_batches", True, "prefetch_batches must be a whole number"),
        ({}, "prefetch_batches", 0, "prefetch_batches must be greater than or equal to 1, got 0"),
        ({}, "prefetch_batches", 4, "prefetch_batches is 4 already: nothing changes"),
        ({}, "batch_size", 64, "batch_size cannot change in a training: the settings that can are shuffle_megabytes"),
        ({}, "no_setting", 1, "no_setting cannot change in a training"),
        ({}, "cache", "auto", "cache must be one of off, memory, disk to change in a training, got 'auto'"),
        ({"crop": "random_resized"}, "cache", "memory", "cache must be auto or off with crop=random_resized"),
        ({"example_kind": "table"}, "cache", "off", "cache cannot change in a training"),
        ({"advice": "off"}, "prefetch_batches", 16, "has advice=off, so it takes no changes"),
    ],
)
def test_what_cannot_change_is_refused(
    tmp_path: Path, values: Mapping[str, Any], field: str, value: object, sentence: str
):
    folder = training(tmp_path, values)
    with pytest.raises(BadInput, match=sentence):
        request_change(folder, field, value, "Ada")
    assert not (folder / CHANGES).exists()


def test_several_values_are_stored_together_or_not_at_all(tmp_path: Path):
    folder = training(tmp_path, {})
    with pytest.raises(SettingsError, match="cache must be one of"):
        request_changes(folder, {"prefetch_batches": "16", "cache": "auto"}, "Ada")
    assert load_changes(folder) == []
    same = settings({}).shuffle_megabytes
    requested = request_changes(folder, {"prefetch_batches": "16", "cache": "disk", "shuffle_megabytes": same}, "Ada")
    assert [change.words for change in requested] == ["prefetch_batches=16", "cache=disk"]
    assert load_changes(folder) == requested
    with pytest.raises(SettingsError, match="prefetch_batches is 16 and cache is disk already: nothing changes"):
        request_changes(folder, {"prefetch_batches": 16, "cache": "disk"}, "Ada")


def test_a_request_comes_with_what_the_training_promises_of_it(tmp_path: Path):
    folder = training(tmp_path, {})
    save_offers(folder, [Offer({"prefetch_batches": 16}, "1.6 times faster", (1.6, 1.5, 1.75))])
    requested = request_changes(folder, {"prefetch_batches": "16", "shuffle_megabytes": 8}, "Ada")
    assert [change.promised for change in requested] == [(1.6, 1.5, 1.75), ()]
    assert load_changes(folder) == requested


@pytest.mark.parametrize("promised", [[], [1.6], [1.6, 1.5, math.nan], [1.6, 1.5, math.inf], [1.6, 1.5, 10**400]])
def test_a_damaged_promise_leaves_the_request_readable(tmp_path: Path, promised: list[float]):
    folder = training(tmp_path, {})
    offer = {"change": {"prefetch_batches": 16}, "words": "w", "promised": promised}
    (folder / OFFERS).write_text(json.dumps({"offers": [offer]}))
    assert load_changes(folder) == [] == load_offers(folder)
    change = request_change(folder, "prefetch_batches", 16, by="Ada")
    assert load_changes(folder) == [change]


def test_nothing_changes_in_a_complete_training(tmp_path: Path):
    folder = training(tmp_path, {})
    (folder / RESULT).write_text("{}")
    with pytest.raises(BadInput, match="is complete, so nothing can change in it"):
        request_change(folder, "prefetch_batches", 16, "Ada")


def test_a_folder_without_a_training_is_named(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"it has no run\.json"):
        request_change(tmp_path, "prefetch_batches", 16, "Ada")


def test_requests_at_the_same_time_are_all_stored(tmp_path: Path):
    folder = training(tmp_path, {})
    with ThreadPoolExecutor(4) as pool:
        requests = [pool.submit(request_change, folder, "prefetch_batches", value, "Ada") for value in range(10, 18)]
        requested = {each.result() for each in requests}
    assert set(load_changes(folder)) == requested
    assert len(requested) == 8


def test_a_request_during_an_answer_stays(tmp_path: Path):
    folder = training(tmp_path, {})
    first = request_change(folder, "prefetch_batches", 16, "Ada")
    second = request_change(folder, "shuffle_megabytes", 16, "Ben")
    refused = Change(**{**vars(first), "refused": "no memory"})
    replace_changes(folder, {first: refused})
    assert load_changes(folder) == [refused, second]
    assert str(refused) == "prefetch_batches=16, requested by Ada, was refused: no memory"
    # A value that was refused can be requested again.
    request_change(folder, "prefetch_batches", 16, "Ada")


def test_the_name_of_a_person_stays_in_one_short_line(tmp_path: Path):
    assert request_change(training(tmp_path, {}), "cache", "off", "Ada\n" + 1000 * "x").by == ("Ada " + 196 * "x")


def test_an_epoch_gets_the_values_of_all_changes_before_it():
    changes = [
        Change("prefetch_batches", 16, 0.0, "Ada", epoch=2),
        Change("cache", "memory", 0.0, "Ada", epoch=3),
        Change("cache", "disk", 0.0, "Ada", refused="no space"),
        Change("prefetch_batches", 32, 0.0, "Ada", epoch=4),
        Change("prefetch_batches", 64, 0.0, "Ada"),
    ]
    own = settings({})
    effects = [in_effect(own, changes, epoch) for epoch in range(1, 6)]
    assert [each.settings.prefetch_batches for each in effects] == [4, 16, 16, 32, 32]
    assert [each.settings.cache for each in effects] == ["auto", "auto", "memory", "memory", "memory"]
    assert [each.kept_from for each in effects] == [1, 1, 3, 3, 3]
    assert effects[0] == InEffect(own)
    for effect in effects:
        assert from_numbers(own, as_numbers(effect)) == effect


def test_a_value_that_somebody_wrote_into_the_file_is_checked(tmp_path: Path):
    (tmp_path / CHANGES).write_text(
        '{"field": "prefetch_batches", "value": -1, "at": 0, "by": "x", "epoch": 1}\n'
        '{"field": "seed", "value": 1, "at": 0, "by": "x", "epoch": 1}\nno json\n[]\n'
    )
    changes = load_changes(tmp_path)
    assert [change.field for change in changes] == ["prefetch_batches"]
    with pytest.raises(SettingsError, match="prefetch_batches must be greater than or equal to 1"):
        in_effect(settings({}), changes, 1)


@pytest.mark.parametrize(
    "damaged",
    [
        {"at": "x"},
        {"at": None},
        {"by": 1},
        {"refused": None},
        {"epoch": 1.5},
        {"epoch": -1},
        {"epoch": 10_001},
        {"measured": "x"},
        {"measured": math.nan},
        {"promised": [1.0]},
        {"promised": [1.0, 1.0, math.inf]},
        {"promised": 1},
        {"value": math.inf},
        {"value": None},
        {"field": ["cache"]},
        {"other": 1},
    ],
)
def test_a_line_with_a_field_of_another_type_is_left_out(tmp_path: Path, damaged: dict[str, object]):
    whole = Change("prefetch_batches", 16, 1.0, "Ada", epoch=2, promised=(1.5, 1.2, 1.8), measured=1.4)
    lines = [json.dumps(asdict(whole) | damaged), json.dumps(asdict(whole))]
    (tmp_path / CHANGES).write_text("\n".join(lines) + "\n")
    assert load_changes(tmp_path) == [whole]


@pytest.mark.parametrize(("epochs", "first"), [([], 1), ([0], 1), ([3], 3)])
def test_a_training_begins_with_its_first_epoch_or_a_later_one(epochs: list[int], first: int):
    assert first_epoch([Change(CONTINUES, "prepare=resize", 1.0, "Ada", epoch=epoch) for epoch in epochs]) == first


def test_only_settings_of_the_input_and_of_checkpoints_change():
    of_table = ["shuffle_megabytes", "prefetch_batches", "checkpoint_minutes", "checkpoint_steps"]
    assert changeable_settings("table") == of_table
    assert changeable_settings("images") == [of_table[0], "cache", *of_table[1:]]
