"""The splits that a column of a table states."""

from pathlib import Path

import pytest

from pipeline.errors import SourceError
from tests.tables.built import built, csv_of, parquet_of

WORDS = ("train", "Training", " TRAIN ", "val", "valid", "dev", "Validation", "test", "Testing")


def test_the_words_of_lists_state_the_splits(tmp_path: Path):
    lines = [f"{number},{number % 2},{WORDS[number % 9]}" for number in range(900)]
    made = built(csv_of(tmp_path / "t.csv", ["x,label,fold", *lines]), split_column="fold")
    counts = {name: split.examples for name, split in made.dataset.splits.items()}
    assert counts == {"train": 300, "validation": 400, "test": 200}
    assert made.dataset.rejected["count"] == 0


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_unknown_word_stops_the_build(tmp_path: Path, suffix: str):
    words = ["train"] * 50 + ["", None, "holdout", "val"] + ["train"] * 50
    numbers = range(len(words))
    if suffix == ".csv":
        lines = [f"{number},{number % 2},{words[number] or ''}" for number in numbers]
        source, row = csv_of(tmp_path / "t/a.csv", ["x,label,fold", *lines]), 54
    else:
        columns = {"x": list(numbers), "label": [number % 2 for number in numbers], "fold": words}
        source, row = parquet_of(tmp_path / "t/a.parquet", **columns), 53
    with pytest.raises(SourceError) as error:
        built(source, split_column="fold")
    message = str(error.value)
    assert f"a{suffix}:{row} has 'holdout' in the column 'fold' (split_column), which is no split" in message
    assert "write train (also training), validation (also val, valid, dev, eval, evaluation), test (also" in message
    assert not [*tmp_path.rglob("*.tfrecord")]
