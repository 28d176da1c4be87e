"""Which inputs are compared, and which datasets they need."""

from typing import get_args

import pytest

from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError
from pipeline.tuning.contenders import ACCELERATORS, CONTENDERS, dataset_settings, require_comparable
from pipeline.tuning.options import ComparisonOptions


@pytest.mark.parametrize(
    ("values", "contenders", "expected"),
    [
        (
            {},
            CONTENDERS,
            {
                "keep": ("flowers-inputs-keep", 256),
                "resize": ("flowers-inputs-resize", 110),
                "raw": ("flowers-inputs-raw", 110),
            },
        ),
        ({}, ["files", "shards"], {"keep": ("flowers-inputs-keep", 256)}),
        (
            {"prepare": "resize", "prepare_size": 110},
            ["shards", "resized"],
            {"keep": ("flowers-inputs-keep", 110), "resize": ("flowers-inputs-resize", 110)},
        ),
        (
            {"prepare": "resize"},
            ["resized", "pixels"],
            {"resize": ("flowers-inputs-resize", 110), "raw": ("flowers-inputs-raw", 110)},
        ),
    ],
)
def test_each_kind_of_shards_is_a_dataset_of_its_own(values: dict, contenders: list[str], expected: dict):
    found = dataset_settings(settings_from({"dataset_name": "flowers", "image_size": 96, **values}), contenders)
    assert {name: (own.dataset_name, own.prepare_size) for name, own in found.items()} == expected
    assert {name: own.prepare for name, own in found.items()} == {name: name for name in expected}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop": "random_resized"}, "crop must be random or whole"),
        ({"balanced": True}, "balanced must be false"),
        ({"simulated_step_ms": 5}, "simulated_step_ms must be 0 with accelerator h100"),
        ({"num_training_servers": 2}, "num_training_servers must be 1"),
        (
            {"freeze_epochs": 1, "model": "MobileNetV2", "weights": "/w_no_top.h5"},
            "freeze_epochs must be 0 for a comparison",
        ),
    ],
)
def test_settings_that_not_all_contenders_follow_are_refused(values: dict, message: str):
    with pytest.raises(SettingsError, match=message):
        require_comparable(settings_from(values), "h100")


def test_an_accelerator_takes_batches_at_one_rate():
    h100 = ACCELERATORS["h100"]
    assert h100.step_ms(400) == 224
    assert h100.step_ms(32) == pytest.approx(17.92)
    assert h100.per_s == pytest.approx(1785.7, abs=0.1)
    rates = {name: round(each.per_s) for name, each in ACCELERATORS.items()}
    assert rates == {
        "h100": 1786,
        "a100": 920,
        "b200_retinanet": 505,
        "h100_vit_small": 7711,
        "h100_vit_small_training": 3241,
    }
    assert [*rates] == [*get_args(ComparisonOptions.model_fields["accelerator"].annotation)[1:]]
