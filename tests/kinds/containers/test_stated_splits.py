"""The splits that a column of Parquet files, or a feature of TFRecord files, states for each image."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.errors import SourceError
from pipeline.records.example import encode
from pipeline.records.tfrecord import frame
from pipeline.sources import SourceOptions
from pipeline.sources.detection import images_of, key_ranges
from tests.conftest import jpeg
from tests.kinds.containers.examples import Found

Write = Callable[[Path, str, Sequence[str]], None]
"""Writes an image for each value of a column."""


def write_parquet(file: Path, column: str, values: Sequence[str]) -> None:
    columns = {"image": [jpeg(number) for number in range(len(values))], "label": ["x"] * len(values), column: values}
    parquet.write_table(pa.table(columns), file)


def write_records(file: Path, column: str, values: Sequence[str]) -> None:
    records = [{"image": jpeg(number), "label": b"x", column: text.encode()} for number, text in enumerate(values)]
    file.write_bytes(b"".join(frame(encode(each)) for each in records))


@pytest.fixture(params=["parquet", "tfrecord"])
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def write(form: str) -> Write:
    return {"parquet": write_parquet, "tfrecord": write_records}[form]


@pytest.fixture
def copies(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("copies"))


@pytest.mark.parametrize(("column", "named"), [("split", ""), ("fold", "fold")])
def test_words_of_splits_are_read(column: str, named: str, form: str, write: Write, tmp_path: Path, copies: str):
    write(tmp_path / f"a.{form}", column, ["train", " Val ", "test", ""])
    found = Found(tmp_path / f"a.{form}", copies, split_column=named)
    assert list(found.splits.values()) == ["train", "validation", "test", ""]


def test_a_column_with_other_values_is_not_used_unless_it_is_named(
    form: str, write: Write, tmp_path: Path, copies: str, caplog: pytest.LogCaptureFixture
):
    write(tmp_path / f"a.{form}", "split", ["fold2", ""])
    write(tmp_path / f"b.{form}", "split", ["", "fold1", "fold2"])
    for _ in range(2):  # The second listing uses the index of the first one.
        with caplog.at_level(logging.WARNING):
            found = Found(tmp_path, copies)
        assert list(found.splits.values()) == [""] * 5
        [warning] = caplog.messages
        assert f"a.{form} has the split 'fold2', which is none of train, validation and test: " in warning
        assert "split_column" in warning
        caplog.clear()
    with pytest.raises(SourceError, match=rf"a\.{form} .* row 1 has the split 'fold2': it must be train, validation"):
        Found(tmp_path, copies, split_column="split")


def test_a_column_in_which_only_some_values_are_splits_is_refused(form: str, write: Write, tmp_path: Path, copies: str):
    """Without its splits, images for the test would be trained on."""
    write(tmp_path / f"a.{form}", "split", ["train", "test"])
    write(tmp_path / f"b.{form}", "split", ["test", "unlabeled"])
    with pytest.raises(SourceError, match=rf"b\.{form} has the split 'unlabeled', .* rename the column"):
        Found(tmp_path, copies)


def test_a_column_named_group_needs_no_setting(form: str, write: Write, tmp_path: Path, copies: str):
    write(tmp_path / f"a.{form}", "group", ["p1", "", "p2"])
    assert [image.group for image in Found(tmp_path / f"a.{form}", copies).images.values()] == ["p1", "", "p2"]


def test_a_row_is_named_even_if_its_image_has_a_name(tmp_path: Path, copies: str):
    """Some data sets have the path image.png in each row."""
    images = [{"bytes": jpeg(number), "path": "image.png"} for number in range(2)]
    table = pa.table({"image": images, "label": ["x", "x"], "split": ["train", "unseen"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"row 2 \(image\.png\) has the split 'unseen'"):
        Found(tmp_path, copies, split_column="split")


def test_one_range_warns_of_splits_that_are_not_used(tmp_path: Path, copies: str, caplog: pytest.LogCaptureFixture):
    write_parquet(tmp_path / "speed-test.parquet", "split", ["fold1"] * 8)
    options = SourceOptions(copies=copies)
    with caplog.at_level(logging.WARNING):
        ranges = key_ranges(tmp_path, options, 2, 1)
        assert [len(list(images_of(tmp_path, options, each))) for each in ranges] == [4, 4]
    unused, named = caplog.messages
    assert "has the split 'fold1'" in unused
    assert "speed-test.parquet names a split that is not used" in named


@pytest.mark.parametrize("setting", ["split_column", "group_column"])
def test_a_column_that_does_not_exist_is_refused(setting: str, form: str, write: Write, tmp_path: Path, copies: str):
    write(tmp_path / f"a.{form}", "fold", ["train"])
    advice = {
        "parquet": r"its columns are .*fold: name one of these",
        "tfrecord": r"no record with an image in .*a\.tfrecord has it: name one of the fields \(fold, image, label\)",
    }
    with pytest.raises(SourceError, match=rf"{setting} is 'folds', but {advice[form]}, or none"):
        Found(tmp_path / f"a.{form}", copies, **{setting: "folds"})
