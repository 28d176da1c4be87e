"""Source, workspace and published datasets on a disk or in a bucket: any combination gives the same dataset."""

import gzip
import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline import storage
from pipeline.__main__ import main
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import last_version, load
from pipeline.dataset.verify import verify
from pipeline.errors import SourceError
from pipeline.plan.plan import load_plan
from pipeline.sharding.publish import copy_range
from pipeline.sources import SourceOptions
from pipeline.sources.key_range import EVERYTHING
from pipeline.sources.listing import list_range
from pipeline.stages.build import build
from pipeline.stages.shard import write_shards
from pipeline.storage import Place, copy_new, place_of
from pipeline.tables.files import find_files
from pipeline.tables.source import read_table
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages, jpeg
from tests.published import commit, no_progress, set_options
from tests.snapshots import take_snapshot
from tests.waiting import until

SOURCE = "gs://bucket/raw/photos"


def upload(folder: Path, uri: str = SOURCE) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            copy_new(path, place_of(uri) / path.relative_to(folder).as_posix())


def built(source: str, workspace: str, **settings: Any) -> dict[str, Any]:
    return build(settings_from({"source_uri": source, "workspace": workspace, **settings}))


def compressed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def shards_of(result: dict[str, Any]) -> dict[str, bytes]:
    folder = place_of(result["dataset"])
    return {
        shard.name: (folder / shard.name).read_bytes()
        for split in load(folder).splits.values()
        for shard in split.shards
    }


@pytest.fixture
def images(make_images: MakeImages, gcs: FakeGcs) -> Path:
    """Images of three classes, with a broken image, a duplicate and a hidden file, on the disk and in the bucket."""
    folder = make_images({"cats": 8, "dogs": 8, "eels": 8})
    (folder / "cats" / "broken.jpg").write_bytes(b"no image")
    (folder / "cats" / "again.jpg").write_bytes((folder / "cats" / "000.jpg").read_bytes())
    (folder / "dogs" / "ä #?%.jpg").write_bytes(jpeg(77))
    (folder / "dogs" / ".hidden").write_bytes(b"")
    upload(folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "workspace", "published"),
    [
        pytest.param("bucket", "bucket", "", marks=pytest.mark.core),
        ("bucket", "disk", ""),
        ("disk", "bucket", ""),
        ("bucket", "bucket", "disk"),
        ("disk", "disk", "bucket"),
    ],
)
def test_disk_and_bucket_locations_give_the_same_version_and_bytes(
    images: Path, tmp_path: Path, source: str, workspace: str, published: str
):
    expected = built(str(images), str(tmp_path / "plain"))
    result = built(
        str(images) if source == "disk" else SOURCE,
        str(tmp_path / "mixed") if workspace == "disk" else "gs://bucket/work",
        publish_uri={"": "", "disk": str(tmp_path / "published"), "bucket": "gs://bucket/published"}[published],
    )
    assert result["version"] == expected["version"]
    assert result["rejected"] == 1
    assert shards_of(result) == shards_of(expected)
    assert verify(place_of(result["dataset"])) == {"ok": True, "records": 26, "problems": []}
    for name in ("rejected.jsonl", "duplicates.jsonl"):
        folders = [place_of(one["dataset"]) for one in (result, expected)]
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


@pytest.mark.long
def test_a_second_run_finds_the_dataset_complete_and_fetches_no_image(images: Path, gcs: FakeGcs):
    first = built(SOURCE, "gs://bucket/work")
    names, fetched = gcs.names("bucket"), gcs.requests["download"]
    second = built(SOURCE, "gs://bucket/work")
    assert second == {**first, "already_complete": True}
    assert gcs.names("bucket") == names
    assert gcs.requests["download"] - fetched <= 12  # files of the work folder; the source has 27 images


def test_a_local_workspace_fetches_each_image_only_once(images: Path, tmp_path: Path, gcs: FakeGcs):
    gcs.delete("bucket", "raw/photos/cats/again.jpg")  # two concurrent fetches may both download equal images
    for shards in (4, 7):
        built(SOURCE, str(tmp_path / "w"), num_shards=shards)
        assert gcs.requests["download"] == 26
    copies = [path for path in (tmp_path / "w" / "raw").rglob("*") if path.is_file()]
    assert len(copies) == 26


def test_a_workspace_in_a_bucket_stores_no_copy_of_the_images(images: Path):
    built(SOURCE, "gs://bucket/work")
    below = {key.split("/")[0] for key, _ in storage.objects(storage.BucketPath("bucket", "work"))}
    assert below == {"datasets", "work"}


def test_a_damaged_local_copy_of_an_image_is_fetched_again(images: Path, tmp_path: Path, gcs: FakeGcs):
    first = built(SOURCE, str(tmp_path / "w"))
    digests = [hashlib.md5((images / "dogs" / f"00{number}.jpg").read_bytes()).hexdigest() for number in range(3)]
    copies = [tmp_path / "w" / "raw" / digest[:2] / digest for digest in digests]
    copies[0].write_bytes(bytes(copies[0].stat().st_size))  # the size is correct, the content is not
    copies[1].write_bytes(copies[1].read_bytes()[:10])
    copies[2].unlink()
    before = gcs.requests["download"]
    again = built(SOURCE, str(tmp_path / "w"), num_shards=3)
    assert gcs.requests["download"] - before == 3
    assert again["examples"] == first["examples"]


def test_an_image_changed_after_listing_stops_the_run(
    images: Path, tmp_path: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
):
    from pipeline.stages import build as module

    def change_then_write(*args: Any) -> Place:
        gcs.put("bucket", "raw/photos/cats/001.jpg", jpeg(4711))
        return write(*args)

    write = module.write_shards
    monkeypatch.setattr(module, "write_shards", change_then_write)
    with pytest.raises(SourceError, match=r"photos/cats/001.jpg changed or vanished after it was listed"):
        built(SOURCE, "gs://bucket/work")
    assert not [name for name in gcs.names("bucket") if name.endswith("dataset.json")]
    monkeypatch.undo()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    assert built(SOURCE, "gs://bucket/work")["rejected"] == 1  # the next run creates another version


def test_a_list_and_its_images_can_be_stored_in_a_bucket(images: Path, tmp_path: Path, gcs: FakeGcs):
    names = [f"{label}/{number:03d}.jpg" for label in ("cats", "dogs") for number in range(8)]
    rows = "".join(f"{name},{name[:4]}\n" for name in names)
    gcs.put("bucket", "raw/photos/list.csv", f"path,label\n{rows}".encode())
    (images / "list.csv").write_text(f"path,label\n{rows}")
    far = "".join(f"{SOURCE}/{name},{name[:4]}\n" for name in names)
    (tmp_path / "far.csv").write_text(f"path,label\n{far}gs://bucket/none.jpg,cats\n")
    results = [
        built(source, str(tmp_path / "w"), dataset_name=name)
        for source, name in (
            (str(images / "list.csv"), "near"),
            (f"{SOURCE}/list.csv", "bucket"),
            (str(tmp_path / "far.csv"), "far"),
        )
    ]
    assert results[0]["version"] == results[1]["version"]
    assert [sum(result["examples"].values()) for result in results] == [16, 16, 16]
    assert [result["rejected"] for result in results] == [0, 0, 1]
    rejected = (place_of(results[2]["dataset"]) / "rejected.jsonl").read_text()
    assert json.loads(rejected)["path"] == "gs://bucket/none.jpg"


def test_each_object_is_accounted_for_and_all_spellings_give_one_version(images: Path, tmp_path: Path, gcs: FakeGcs):
    before = built(SOURCE, str(tmp_path / "before"))
    for name in ("", "cats/", "dogs//001.jpg", "/cats/001.jpg"):
        gcs.put("bucket", f"raw/photos/{name}", jpeg(5) if name.endswith("jpg") else b"")
    results = [built(f"{SOURCE}/", workspace) for workspace in (str(tmp_path / "w"), "gs://bucket/work")]
    assert {result["version"] for result in results} == {before["version"]}
    dataset = load(place_of(results[0]["dataset"]))
    assert dataset.source["skipped"] == {
        "a name with an empty part, such as a//b.jpg": 2,
        "hidden": 1,
        "the marker of a folder, as web consoles create it": 2,
    }
    objects = [name for name in gcs.names("bucket") if name.startswith("raw/photos/")]
    assert len(objects) == sum(results[0]["examples"].values()) + results[0]["rejected"] + 5


def test_an_empty_object_and_a_compressed_one_are_rejected_as_on_a_disk(images: Path, tmp_path: Path, gcs: FakeGcs):
    """The CRC32C of an empty object is 0."""
    (images / "cats" / "empty.jpg").touch()
    (images / "cats" / "gzip.jpg").write_bytes(compressed(jpeg(6)))
    gcs.put("bucket", "raw/photos/cats/empty.jpg", b"")
    gcs.put("bucket", "raw/photos/cats/gzip.jpg", compressed(jpeg(6)), encoding="gzip")
    names = [path.relative_to(images) for path in sorted(images.rglob("*.jpg"))]
    rows = "".join(f'"{name}",{name.parent}\n' for name in names)
    gcs.put("bucket", "raw/photos/list.csv", f"path,label\n{rows}".encode())
    places = {"disk": str(images), "bucket": SOURCE, "list": f"{SOURCE}/list.csv"}
    for workspace in (str(tmp_path / "w"), "gs://bucket/work"):
        results = {name: built(place, workspace, dataset_name=name) for name, place in places.items()}
        assert len({result["version"] for result in results.values()}) == 1
        for result in results.values():
            lines = (place_of(result["dataset"]) / "rejected.jsonl").read_text().splitlines()
            assert {row["path"]: row["reason"] for row in map(json.loads, lines)} == {
                "cats/broken.jpg": "not an image: it starts with b'no image'",
                "cats/empty.jpg": "the file is empty",
                "cats/gzip.jpg": "it is compressed with gzip",
            }


def test_a_compressed_table_in_a_bucket_is_read_or_refused_with_the_compression(tmp_path: Path, gcs: FakeGcs):
    parquet.write_table(pa.table({"x": [1, 2], "label": ["a", "b"]}), tmp_path / "t.parquet")
    contents = {"t.csv": b"x,label\n1,a\n2,b\n", "t.parquet": (tmp_path / "t.parquet").read_bytes()}
    for name, content in contents.items():
        gcs.put("bucket", f"tables/{name}/{name}", compressed(content), encoding="gzip")
        gcs.put("bucket", f"tables/{name}/", b"")
    gcs.put("bucket", "list/list.csv", compressed(b"path,label\na.jpg,a\n"), encoding="gzip")
    files = find_files(place_of("gs://bucket/tables/t.csv"))
    assert [row for raw in read_table(files.files) for row in raw.batch.to_pylist()] == [
        {"x": "1", "label": "a"},
        {"x": "2", "label": "b"},
    ]
    assert [item.reason for item in files.skipped] == ["the marker of a folder, as web consoles create it"]
    with pytest.raises(SourceError, match=r"t\.parquet cannot be read .*compressed by gzip: decompress it"):
        list(read_table(find_files(place_of("gs://bucket/tables/t.parquet")).files))
    with pytest.raises(SourceError, match=r"list\.csv cannot be read .*compressed by gzip: decompress it"):
        list(list_range(place_of("gs://bucket/list/list.csv"), SourceOptions(copies=str(tmp_path)), EVERYTHING))


def test_the_error_for_an_empty_prefix_names_the_source(images: Path, tmp_path: Path):
    with pytest.raises(Exception, match=r"source_uri .*gs://bucket/nothing"):
        built("gs://bucket/nothing", str(tmp_path / "w"))


def require_at_once(gcs: FakeGcs, operation: str, matches: str, count: int, work: Callable[[], object]) -> None:
    """Fail unless `work` sends `count` requests before one of them is answered."""
    held = gcs.fail("stall", on=operation, matches=matches, times=count)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        until(lambda: held.fired, 20, is_expected=lambda fired: fired == count)
    finally:
        held.release()
        thread.join()


@pytest.mark.long
def test_dataset_versions_are_read_concurrently(images: Path, gcs: FakeGcs):
    first = built(SOURCE, "gs://bucket/work", dataset_name="birds")
    name_folder = place_of(first["dataset"]).parent
    for number in range(8):
        gcs.put("bucket", f"{name_folder.key}/{number:016x}/dataset.json", b"not one of ours")
    require_at_once(gcs, "get", "dataset.json", 9, lambda: last_version(name_folder, but="none"))
    newest = last_version(name_folder, but="none")
    assert newest is not None
    assert newest.version == first["version"]
    assert last_version(name_folder, but=first["version"]) is None


@pytest.mark.long
def test_shards_in_a_bucket_are_committed_and_removed_concurrently(images: Path, gcs: FakeGcs):
    settings = settings_from(
        {"source_uri": SOURCE, "workspace": "gs://bucket/work", "publish_uri": "gs://bucket/published"}
    )
    plan = write_shards(settings, take_snapshot(settings))
    for path in load_plan(plan).ranges:
        copy_range(place_of(path), no_progress)
    require_at_once(gcs, "get", r"work/.*/shards/", 8, lambda: commit(plan, settings))
    assert not [name for name in gcs.names("bucket") if "/shards/" in name]


def test_shard_results_are_read_concurrently(images: Path, gcs: FakeGcs):
    settings = settings_from({"source_uri": SOURCE, "workspace": "gs://bucket/work"})
    plan = write_shards(settings, take_snapshot(settings))
    require_at_once(gcs, "download", r"/results/", 8, lambda: commit(plan, settings))


@pytest.mark.long
def test_each_command_line_stage_accepts_the_output_of_the_previous_stage(
    images: Path, gcs: FakeGcs, capsys: pytest.CaptureFixture[str]
):
    options = [*set_options(source_uri=SOURCE, workspace="gs://bucket/work"), "--json"]

    def stage(*arguments: str) -> dict[str, Any]:
        assert main([*arguments, *options]) == 0, capsys.readouterr().err
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    snapshot = stage("extract")["snapshot"]
    plan = stage("shard", snapshot)["plan"]
    assert snapshot.startswith("gs://bucket/work/")
    assert plan.startswith("gs://bucket/work/")
    made = stage("upload", plan)
    assert verify(place_of(made["dataset"]))["ok"]
    assert main(["shard", "gs://bucket/work/other.json", *options]) == 1
    assert "snapshot gs://bucket/work/other.json is not a file: give the path" in capsys.readouterr().err
