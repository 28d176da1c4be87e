"""The folder of a comparison of inputs: equal comparisons share one, and other settings or machines have another."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.config.settings import Settings, settings_from
from pipeline.errors import SourceError
from pipeline.stages.build import build_input
from pipeline.tuning.contenders import dataset_settings
from pipeline.tuning.measure import comparison_of, start_comparison
from pipeline.tuning.measurement import RESULT, Comparison, load_comparison
from pipeline.tuning.options import ComparisonOptions
from tests.conftest import MakeImages

OPTIONS = ComparisonOptions(contenders="shards,resized")


@pytest.fixture
def settings(make_images: MakeImages, tmp_path: Path) -> Settings:
    source = make_images({"cats": 6, "dogs": 6})
    return settings_from({"source_uri": str(source), "workspace": str(tmp_path / "w"), "image_size": 32})


@pytest.fixture
def comparison(settings: Settings) -> Comparison:
    return comparison_of(settings, OPTIONS, built(settings))


def built(settings: Settings) -> list[dict[str, str]]:
    return [build_input(own) for own in dataset_settings(settings, OPTIONS.names).values()]


def test_a_comparison_has_the_same_folder_again(comparison: Comparison):
    folder = start_comparison(comparison, "manual")
    assert load_comparison(folder) == comparison
    (folder / RESULT).touch()
    assert start_comparison(replace(comparison, created=1.0), "manual") == folder
    assert load_comparison(folder) == comparison


def test_another_machine_software_setting_or_option_has_another_folder(comparison: Comparison):
    others = [
        replace(comparison, host={**comparison.host, "usable_cores": 999}),
        replace(comparison, host={**comparison.host, "tensorflow": "3.0"}),
        replace(comparison, source_root="/elsewhere"),
        replace(comparison, settings={**comparison.settings, "learning_rate": 0.5}),
        replace(comparison, options=ComparisonOptions(contenders="shards,resized", rounds=5)),
    ]
    assert len({start_comparison(each, "manual") for each in (comparison, *others)}) == 6


def test_a_pod_continues_the_comparison_of_the_pod_before(comparison: Comparison):
    """Each pod has a host name of its own."""
    later = replace(comparison, host={**comparison.host, "name": "another"})
    assert start_comparison(later, "manual") == start_comparison(comparison, "manual")


def test_a_complete_comparison_is_measured_again_in_a_folder_beside_it(comparison: Comparison):
    first = start_comparison(comparison, "manual", again=True)
    assert first == start_comparison(comparison, "manual")
    (first / RESULT).touch()
    second = start_comparison(comparison, "manual", again=True)
    assert second.name == f"{first.name}-2"
    assert start_comparison(comparison, "manual", again=True) == second  # A stopped one continues.
    (second / RESULT).touch()
    assert start_comparison(comparison, "manual") == second  # The newest one is shown.
    assert start_comparison(comparison, "manual", again=True).name == f"{first.name}-3"


def test_a_simulated_accelerator_sets_the_time_of_a_step(settings: Settings):
    options = ComparisonOptions(contenders="shards,resized", accelerator="h100")
    assert comparison_of(settings, options, built(settings)).settings["simulated_step_ms"] == pytest.approx(17.92)


def test_images_that_change_between_two_datasets_are_refused(settings: Settings):
    keep, resize = dataset_settings(settings, OPTIONS.names).values()
    before = build_input(keep)
    Image.new("RGB", (40, 30), (1, 2, 3)).save(Path(settings.source_uri) / "cats" / "new.png")
    with pytest.raises(SourceError, match="changed while the datasets of the comparison were built: run it again"):
        comparison_of(settings, OPTIONS, [before, build_input(resize)])


def test_images_that_only_some_datasets_can_hold_are_refused(settings: Settings):
    """Only the first bytes of this image are checked, and it is copied as it is."""
    photo = Path(settings.source_uri) / "cats" / "cut.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (150, 200, 3), np.uint8)).save(photo)
    content = photo.read_bytes()
    middle = len(content) // 2
    photo.write_bytes(content[:middle] + b"\xff\xc4" * 40 + content[middle + 80 :])
    # All images are for training: a broken one in the validation split would change nothing.
    loose = settings.model_copy(update={"check": "header", "on_rejected": "continue", "validation_fraction": 0.01})
    with pytest.raises(SourceError, match=r"can be copied, but not decoded.*set check=strict"):
        comparison_of(loose, OPTIONS, built(loose))
