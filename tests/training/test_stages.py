"""The measurement of the stages before the first step of a training."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from pipeline.config.automatic import training_settings
from pipeline.dataset.manifest import load
from pipeline.images.examine import Rules
from pipeline.input import BatchOptions, cache
from pipeline.input.stage_costs import sample_of
from pipeline.records.format import as_file, read_image
from pipeline.runs.files import STAGES
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Run
from pipeline.training import stages
from pipeline.training.job import run_job
from pipeline.tuning.stages import load_stages
from tests.input.test_images import published_of


@pytest.fixture
def run_in(tmp_path: Path, published: Path) -> Callable[[str], Run]:
    def run(name: str) -> Run:
        values = {"workspace": str(tmp_path / name), "local_folder": str(tmp_path / "local")}
        return prepare_run(
            training_settings({**values, "image_size": 32, "batch_size": 8, "epochs": 2}), published, name
        )

    return run


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measure trainings of any length, and return a list that gets an entry for each measurement."""
    counted: list[int] = []
    # The trainings of tests are over before a measurement would pay.
    monkeypatch.setattr(stages, "MIN_EXAMPLES", 0)
    monkeypatch.setattr(stages, "BUDGET", 1e6)
    monkeypatch.setattr(stages, "MAX_CPU_S", 5.0)
    monkeypatch.setattr(stages, "MIN_ROUNDS", 1)
    sample = stages.sample_of

    def counting(*given: Any, **named: Any) -> Any:
        counted.append(1)
        return sample(*given, **named)

    monkeypatch.setattr(stages, "sample_of", counting)
    return counted


def train(run: Run) -> list[np.ndarray]:
    run_job(run, lambda: False)
    return [weight.numpy() for weight in keras.models.load_model(run.model_path).weights]


@pytest.mark.long
def test_a_measurement_changes_nothing_and_is_used_again(
    run_in: Callable[[str], Run], measured: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = run_in("first"), run_in("second")
    with caplog.at_level(logging.INFO):
        weights = [train(first), train(second)]
    assert "of processor time per image, " in caplog.text
    assert sum(measured) == 1
    costs = load_stages(first.folder)
    assert costs is not None
    assert costs == load_stages(second.folder)
    assert list(costs.us) == ["read", "parse", "decode", "resize", "batch"]

    unmeasured = run_in("third")
    (unmeasured.folder / STAGES).write_text("{}", "utf-8")  # As if an earlier attempt had measured it.
    weights.append(train(unmeasured))
    for other in weights[1:]:
        assert all(np.array_equal(one, two) for one, two in zip(weights[0], other, strict=True))
    assert sum(measured) == 1


def test_a_short_training_is_not_measured(run_in: Callable[[str], Run]) -> None:
    run = run_in("short")
    stages.measure_at_start(run, Path(run.dataset), load(Path(run.dataset)), go_on=lambda: True)
    assert not (run.folder / STAGES).exists()


@pytest.mark.parametrize(
    ("values", "free", "is_measured"),
    [
        ({}, 1e12, False),
        ({"cache": "disk"}, 1e12, False),
        ({"cache": "off"}, 1e12, True),
        ({}, 1, True),
        ({"crop": "random_resized"}, 1e12, True),
        ({"balanced": True}, 1e12, True),
    ],
)
def test_every_epoch_that_decodes_counts(
    tmp_path: Path,
    published: Path,
    measured: list[int],
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    free: float,
    is_measured: bool,
) -> None:
    """All epochs of this training have just enough examples. With cache=auto, the images are kept if they fit."""
    dataset, epochs = load(published), 3
    monkeypatch.setattr(stages, "MIN_EXAMPLES", epochs * dataset.splits["train"].examples)
    monkeypatch.setattr(cache, "available_memory", lambda: free)
    places = {"workspace": str(tmp_path), "local_folder": str(tmp_path / "local")}
    settings = training_settings({**places, "image_size": 32, "batch_size": 8, "epochs": epochs, **values})
    run = prepare_run(settings, published, "run")
    stages.measure_at_start(run, published, dataset, go_on=lambda: False)
    assert sum(measured) == is_measured


def test_a_stop_ends_the_measurement(run_in: Callable[[str], Run], measured: list[int]) -> None:
    run, calls = run_in("stopped"), []
    stages.measure_at_start(run, Path(run.dataset), load(Path(run.dataset)), go_on=lambda: bool(calls.append(1)))
    assert sum(measured) == len(calls) == 1
    assert not (run.folder / STAGES).exists()


def test_a_failure_costs_a_warning(
    run_in: Callable[[str], Run], measured: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    run = run_in("failing")
    dataset = load(Path(run.dataset))
    with caplog.at_level(logging.WARNING):
        stages.measure_at_start(run, run.folder / "missing", dataset, go_on=lambda: True)
    assert sum(measured) == 1
    assert "the costs of the input's stages are unknown: FileNotFoundError" in caplog.text


@pytest.mark.parametrize(("prepare", "form"), [("resize", "JPEG"), ("raw", "RAW")])
def test_a_sample_is_prepared_as_a_build_would(tmp_path: Path, prepare: Any, form: str) -> None:
    kept = published_of(tmp_path / "kept", 12)
    built = published_of(tmp_path / "built", 12, prepare=prepare, prepare_size=20)
    rules = Rules(check="header", prepare=prepare, prepare_size=20)
    dataset, sample = stages.prepared(load(kept), sample_of(kept, load(kept)), rules)
    of_build = sample_of(built, load(built))
    assert dataset.records == load(built).records
    assert sorted(sample.records) == sorted(of_build.records)
    image = read_image(sample.records[0], dataset.records)
    assert image.format == form
    assert min(image.width, image.height) == 20
    assert as_file(image)


def test_a_prepared_sample_is_small_and_has_only_images_that_a_build_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = published_of(tmp_path, 12)
    dataset, sample = load(kept), sample_of(kept, load(kept))
    rules = Rules(check="header", prepare="raw", prepare_size=20)
    _, whole = stages.prepared(dataset, sample, rules)
    refused = stages.prepared(dataset, sample, replace(rules, max_pixels=1))[1]
    assert (len(whole.records), len(refused.records)) == (len(sample.records), 0)
    monkeypatch.setattr(stages, "MAX_BYTES", round(2.5 * len(whole.records[0])))
    assert len(stages.prepared(dataset, sample, rules)[1].records) == 3


def test_raw_pixels_can_be_measured_before_they_are_built(tmp_path: Path, measured: list[int]) -> None:
    kept = published_of(tmp_path, 12)
    options = BatchOptions(image_size=16, batch_size=4)
    raw = stages.measure_stages(kept, load(kept), options, 5.0, prepare="raw", prepare_size=20)
    assert raw is not None
    assert raw.bytes_per_example > 20 * 20 * 3
    assert raw.total_us > 0
