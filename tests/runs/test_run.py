"""Search for the folder of a training."""

from pathlib import Path

import pytest

from pipeline.errors import DatasetError
from pipeline.runs.run import find_training


def test_find_training_accepts_a_run_with_one_training(tmp_path: Path):
    one = tmp_path / "a run" / "0a1b"
    one.mkdir(parents=True)
    (one / "run.json").write_text("{}")
    assert find_training(one) == find_training(tmp_path / "a run") == one
    other = tmp_path / "a run" / "2c3d"
    other.mkdir()
    (other / "run.json").write_text("{}")
    with pytest.raises(DatasetError, match=r"has 2 trainings: name one of them \(0a1b, 2c3d\)"):
        find_training(tmp_path / "a run")
    with pytest.raises(DatasetError, match="is not the folder of a run"):
        find_training(tmp_path)
