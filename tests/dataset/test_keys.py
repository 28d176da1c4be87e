"""Records are found by the keys of their images, with an index, without one, in gzip and in a bucket."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import tensorflow as tf

from pipeline import storage
from pipeline.config.settings import settings_from
from pipeline.dataset import keys
from pipeline.dataset.keys import find_images, keys_at
from pipeline.dataset.manifest import load
from pipeline.errors import DatasetError
from pipeline.records import tfrecord
from pipeline.stages.build import build
from pipeline.storage import BucketPath, Place
from standins.fake_gcs import FakeGcs
from tests.conftest import jpeg
from tests.published import CASES, publish, publish_case


def records(folder: Path) -> dict[str, tuple[str, str, int, bytes]]:
    """Return split, shard, number and content of every record by its key, as TensorFlow reads them."""
    dataset = load(folder)
    name, found = dataset.records.keys.filename, {}
    for split, of_split in dataset.splits.items():
        for shard in of_split.shards:
            compression = "GZIP" if shard.name.endswith(".gz") else ""
            read = tf.data.TFRecordDataset(str(folder / shard.name), compression).as_numpy_iterator()
            for number, record in enumerate(read):
                key = tf.train.Example.FromString(record).features.feature[name].bytes_list.value[0].decode()
                found[key] = (split, shard.name, number, record)
    return found


def images_of(folder: Place, wanted: Sequence[str]) -> dict[str, tuple[str, str, int, bytes]]:
    return {
        each.key: (each.split, each.shard, each.number, each.record)
        for each in find_images(folder, load(folder), wanted)
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose keys are parts of each other: `a/1.jpg`, `a/11.jpg`, `a/111.jpg` ... It rejected one image."""
    place = tmp_path_factory.mktemp("keys")
    for number in range(1, 13):
        path = place / "source" / "ab"[number % 2] / f"{'1' * number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    (place / "source" / "a" / "cut.jpg").write_bytes(jpeg(20)[:50])
    return publish(place / "source", place / "workspace", num_shards=3)


@pytest.mark.parametrize("case", CASES)
def test_each_image_of_a_dataset_is_returned_by_its_key(case: str, tmp_path: Path):
    folder, images = publish_case(case, tmp_path)
    truth = records(folder)
    assert len(truth) == len(images)
    assert images_of(folder, list(truth)) == truth


@pytest.mark.parametrize("head_bytes", [keys.HEAD_BYTES, 20])  # The key may be after the beginning that is read.
@pytest.mark.parametrize("has_index", [True, False])
def test_a_key_that_is_part_of_another_is_not_confused(
    folder: Path, head_bytes: int, has_index: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keys, "HEAD_BYTES", head_bytes)
    if not has_index:
        monkeypatch.setattr(keys, "load_sizes", lambda *_: None)
    truth = records(folder)
    for key in truth:
        assert images_of(folder, [key]) == {key: truth[key]}


def test_the_images_are_in_the_order_of_the_keys(folder: Path):
    wanted = sorted(records(folder))
    assert list(images_of(folder, wanted)) == wanted
    assert list(images_of(folder, wanted[::-1])) == wanted[::-1]


def test_only_the_matching_record_is_read_whole(folder: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    record_at = tfrecord.record_at
    monkeypatch.setattr(tfrecord, "record_at", lambda *given: read.append(given[1]) or record_at(*given))
    assert images_of(folder, ["a/11.jpg"])
    assert len(read) == 1


def test_an_image_is_returned_from_a_bucket(folder: Path, gcs: FakeGcs):
    gcs.put_folder("bucket", "published/", folder)
    key, truth = next(iter(records(folder).items()))
    assert images_of(BucketPath("bucket", "published"), [key]) == {key: truth}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("a/cut.jpg", "has no image 'a/cut.jpg', because it was rejected: "),
        ("1.jpg", "has no image '1.jpg': give its path below the source"),
        ("", "has no image '': give its path below the source"),
    ],
)
def test_the_reason_for_a_missing_image_is_given(folder: Path, key: str, message: str):
    with pytest.raises(DatasetError) as caught:
        find_images(folder, load(folder), ["a/11.jpg", key])
    assert message in str(caught.value)


def test_a_missing_shard_is_reported(folder: Path, tmp_path: Path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    missing = copy / records(copy)["a/11.jpg"][1]
    missing.unlink()
    with pytest.raises(DatasetError, match=missing.name):
        find_images(copy, load(copy), ["a/11.jpg"])


def test_a_damaged_record_is_not_returned(folder: Path, tmp_path: Path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    _, shard, _, record = records(copy)["a/11.jpg"]
    content = (copy / shard).read_bytes()
    damaged = bytearray(content)
    damaged[content.index(record) + len(record) - 1] ^= 1
    (copy / shard).write_bytes(damaged)
    with pytest.raises(DatasetError, match="is damaged"):
        find_images(copy, load(copy), ["a/11.jpg"])


@pytest.mark.parametrize("case", ["keep", "few shards", "gzip"])
def test_keys_are_read_by_ascending_positions(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keys, "PART_BYTES", 1500)  # a patch, because the shards of a test are small
    folder, _ = publish_case(case, tmp_path)
    dataset = load(folder)
    every = [key for key, (split, *_) in records(folder).items() if split == "train"]
    assert list(keys_at(folder, dataset, "train", range(len(every)))) == every
    assert list(keys_at(folder, dataset, "train", range(1, len(every), 3))) == every[1::3]
    assert list(keys_at(folder, dataset, "train", [])) == []
    with pytest.raises(DatasetError, match=f"has {len(every)} train examples"):
        list(keys_at(folder, dataset, "train", [0, len(every)]))


def test_each_index_is_read_once_and_close_records_together(folder: Path, monkeypatch: pytest.MonkeyPatch):
    indexes: list[str] = []
    ranges: list[int] = []
    load_sizes, read_range = keys.load_sizes, storage.read_range
    monkeypatch.setattr(keys, "load_sizes", lambda *given: indexes.append(given[1].name) or load_sizes(*given))
    monkeypatch.setattr(storage, "read_range", lambda *given: ranges.append(given[2]) or read_range(*given))
    dataset = load(folder)
    split = dataset.splits["train"]
    assert len(list(keys_at(folder, dataset, "train", range(split.examples)))) == split.examples > 1
    assert indexes == [shard.name for shard in split.shards if shard.examples]
    assert sorted(ranges) == sorted(shard.bytes for shard in split.shards if shard.examples)
    ranges.clear()
    monkeypatch.setattr(keys, "PART_BYTES", 1)
    assert len(list(keys_at(folder, dataset, "train", range(split.examples)))) == len(ranges) == split.examples


def test_records_without_keys_are_not_read(tmp_path: Path):
    source = tmp_path / "rows.csv"
    source.write_text("x,label\n" + "".join(f"{number},{'ab'[number % 2]}\n" for number in range(40)))
    places = {"source_uri": str(source), "workspace": str(tmp_path / "workspace")}
    folder = Path(build(settings_from({**places, "example_kind": "table", "label_column": "label"}))["dataset"])
    dataset = load(folder)
    for shard in dataset.shards:
        (folder / shard.name).unlink()
    assert list(keys_at(folder, dataset, "train", [0, 2])) == ["", ""]
