"""What a training refuses before its dataset is built."""

from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from pipeline.errors import DatasetError, SettingsError
from pipeline.runs.requirements import require_before_listing, require_trainable
from pipeline.runs.training_settings import fitting_settings
from pipeline.stages.extract import extract
from tests.tables.built import csv_of


def test_a_model_for_images_is_refused_before_a_table_is_named():
    """The message said "for a table, as in , got 'small_cnn'"."""
    with pytest.raises(SettingsError, match=r"^model must be mlp or package.module:function for a table, got 'small"):
        require_before_listing(settings_from({"example_kind": "table", "model": "small_cnn"}))


def test_a_training_to_continue_is_missing(tmp_path: Path):
    """Without this check, the dataset would be built first."""
    with pytest.raises(DatasetError, match="is not the folder of a training: it has"):
        require_before_listing(settings_from({"continues": str(tmp_path / "w" / "runs" / "r" / "t")}))


def test_a_warm_up_is_compared_with_the_epochs_for_the_training_rows(tmp_path: Path):
    """All rows, of which a fifth is for validation, would have fewer epochs than the training."""
    source = csv_of(tmp_path / "t.csv", ["x,label", *(f"{number},{'ab'[number % 2]}" for number in range(4_000))])
    values = {"example_kind": "table", "source_uri": str(source), "label_column": "label", "warmup_epochs": 98.0}
    settings = settings_from({**values, "workspace": str(tmp_path / "workspace"), "dataset_name": "t"})
    facts = {"task": "classification"}
    with pytest.raises(SettingsError, match=r"warmup_epochs must be less than epochs \(97\)"):
        fitting_settings(settings, "table", facts, "t", 4_000)
    assert fitting_settings(settings, "table", facts, "t", 3_200).epochs == 100
    require_trainable(settings, extract(settings))
