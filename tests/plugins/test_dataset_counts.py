"""The numbers of examples in the trend of a dataset name."""

import json
from pathlib import Path

from plugins.training_monitor.dataset_counts import Counts, counts_of


def test_counts_are_those_of_the_dataset(tmp_path: Path):
    (tmp_path / "good").mkdir()
    (tmp_path / "damaged").mkdir()
    content = {"splits": {"train": {"examples": 40}, "validation": {"examples": 10}}, "rejected": {"count": 3}}
    (tmp_path / "good" / "dataset.json").write_text(json.dumps(content))
    (tmp_path / "damaged" / "dataset.json").write_text('{"splits": []}')
    places = [tmp_path / "good", tmp_path / "damaged", tmp_path / "gone", None]
    assert counts_of(places) == [Counts(50, 3), None, None, None]
