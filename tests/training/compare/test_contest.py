"""A comparison of inputs keeps decoded images once, and names a record that cannot be read."""

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import checksum, load
from pipeline.errors import DatasetError
from pipeline.input import training_batches
from pipeline.training.compare import contender_inputs
from pipeline.training.compare.contest import Contest
from pipeline.training.compare.process import _measure
from pipeline.tuning.contenders import CONTENDERS
from pipeline.tuning.measurement import Comparison, Turn
from pipeline.tuning.options import ComparisonOptions
from tests.published import replace_record

_CACHE: type = type(tf.data.Dataset.range(1).cache())


def test_a_record_that_a_comparison_cannot_read_is_named(published: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    shard = next(each.name for each in load(copy).splits["train"].shards if each.examples)
    replace_record(copy, shard, 0, b"noise")
    settings = settings_from({"image_size": 32, "batch_size": 8, "epochs": 1, "simulated_step_ms": 0.1})
    options = ComparisonOptions(contenders="shards,files", measure_seconds=0.1)
    compared = Comparison(settings.model_dump(), options, {"keep": str(copy)}, "/source", {}, 0.0)
    contest = Contest(compared, lambda: False)
    for contender in ("shards", "files"):
        with pytest.raises(DatasetError, match=rf"{copy / shard}: record 0 \(from 0\): not a tf.train.Example"):
            _measure(contest, Turn(0, 0, contender), tmp_path / contender)


@pytest.mark.long
def test_a_measurement_keeps_decoded_images_once(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each of the three inputs of a measurement starts when the images of the one before it are gone."""
    kept: list[int] = []

    def noted(*arguments: Any, **options: Any) -> tf.data.Dataset:
        kept.append(sum(isinstance(each, _CACHE) for each in gc.get_objects()))
        return training_batches(*arguments, **options)

    monkeypatch.setattr(contender_inputs, "training_batches", noted)
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


def test_raw_files_are_left_out_if_the_images_are_in_containers(published: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    content = json.loads((copy / "dataset.json").read_bytes())
    del content["checksum"]
    content["source"]["kind"] = "containers"
    (copy / "dataset.json").write_text(json.dumps({**content, "checksum": checksum(content)}))
    settings = settings_from({"image_size": 32, "batch_size": 8})
    compared = Comparison(settings.model_dump(), ComparisonOptions(), {"keep": str(copy)}, "/source", {}, 0.0)
    reason = "the images are in containers, so there are no raw files"
    assert contender_inputs.why_not("files", compared) == contender_inputs.why_not("files_parallel", compared) == reason
    assert contender_inputs.why_not("shards", compared) == ""
