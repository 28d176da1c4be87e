"""The values that Tenfold chooses for settings that are empty or `auto`."""

import re
from typing import Any

import pytest

from pipeline.config.automatic import AUTOMATIC, TrainingSettings, deciding_values, with_automatic_values
from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError


def of_table(rows: int, **values: Any) -> TrainingSettings:
    return with_automatic_values(settings_from({"example_kind": "table", **values}), rows)


def test_images_have_the_values_of_the_documentation():
    settings = with_automatic_values(settings_from({}), 1_000_000)
    assert {name: getattr(settings, name) for name in AUTOMATIC} == {
        "model": "small_cnn",
        "epochs": 10,
        "batch_size": 32,
        "learning_rate": 0.001,
        "learning_rate_schedule": "constant",
        "weight_decay": 0.0,
        "patience": 0,
    }


@pytest.mark.parametrize(
    ("rows", "batch_size"),
    [(1, 32), (400, 32), (1_600, 64), (16_000, 256), (1_600_000, 2048), (100_000_000, 4096)],
)
def test_the_batch_size_follows_the_number_of_rows(rows: int, batch_size: int):
    assert of_table(rows).batch_size == batch_size


@pytest.mark.parametrize("rows", [150_000, 159_999, 160_000, 170_000])
def test_tables_of_about_200_000_rows_have_one_batch_size(rows: int):
    """Of a daily table, one training had 1,024 rows in a batch, and the next one 512."""
    assert of_table(rows).batch_size == 1024


def test_a_training_on_more_rows_takes_fewer_epochs():
    epochs = [of_table(rows).epochs for rows in (10, 1_000, 16_000, 160_000, 10_000_000)]
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[0] > 3 * epochs[-1]


@pytest.mark.parametrize("kind", ["images", "table"])
@pytest.mark.parametrize("servers", [1, 2, 3, 5, 40])
def test_each_server_gets_a_power_of_two(kind: str, servers: int):
    settings = settings_from({"example_kind": kind, "num_training_servers": servers})
    share, rest = divmod(with_automatic_values(settings, 160_000).batch_size, servers)
    assert (rest, share & (share - 1)) == (0, 0)


@pytest.mark.parametrize(
    "given",
    [
        {"batch_size": 7},
        {"epochs": 3},
        {"learning_rate": 0.5},
        {"learning_rate_schedule": "constant"},
        {"weight_decay": 0.0},
        {"patience": 0},
        {"model": "mine:model"},
    ],
)
def test_values_that_are_set_stay(given: dict[str, Any]):
    chosen, settings = of_table(5_000), of_table(5_000, **given)
    [(name, value)] = given.items()
    assert getattr(settings, name) == value
    assert getattr(chosen, name) != value


def test_chosen_values_follow_those_that_are_set():
    """More steps in each epoch need fewer epochs."""
    assert of_table(5_000, batch_size=8).epochs < of_table(5_000).epochs
    assert of_table(5_000, batch_size=8).learning_rate < of_table(5_000).learning_rate
    assert of_table(5_000, epochs=4).patience < of_table(5_000).patience


def test_settings_with_chosen_values_are_chosen_once():
    settings = of_table(5_000)
    assert with_automatic_values(settings, 9) == settings
    assert with_automatic_values(settings_from(settings.model_dump()), 9) == settings


def test_a_value_that_is_set_to_the_chosen_one_is_the_same_training():
    settings = of_table(160_000)
    assert deciding_values(of_table(160_000, batch_size=1024)) == deciding_values(settings)
    assert deciding_values(of_table(160_000, batch_size=512)) != deciding_values(settings)


def test_every_chosen_value_decides_a_training():
    assert set(AUTOMATIC) < set(deciding_values(of_table(1)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("table", "(100), which follow from the number of rows, got 100"),
        ("images", "(10), the default for images, got 1"),
    ],
)
def test_a_warm_up_that_is_longer_than_the_chosen_epochs_is_refused(kind: str, message: str):
    settings = settings_from({"example_kind": kind, "warmup_epochs": 100.0})  # They may be fewer than the epochs.
    with pytest.raises(SettingsError, match=re.escape(f"warmup_epochs must be less than epochs {message}")):
        with_automatic_values(settings, 1_000)
