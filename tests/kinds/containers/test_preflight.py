"""SOURCE and TABLE both take Parquet and TFRecord files: the first check says which of them is meant."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.config.preflight import preflight
from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError
from pipeline.records.example import encode
from pipeline.records.tfrecord import frame
from tests.conftest import jpeg
from tests.kinds.containers.examples import FORMS, drawn


def check(place: Path, workspace: Path, kind: str) -> None:
    preflight(settings_from({"source_uri": str(place), "workspace": str(workspace), "example_kind": kind}))


@pytest.mark.parametrize("form", ["parquet of the hub", "parquet with a column of bytes", "tfrecord"])
def test_images_are_no_table(form: str, tmp_path: Path):
    (tmp_path / "source").mkdir()
    place = FORMS[form](tmp_path / "source", drawn())
    check(place, tmp_path / "w", "images")
    with pytest.raises(SettingsError, match=r"source_uri '.*' holds images: set SOURCE instead of TABLE"):
        check(place, tmp_path / "w", "table")


def test_records_of_a_table_are_no_images(tmp_path: Path):
    (tmp_path / "a.tfrecord").write_bytes(frame(encode({"x": 1.0, "label": 1})))
    check(tmp_path / "a.tfrecord", tmp_path / "w", "table")
    with pytest.raises(SettingsError, match=r"a\.tfrecord' holds no images: set TABLE and LABEL instead of SOURCE"):
        check(tmp_path / "a.tfrecord", tmp_path / "w", "images")


def test_a_table_with_a_zip_or_parquet_file_is_no_source_of_images(tmp_path: Path):
    parquet.write_table(pa.table({"a": [1, 2], "label": [0, 1]}), tmp_path / "a.parquet")
    check(tmp_path / "a.parquet", tmp_path / "w", "table")
    (tmp_path / "b.csv.zip").write_bytes(b"PK\x03\x04")
    check(tmp_path / "b.csv.zip", tmp_path / "w", "table")


def test_records_with_an_image_in_any_feature_are_no_table(tmp_path: Path):
    (tmp_path / "a.tfrecord").write_bytes(frame(encode({"image_data": jpeg(1), "label": 1})))
    check(tmp_path / "a.tfrecord", tmp_path / "w", "images")
    with pytest.raises(SettingsError, match=r"source_uri '.*' holds images: set SOURCE instead of TABLE"):
        check(tmp_path / "a.tfrecord", tmp_path / "w", "table")
