"""The dataset name that follows from the source, and the one that is found where there is no source."""

import re
from pathlib import Path

import pytest

from pipeline.config import settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset_name import PATTERN, name_of_source
from pipeline.errors import SettingsError
from pipeline.workspace import name_folder, with_dataset_name, work_folder
from tests.conftest import MakeImages
from tests.fake_gcs import FakeGcs
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
def test_a_source_gives_the_name_of_its_folder(source_uri: str, name: str):
    assert name_of_source(source_uri) == name
    assert re.fullmatch(PATTERN, name)
    assert settings_from({"source_uri": source_uri, "dataset_name": ""}).dataset_name == name
    assert settings_from({"source_uri": source_uri, "dataset_name": "given"}).dataset_name == "given"


def test_a_date_decides_nothing_of_the_name():
    settings = settings_from({"source_uri": "/data/flowers/{date}", "data_date": "2026-01-31"}).dated()
    assert (settings.source_uri, settings.dataset_name) == ("/data/flowers/2026-01-31", "flowers")
    assert settings_from(settings.model_dump()) == settings


def test_another_source_has_a_label_map_of_its_own(make_images: MakeImages, tmp_path: Path):
    """A folder of text files was once tried under the default name: its classes stayed in the map of all others."""
    source = make_images({"notes": 6, "src": 6}).rename(tmp_path / "texts")
    flowers = make_images({"daisy": 6, "rose": 6}).rename(tmp_path / "flowers")
    for place, labels in ((source, ["notes", "src"]), (flowers, ["daisy", "rose"])):
        folder = publish(place, tmp_path / "w", dataset_name="")
        assert folder.parent.name == place.name
        assert list(load(folder).labels) == labels


def test_settings_without_a_source_get_the_only_name_that_is_published(make_images: MakeImages, tmp_path: Path):
    settings = settings_from({"workspace": str(tmp_path / "w")})
    with pytest.raises(SettingsError, match=r"dataset_name is empty, but .*/datasets"):
        with_dataset_name(settings)
    source = make_images({"daisy": 6, "rose": 6})
    publish(source, tmp_path / "w", dataset_name="flowers")
    assert with_dataset_name(settings).dataset_name == "flowers"
    other = settings_from({"workspace": str(tmp_path / "w"), "dataset_name": "cars"})
    assert with_dataset_name(other).dataset_name == "cars"
    publish(source, tmp_path / "w", dataset_name="cars")
    with pytest.raises(
        SettingsError, match=r"dataset_name is empty, but .*/datasets has the datasets cars, flowers: choose .*--set"
    ):
        with_dataset_name(settings)


def test_in_a_bucket_too(gcs: FakeGcs):
    settings = settings_from({"workspace": "gs://bucket/w"})
    with pytest.raises(SettingsError, match="contains no dataset"):
        with_dataset_name(settings)
    gcs.put("bucket", "w/datasets/failed/labels/00001.json", b"{}")
    gcs.put("bucket", "w/datasets/flowers/partitions/latest.json", b"{}")
    assert with_dataset_name(settings).dataset_name == "flowers"


def test_no_folder_is_made_without_a_name(tmp_path: Path):
    """It would be the folder of all names."""
    nameless = settings_from({"workspace": str(tmp_path)})
    for folder in (name_folder, lambda settings: work_folder(settings, "0" * 16)):
        with pytest.raises(SettingsError, match="dataset_name is empty"):
            folder(nameless)
