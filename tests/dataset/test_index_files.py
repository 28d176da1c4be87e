"""The files in `index/`: written with the shards, published, verified, repaired, and made for datasets without them."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset import index_files
from pipeline.dataset.index_files import index_name, scan_shard, write_index
from pipeline.dataset.manifest import Dataset, images_at, load, named_image, readable_at
from pipeline.dataset.verify import verify
from pipeline.errors import DatasetError
from pipeline.plan.plan import load_plan
from pipeline.records import tfrecord
from pipeline.sharding.write import write_range
from pipeline.stages.build import build
from pipeline.storage import Place, local, place_of
from pipeline.tables.samples import write_sample_table
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages
from tests.published import (
    build_in_stages,
    changed,
    commit,
    files_of,
    indexes_by_tfrecord2idx,
    no_progress,
    planned,
    publish,
    publish_case,
    write_and_copy,
)
from tests.table_rows import rows_at
from tests.writes import writes


def indexes(folder: Place, dataset: Dataset | None = None) -> dict[str, bytes]:
    """Return the content of the index of each shard, by the name of the index."""
    dataset = dataset or load(folder)
    names = [index_name(shard.name) for split in dataset.splits.values() for shard in split.shards]
    return {name: (folder / name).read_bytes() for name in names}


@pytest.mark.parametrize(
    ("shard", "index"),
    [
        ("train-00000-of-00010.tfrecord", "index/train-00000-of-00010.idx"),
        ("../../0123456789abcdef/test-00000-of-00001.tfrecord", "../../0123456789abcdef/index/test-00000-of-00001.idx"),
    ],
)
def test_the_index_is_beside_its_shard(shard: str, index: str):
    assert index_name(shard) == index


@pytest.mark.parametrize("case", ["keep", "raw", "boxes"])
def test_each_shard_has_the_index_that_tfrecord2idx_makes(case: str, tmp_path: Path):
    folder, _ = publish_case(case, tmp_path)
    shards = [shard for split in load(folder).splits.values() for shard in split.shards]
    assert len([*(folder / "index").iterdir()]) == len(shards) > 5
    theirs = indexes_by_tfrecord2idx(folder)
    assert {path.stem: path.read_bytes() for path in (folder / "index").iterdir()} == theirs
    for shard in shards:
        index = theirs[shard.name.removesuffix(".tfrecord")]
        assert (shard.index_bytes, shard.index_crc32c) == (len(index), index_files.crc32c_text(index))
    assert verify(folder)["ok"]


def test_gzip_shards_have_no_index(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder, _ = publish_case("gzip", tmp_path)
    assert not (folder / "index").exists()
    assert "index_bytes" not in (folder / "dataset.json").read_text()
    assert main(["index", str(folder)]) == 1
    assert "is compressed" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("publish_uri", ["", "published", "gs://bucket/published"])
@pytest.mark.parametrize("workspace", ["workspace", "gs://bucket/workspace"])
def test_indexes_are_published_from_any_workspace_to_any_place(
    workspace: str, publish_uri: str, settings: Settings, tmp_path: Path, gcs: FakeGcs
):
    expected = indexes(build_in_stages(changed(settings, workspace=str(tmp_path / "expected"))))
    local_places = {"workspace": str(tmp_path / "workspace"), "published": str(tmp_path / "published")}
    workspace, publish_uri = (local_places.get(place, place) for place in (workspace, publish_uri))
    plan_path, ranges = planned(changed(settings, workspace=workspace, publish_uri=publish_uri))
    write_and_copy(ranges)
    commit(plan_path, changed(settings, workspace=workspace, publish_uri=publish_uri))
    plan = load_plan(plan_path)
    assert indexes(place_of(plan.dataset)) == expected
    assert verify(place_of(plan.dataset))["ok"]
    if plan.written != plan.dataset:
        assert not place_of(plan.written).exists()


@pytest.mark.parametrize("damage", ["lost", "torn"])
@pytest.mark.parametrize("publish_uri", ["", "published"])
def test_an_index_that_was_lost_before_the_commit_is_made_again(
    damage: str, publish_uri: str, settings: Settings, tmp_path: Path
):
    settings = changed(settings, publish_uri=publish_uri and str(tmp_path / publish_uri))
    plan_path, ranges = planned(settings)
    for path in ranges:
        write_range(path, no_progress)
    written = [*Path(load_plan(plan_path).written).glob("index/*.idx")]
    before = {path.name: path.read_bytes() for path in written}
    for path in written:
        path.write_bytes(b"") if damage == "torn" else path.unlink()
    write_and_copy(ranges)
    commit(plan_path, settings)
    folder = Path(load_plan(plan_path).dataset)
    assert {path.name: path.read_bytes() for path in folder.glob("index/*")} == before
    assert verify(folder)["ok"]


def test_a_task_that_was_killed_before_the_index_writes_it(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    plan_path, ranges = planned(settings)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.sharding.write.write_index", kill)
        with pytest.raises(Killed):
            write_range(ranges[0], no_progress)
    folder = Path(load_plan(plan_path).written)
    assert [path.suffix for path in folder.iterdir()] == [".tfrecord"]
    write_and_copy(ranges)
    commit(plan_path, settings)
    assert verify(folder)["ok"]


def test_an_index_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "index" / "a.idx"
    with monkeypatch.context() as patch:
        patch.setattr(local, "_link", lambda *_: 1 / 0)  # The moment before it gets its name.
        with pytest.raises(ZeroDivisionError):
            write_index(path, b"0 16\n")
    assert not path.exists()
    write_index(path, b"0 16\n")
    before = writes([path])
    write_index(path, b"0 16\n")
    assert writes([path]) == before  # Equal files are not written again.
    write_index(path, b"0 17\n")
    assert path.read_bytes() == b"0 17\n"


def test_the_same_images_give_the_same_indexes_and_version(make_images: MakeImages, tmp_path: Path):
    source = make_images({"a": 12, "b": 12})
    one, other = publish(source, tmp_path / "one"), publish(source, tmp_path / "other")
    assert (one.name, indexes(one)) == (other.name, indexes(other))


# --- verify and index -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_case("keep", tmp_path_factory.mktemp("published"))[0]


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "copy" / published.name))


@pytest.fixture
def without_indexes(folder: Path) -> Path:
    shutil.rmtree(folder / "index")
    return folder


def test_verify_reports_an_index_that_is_missing_or_damaged(folder: Path):
    first, second, *_ = sorted((folder / "index").iterdir())
    first.unlink()
    second.write_bytes(b"0 20\n")
    result = verify(folder)
    assert [problem.split(":")[0] for problem in result["problems"]] == [
        f"{first} is missing",
        f"{second} does not match its shard",
    ]
    assert result["records"] == 10  # The shards are sound.
    assert main(["index", str(folder)]) == 0
    assert verify(folder)["ok"]


def test_lost_indexes_are_written_again_without_other_changes(
    without_indexes: Path, published: Path, capsys: pytest.CaptureFixture
):
    before = writes(without_indexes.iterdir())
    for written in (12, 0):
        assert main(["index", str(without_indexes), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result == {"dataset": str(without_indexes), "written": written, "present": 12 - written}
    assert writes(without_indexes.iterdir()) == before
    assert indexes(without_indexes) == indexes(published)
    assert verify(without_indexes)["ok"]


def test_a_damaged_shard_gets_no_index(without_indexes: Path, capsys: pytest.CaptureFixture):
    shard = next(shard for shard in load(without_indexes).splits["train"].shards if shard.examples)
    path = without_indexes / shard.name
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["index", str(without_indexes)]) == 1
    assert f"{path}: the record at byte 0 is cut short" in capsys.readouterr().err
    path.write_bytes(b"")
    assert main(["index", str(without_indexes)]) == 1
    assert f"{path} does not hold what was committed ({shard.examples} records, " in capsys.readouterr().err
    # As many records, but others.
    path.write_bytes(tfrecord.frame(b"x") * shard.examples)
    assert main(["index", str(without_indexes)]) == 1
    assert f"records, {shard.bytes} bytes): restore the file" in capsys.readouterr().err
    path.unlink()
    assert main(["index", str(without_indexes)]) == 1
    assert f"{path} is missing" in capsys.readouterr().err
    assert not (without_indexes / index_name(shard.name)).exists()


def test_lost_indexes_in_a_bucket_are_written_again(without_indexes: Path, published: Path, gcs: FakeGcs):
    gcs.put_folder("bucket", f"images/{without_indexes.name}/", without_indexes)
    uri = f"gs://bucket/images/{without_indexes.name}"
    before = writes(place_of(uri).iterdir())
    assert main(["index", uri]) == 0
    assert indexes(place_of(uri)) == indexes(published)
    assert writes(place_of(uri).iterdir()) == before
    assert verify(place_of(uri))["ok"]
    damaged = f"images/{without_indexes.name}/{next(name for name, index in indexes(published).items() if index)}"
    gcs.put("bucket", damaged, b"0 20\n")
    assert not verify(place_of(uri))["ok"]
    assert main(["index", uri]) == 0
    assert indexes(place_of(uri)) == indexes(published)


# --- the readers of the project ---------------------------------------------------------------------------------------


def test_images_by_position_read_no_other_record(settings: Settings):
    folder = build_in_stages(changed(settings, num_shards=2))
    dataset = load(folder)
    truth = images_at(folder, dataset, "train", range(4))
    first = dataset.splits["train"].shards[0]
    before, record, *_ = map(tfrecord.frame, tfrecord.read_records(folder / first.name))
    damaged = b"?" * len(before) + record
    (folder / first.name).write_bytes(damaged.ljust(first.bytes, b"?"))
    assert images_at(folder, dataset, "train", [1]) == truth[1:2]


@pytest.mark.parametrize("has_index", [True, False])
def test_damaged_records_are_left_out(settings: Settings, caplog: pytest.LogCaptureFixture, has_index: bool):
    """Without an index, nobody knows where the record after a damaged one begins."""
    folder = build_in_stages(changed(settings, num_shards=2))
    dataset = load(folder)
    first, second = dataset.splits["train"].shards
    assert first.examples >= 3
    frames = [*map(tfrecord.frame, tfrecord.read_records(folder / first.name))]
    frames[1] = b"?" * len(frames[1])
    (folder / first.name).write_bytes(b"".join(frames))
    if not has_index:
        shutil.rmtree(folder / "index")
    positions = range(first.examples + second.examples)
    found = readable_at(folder, dataset, "train", positions, lambda record: named_image(dataset, record))
    lost = {1} if has_index else set(range(1, first.examples))
    assert set(positions) - found.keys() == lost
    assert caplog.text.count(f"an example cannot be read: {folder / first.name}") == 1
    (folder / first.name).unlink()
    found = readable_at(folder, dataset, "train", positions, lambda record: named_image(dataset, record))
    assert set(positions) - found.keys() == set(range(first.examples))


def test_rows_of_a_table_by_position(tmp_path: Path):
    source = tmp_path / "t.csv"
    write_sample_table(source, 60)
    values = {"example_kind": "table", "source_uri": str(source), "workspace": str(tmp_path / "w"), "num_shards": 2}
    folder = Path(build(settings_from({**values, "label_column": "churn"}))["dataset"])
    dataset = load(folder)
    indexed = rows_at(folder, dataset, "train", [0, 5, 30])
    shutil.rmtree(folder / "index")
    assert rows_at(folder, dataset, "train", [0, 5, 30]) == indexed
    assert len(indexed) == 3


def test_a_search_for_shards_does_not_find_indexes(published: Path):
    shards = {shard.name for shard in load(published).splits["train"].shards}
    assert {path.name for path in published.rglob("train-*.tfrecord*")} == shards
    assert {path.name for path in published.glob("train-*")} == shards
    assert {name for name in files_of(published) if name.endswith(".idx")}


RECORDS = [b"", b"a", b"x" * 100_000, b"bb"]
"""Whole, they have 16, 17, 100,016 and 18 bytes."""


def test_the_scan_of_a_shard_finds_the_size_of_each_record(tmp_path: Path):
    (tmp_path / "some").write_bytes(b"".join(map(tfrecord.frame, RECORDS)))
    assert list(scan_shard(tmp_path / "some")) == [16, 17, 100_016, 18]
    (tmp_path / "empty").touch()
    assert list(scan_shard(tmp_path / "empty")) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "record at byte 100049 is cut short"),
        (lambda content: content[:40], "record at byte 33 has a damaged header"),
        (lambda content: content[:16] + b"\1" + content[17:16], "record at byte 16 has a damaged header"),
    ],
)
def test_a_damaged_file_is_not_indexed(tmp_path: Path, damage, message: str):
    path = tmp_path / "some"
    path.write_bytes(damage(b"".join(map(tfrecord.frame, RECORDS))))
    with pytest.raises(DatasetError, match=message):
        scan_shard(path)
