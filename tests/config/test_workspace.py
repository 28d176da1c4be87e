from pathlib import Path

import pytest

from pipeline.config import workspace
from pipeline.config.settings import settings_from

RUN_IDS = [
    "manual__2026-01-01T00:00:00+00:00",
    "a/b",
    "a%2Fb",
    "../../etc",
    "..",
    ".",
    "%2E.",
    "x" * 300,
    "x" * 299 + "y",
    "<script>",
    "naïve",
    "a!b",
]


def test_different_run_ids_have_different_folder_names():
    assert len({workspace.folder_name(run_id) for run_id in RUN_IDS}) == len(RUN_IDS)


@pytest.mark.parametrize("run_id", RUN_IDS)
def test_a_folder_name_is_a_single_visible_path_component(run_id: str):
    name = workspace.folder_name(run_id)
    assert Path("runs", name).parent == Path("runs")
    assert not name.startswith(".")
    assert len(name) <= 200


def test_shards_are_written_in_place_if_the_dataset_is_published_in_the_workspace(tmp_path: Path):
    elsewhere = {"workspace": str(tmp_path / "work"), "publish_uri": str(tmp_path / "published")}
    inside = workspace.build_folders(settings_from({"workspace": str(tmp_path), "dataset_name": "images"}))
    outside = workspace.build_folders(settings_from({**elsewhere, "dataset_name": "images"}))
    assert inside.shards_of("1") == inside.published("1")
    assert outside.shards_of("1").is_relative_to(tmp_path / "work")
    assert outside.published("1") == tmp_path / "published" / "images" / "1"


def test_two_publish_locations_have_separate_work_folders(tmp_path: Path):
    places = [{"publish_uri": str(tmp_path / name)} for name in "ab"]
    known = {"workspace": str(tmp_path), "dataset_name": "images"}
    folders = {workspace.build_folders(settings_from({**known, **place})).work_of("1") for place in places}
    assert len(folders) == 2
