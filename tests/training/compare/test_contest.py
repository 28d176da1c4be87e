"""A comparison of inputs keeps decoded images once."""

import gc
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.input import numbered_batches
from pipeline.training.compare import contender_inputs
from pipeline.training.compare.contest import Contest
from pipeline.tuning.contenders import CONTENDERS
from pipeline.tuning.measurement import Comparison
from pipeline.tuning.options import ComparisonOptions

_CACHE: type = type(tf.data.Dataset.range(1).cache())


@pytest.mark.long
def test_a_measurement_keeps_decoded_images_once(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each of the three inputs of a measurement starts when the images of the one before it are gone."""
    kept: list[int] = []

    def noted(*arguments: Any, **options: Any) -> tf.data.Dataset:
        kept.append(sum(isinstance(each, _CACHE) for each in gc.get_objects()))
        return numbered_batches(*arguments, **options)

    monkeypatch.setattr(contender_inputs, "numbered_batches", noted)
    settings = settings_from({"image_size": 32, "batch_size": 8, "epochs": 2, "simulated_step_ms": 0.1})
    options = ComparisonOptions(contenders="shards,cached", measure_seconds=0.1)
    compared = Comparison(settings.model_dump(), options, {"keep": str(published)}, "", {}, 0.0)
    contest = Contest(compared, lambda: False)
    gc.collect()
    gc.disable()  # Otherwise, the garbage collector could hide a cycle by chance.
    try:
        contest.measure(CONTENDERS["cached"], 0, tmp_path / "measured", 0)
    finally:
        gc.enable()
    assert kept == [0, 0, 0]
