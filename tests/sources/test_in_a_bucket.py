"""Every kind of source gives the same snapshot from a bucket as from a disk."""

from pathlib import Path

import pytest

from pipeline.config.settings import Settings
from pipeline.errors import SourceError
from pipeline.snapshot.snapshot import Snapshot, load_snapshot
from pipeline.sources import Listed, SourceOptions
from pipeline.sources.detection import find_source, images_of
from pipeline.storage import copy_new, place_of
from standins.fake_gcs import FakeGcs
from tests.snapshots import take_snapshot
from tests.sources.examples import EXAMPLES, options_of, write_annotations, write_images, write_meta


def snapshot_of(source: str, workspace: str) -> Snapshot:
    return load_snapshot(take_snapshot(Settings(source_uri=source, workspace=workspace).dated()))


def in_bucket(root: Path, place: Path, uri: str) -> str:
    """Upload all files below `root`, and return the URI of `place`."""
    for path in root.rglob("*"):
        if path.is_file():
            copy_new(path, place_of(uri) / path.relative_to(root).as_posix())
    return str(place_of(uri) / place.relative_to(root).as_posix()) if place != root else uri


@pytest.mark.parametrize("uri", ["gs://bucket/raw/photos", "gs://photos"])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_bucket_gives_the_same_snapshot_as_a_disk(kind: str, uri: str, tmp_path: Path, gcs: FakeGcs):
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


def test_cars_are_listed_without_a_request_per_image(tmp_path: Path, gcs: FakeGcs):
    names = [f"{number:05d}.jpg" for number in range(1, 41)]
    write_images(tmp_path, *(f"cars_train/{name}" for name in names))
    write_meta(tmp_path / "devkit/cars_meta.mat")
    write_annotations(
        tmp_path / "devkit/cars_train_annos.mat", [(1, 1, 24, 16, 1 + n % 2, name) for n, name in enumerate(names)]
    )
    gcs.put_folder("bucket", "cars/", tmp_path)
    found = list(images_of(place_of("gs://bucket/cars"), SourceOptions()))
    assert sum(isinstance(item, Listed) and item.size > 0 for item in found) == 40
    assert gcs.requests["get"] < 10


def test_a_list_in_a_bucket_can_name_images_outside_its_folder(tmp_path: Path, gcs: FakeGcs):
    write_images(tmp_path, "images/a.jpg", "images/b.jpg")
    (tmp_path / "lists").mkdir()
    place = tmp_path / "lists" / "train.csv"
    place.write_text("path,label\n../images/a.jpg,cat\n../lists/../images/b.jpg,dog\n")
    there = in_bucket(tmp_path, place, "gs://bucket/raw")
    here, far = snapshot_of(str(place), str(tmp_path / "w")), snapshot_of(there, str(tmp_path / "w2"))
    assert (far.fingerprint, far.bytes) == (here.fingerprint, here.bytes)
    assert far.bytes == sum(len(path.read_bytes()) for path in (tmp_path / "images").iterdir())


@pytest.mark.parametrize("name", ["gs://", "gs:///a.jpg"])
def test_a_list_with_an_invalid_bucket_uri_is_refused(name: str, tmp_path: Path, gcs: FakeGcs):
    (tmp_path / "list.csv").write_text(f"path,label\n{name},cat\n")
    with pytest.raises(SourceError, match=r"list\.csv lists 'gs:.*: .*must be gs://bucket/prefix"):
        list(images_of(tmp_path / "list.csv", options_of()))


def test_an_object_named_like_the_source_is_not_a_list(tmp_path: Path, gcs: FakeGcs):
    """Consoles and tools create such objects. If it were a list, the keys would be relative to its parent folder."""
    root = tmp_path / "source"
    root.mkdir()
    uri = in_bucket(root, EXAMPLES["folder"](root), "gs://bucket/raw/photos")
    before = snapshot_of(uri, "gs://bucket/w")
    gcs.put("bucket", "raw/photos", b"")
    after = snapshot_of(uri, "gs://bucket/w")
    assert (after.origin.root, after.fingerprint) == (uri, before.fingerprint)


def test_an_image_with_many_boxes_takes_one_request(tmp_path: Path, gcs: FakeGcs):
    write_images(tmp_path, "a.jpg", "b.jpg")
    rows = "".join(f"{name}.jpg,cat,{side},0,50,50\n" for side in range(20) for name in "ab")
    (tmp_path / "list.csv").write_text(f"path,label,xmin,ymin,xmax,ymax\n{rows}")
    gcs.put_folder("bucket", "boxes/", tmp_path)
    found = list(images_of(place_of("gs://bucket/boxes/list.csv"), options_of()))
    assert [(item.key, len(item.boxes), item.size > 0) for item in found if isinstance(item, Listed)] == [
        ("a.jpg", 20, True),
        ("b.jpg", 20, True),
    ]
    assert gcs.requests["get"] < 10
