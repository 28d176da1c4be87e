"""A small dataset, which one process builds up to its commit."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.settings import Settings
from pipeline.kinds.images.data import ImageKind
from pipeline.kinds.table.data import RowKind
from pipeline.plan.plan import load_plan
from pipeline.sharding.approval import approve, questions_about
from pipeline.stages import small
from pipeline.stages.build import build
from pipeline.stages.small import build_small
from pipeline.stages.upload import publish
from pipeline.storage import Place
from tests.airflow_home import ROOT
from tests.conftest import MakeImages
from tests.published import changed
from tests.snapshots import take_snapshot
from tests.writes import writes

IMAGES = 24


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    """Settings whose shards are published outside of the workspace."""
    return changed(settings, publish_uri=str(tmp_path / "published"))


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each shard, by its path below the folder of published datasets."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.tfrecord")
    }


def built(settings: Settings) -> Place:
    """Build a small dataset up to its commit, and return the file of its plan."""
    plan = build_small(settings, take_snapshot(settings))
    assert plan
    return plan


def test_one_process_builds_the_same_dataset(settings: Settings, tmp_path: Path):
    expected = changed(settings, workspace=str(tmp_path / "other"), publish_uri=str(tmp_path / "expected"))
    build(expected)
    plan = built(settings)
    assert len(load_plan(plan).ranges) == 1
    assert digests(tmp_path / "published") == digests(tmp_path / "expected") != {}
    assert sum(publish(plan, settings)["examples"].values()) == IMAGES


def test_a_repeated_build_does_what_is_left(settings: Settings, tmp_path: Path):
    plan = built(settings)
    shards = writes((tmp_path / "published").rglob("*.tfrecord"))
    lost = min(shards)
    lost.unlink()
    assert built(settings) == plan
    again = writes((tmp_path / "published").rglob("*.tfrecord"))
    assert again.keys() == shards.keys()
    assert {path for path in shards if again[path] != shards[path]} == {lost}
    publish(plan, settings)
    assert load_plan(built(settings)).complete


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ({}, [(ImageKind, "few_examples", IMAGES - 1)]),
        ({}, [(small, "MAX_BYTES", 1000)]),
        ({"engine": "beam"}, []),
        ({"shards_per_task": 100}, []),
        ({"num_shards": 101}, []),
        ({"num_shards": 1, "num_training_servers": 101}, []),
    ],
    ids=["examples", "bytes", "another engine", "tasks that somebody wants", "shards", "shards for servers"],
)
def test_other_tasks_build_what_is_not_small(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], limits: list[tuple[Any, str, int]]
):
    for owner, name, limit in limits:
        monkeypatch.setattr(owner, name, limit)
    assert build_small(changed(settings, **values), take_snapshot(settings)) is None
    assert not list(Path(settings.workspace).rglob("plan.json"))


def test_the_limits_include_themselves(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ImageKind, "few_examples", IMAGES)
    built(settings)


def test_nothing_is_copied_before_a_person_was_asked(settings: Settings, make_images: MakeImages, tmp_path: Path):
    source = make_images({"train/a": 6, "train/b": 6, "val/a": 2, "val/b": 1})
    shutil.copy(source / "train/a/000.jpg", source / "val/b/copied.jpg")
    asking = changed(settings, source_uri=str(source), on_leak="ask")
    assert build_small(asking, take_snapshot(asking)) is None
    assert digests(tmp_path / "published") == {}
    [plan] = Path(settings.workspace).rglob("plan.json")
    approve(plan, questions_about(plan, asking))  # The shards are written, so the question is about all of them.
    assert built(asking) == plan
    assert len(digests(tmp_path / "published")) == len(list(Path(settings.workspace).rglob("results/*.json"))) > 1


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("dags/image_dataset.py", [ImageKind]),
        ("dags/image_training.py", [ImageKind]),
        ("dags/tabular_dataset.py", [RowKind]),
        ("dags/tabular_training.py", [RowKind]),
        ("dags/tasks.py", [ImageKind, RowKind]),
        ("docs/how-to/airflow.md", [ImageKind, RowKind]),
        ("docs/reference/settings.md", [ImageKind, RowKind]),
        ("pipeline/config/settings.py", [ImageKind, RowKind]),
    ],
)
def test_all_texts_name_the_limits(path: str, kinds: list[Any]):
    text = " ".join((ROOT / path).read_text().split())
    limits = [f"{kind.few_examples:,} {'rows' if kind is RowKind else ''}".strip() for kind in kinds]
    for limit in [*limits, f"{small.MAX_BYTES >> 20} MiB"]:
        assert limit in text, limit
