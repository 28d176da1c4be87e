"""The batches of a training do not depend on the memory that an earlier attempt had."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config.automatic import training_settings
from pipeline.config.settings import Settings
from pipeline.dataset.manifest import load
from pipeline.input import cache
from pipeline.rendezvous.servers import Server
from pipeline.training.inputs import ServerData


def never() -> bool:
    return False


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return training_settings({"image_size": 32, "batch_size": 8, "epochs": 3, "local_folder": str(tmp_path)})


def batches_of(
    settings: Settings, published: Path, start: int, cache_decision: bool | None
) -> tuple[bool, list[tuple[tf.Tensor, ...]]]:
    with ServerData(settings, published, load(published), Server(), never).open(start, cache_decision) as inputs:
        return inputs.keeps, [*inputs.training]


def assert_equal(batches: list[tuple[tf.Tensor, ...]], others: list[tuple[tf.Tensor, ...]]) -> None:
    for one, other in zip(batches, others, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.long
def test_less_memory_does_not_change_the_order_of_a_resumed_training(
    settings: Settings, published: Path, monkeypatch: pytest.MonkeyPatch
):
    is_cached, whole = batches_of(settings, published, 0, None)
    assert is_cached
    monkeypatch.setattr(cache, "available_memory", lambda: 0)
    is_cached, rest = batches_of(settings, published, len(whole) - 2, True)
    assert is_cached
    assert_equal(rest, whole[-2:])


@pytest.mark.long
def test_more_memory_does_not_change_the_order_of_a_resumed_training(
    settings: Settings, published: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patched:
        patched.setattr(cache, "available_memory", lambda: 0)
        is_cached, whole = batches_of(settings, published, 0, None)
    assert not is_cached
    is_cached, rest = batches_of(settings, published, len(whole) - 2, False)
    assert not is_cached
    assert_equal(rest, whole[-2:])


def test_the_cache_setting_overrides_the_decision_of_an_earlier_attempt(settings: Settings, published: Path):
    uncached = settings.model_copy(update={"cache": "off"})
    with ServerData(uncached, published, load(published), Server(), never).open(0, keeps=True) as inputs:
        assert not inputs.keeps
        assert len([*islice(inputs.training, 1)]) == 1
