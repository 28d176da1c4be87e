"""Every kind of source gives the same snapshot from a bucket as from a disk."""

from pathlib import Path

import pytest

from pipeline.config import Settings
from pipeline.extract import take_snapshot
from pipeline.find_source import find_source
from pipeline.snapshot import Snapshot, load_snapshot
from pipeline.storage import copy_new, place_of
from tests.fake_gcs import FakeGcs
from tests.sources.examples import EXAMPLES


def snapshot_of(source: str, workspace: str, **settings: str) -> Snapshot:
    return load_snapshot(take_snapshot(Settings(source_uri=source, workspace=workspace, **settings).dated()))


def in_bucket(root: Path, place: Path, uri: str) -> str:
    """Uploads all below `root`; where `place` lies then."""
    for path in root.rglob("*"):
        if path.is_file():
            copy_new(path, place_of(uri) / path.relative_to(root).as_posix())
    return str(place_of(uri) / place.relative_to(root).as_posix()) if place != root else uri


@pytest.mark.parametrize("uri", ["gs://bucket/raw/photos", "gs://photos"])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_same_snapshot_as_from_a_disk(kind: str, uri: str, tmp_path: Path, gcs: FakeGcs):
    gcs.create_bucket("photos")
    root = tmp_path / "source"
    root.mkdir()
    place = EXAMPLES[kind](root)
    there = in_bucket(root, place, uri)
    assert find_source(place_of(there), "auto").__name__ == f"pipeline.sources.{kind}"
    here, far = snapshot_of(str(place), str(tmp_path / "w")), snapshot_of(there, "gs://bucket/w")
    assert far.fingerprint == here.fingerprint
    assert (far.classes, far.skipped, far.labels, far.texts) == (here.classes, here.skipped, here.labels, here.texts)
    assert not [name for name in gcs.names("bucket") if name.endswith(".writable")]
