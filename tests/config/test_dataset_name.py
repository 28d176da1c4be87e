"""The dataset name: its default comes from the source, or from the only published dataset."""

import re
from pathlib import Path

import pytest

from pipeline.config.dataset_name import PATTERN, name_of_source
from pipeline.config.settings import settings_from
from pipeline.config.workspace import build_folders, name_folder, with_dataset_name
from pipeline.dataset.manifest import load
from pipeline.errors import SettingsError
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages
from tests.published import publish


@pytest.mark.parametrize(
    ("source_uri", "name"),
    [
        ("/data/flowers", "flowers"),
        ("/data/flowers/", "flowers"),
        ("/data/flowers.v2", "flowers.v2"),
        ("/data/flowers/{date}", "flowers"),
        ("/data/flowers/{year}/{month}-{day}/{hour}", "flowers"),
        ("/data/day-{date}", "day"),
        ("/data/flowers/list.csv", "flowers"),
        ("/data/flowers.zip", "flowers"),
        ("/data/flowers/{date}.tar.gz", "flowers"),
        ("/data/flowers/{date}.Parquet", "flowers"),
        ("gs://bucket-1/photos/flowers", "flowers"),
        ("gs://bucket-1/{date}", "bucket-1"),
        ("gs://bucket-1", "bucket-1"),
        ("/data/Löwen & Co", "Lowen-Co"),
        ("/data/.hidden", "hidden"),
        ("/data/花", "data"),
        ("/{date}", "images"),
        ("/", "images"),
        ("/" + "a" * 200, "a" * 100),
    ],
)
def test_the_dataset_name_defaults_to_the_folder_of_the_source(source_uri: str, name: str):
    assert name_of_source(source_uri) == name
    assert re.fullmatch(PATTERN, name)
    assert settings_from({"source_uri": source_uri, "dataset_name": ""}).dataset_name == name
    assert settings_from({"source_uri": source_uri, "dataset_name": "given"}).dataset_name == "given"


def test_the_data_date_does_not_change_the_dataset_name():
    settings = settings_from({"source_uri": "/data/flowers/{date}", "data_date": "2026-01-31"}).dated()
    assert (settings.source_uri, settings.dataset_name) == ("/data/flowers/2026-01-31", "flowers")
    assert settings_from(settings.model_dump()) == settings


def test_each_source_has_a_separate_label_map(make_images: MakeImages, tmp_path: Path):
    """Otherwise the classes of one source would stay in the label map of all others."""
    source = make_images({"notes": 6, "src": 6}).rename(tmp_path / "texts")
    flowers = make_images({"daisy": 6, "rose": 6}).rename(tmp_path / "flowers")
    for place, labels in ((source, ["notes", "src"]), (flowers, ["daisy", "rose"])):
        folder = publish(place, tmp_path / "w", dataset_name="")
        assert folder.parent.name == place.name
        assert list(load(folder).labels) == labels


def test_settings_without_a_source_use_the_only_published_dataset(make_images: MakeImages, tmp_path: Path):
    settings = settings_from({"workspace": str(tmp_path / "w")})
    with pytest.raises(SettingsError, match=r"dataset_name is empty, but .*/datasets has no dataset: build"):
        with_dataset_name(settings)
    source = make_images({"daisy": 6, "rose": 6})
    publish(source, tmp_path / "w", dataset_name="flowers")
    assert with_dataset_name(settings).dataset_name == "flowers"
    other = settings_from({"workspace": str(tmp_path / "w"), "dataset_name": "cars"})
    assert with_dataset_name(other).dataset_name == "cars"
    publish(source, tmp_path / "w", dataset_name="cars")
    with pytest.raises(
        SettingsError, match=r"dataset_name is empty, but .*/datasets has cars, flowers: choose .*--set"
    ):
        with_dataset_name(settings)


def test_settings_without_a_source_use_the_only_dataset_in_a_bucket(gcs: FakeGcs):
    settings = settings_from({"workspace": "gs://bucket/w"})
    with pytest.raises(SettingsError, match="has no dataset"):
        with_dataset_name(settings)
    gcs.put("bucket", "w/datasets/failed/labels/00001.json", b"{}")
    gcs.put("bucket", "w/datasets/flowers/partitions/latest.json", b"{}")
    assert with_dataset_name(settings).dataset_name == "flowers"


def test_a_folder_without_a_dataset_name_is_refused(tmp_path: Path):
    """The folder would be the parent folder of all datasets."""
    nameless = settings_from({"workspace": str(tmp_path)})
    for folder in (name_folder, build_folders):
        with pytest.raises(SettingsError, match="dataset_name is empty"):
            folder(nameless)
