"""Random access to records: `Shards(folder)[i]` is record i, with an index, without one, in gzip and in a bucket."""

import os
import pickle
import shutil
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from pipeline.dataset.index_files import index_name
from pipeline.dataset.manifest import load
from pipeline.dataset.shards import Shards
from pipeline.errors import DatasetError
from pipeline.records import tfrecord
from pipeline.storage import place_of
from standins.fake_gcs import FakeGcs
from tests.published import IN_FOLDERS, examples, make_folders, publish, publish_case

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of encoded images, with several records in each of its three training shards."""
    place = tmp_path_factory.mktemp("shards")
    return publish(make_folders(place / "source", IN_FOLDERS), place / "workspace", num_shards=3)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_each_record_is_returned_by_its_position(folder: Path, split: str):
    truth, shards = list(examples(folder, split)), Shards(folder, split)
    assert len(shards) == len(truth) == load(folder).splits[split].examples
    assert [shards[number] for number in range(len(truth))] == truth
    assert [shards[number] for number in range(-len(truth), 0)] == truth
    assert list(shards) == truth
    assert shards[np.int64(1)] == truth[1]
    assert shards.__getitems__([1, 0, 1]) == [truth[1], truth[0], truth[1]]


def test_empty_shards_are_passed_over(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    assert 0 in [shard.examples for shard in load(folder).splits["train"].shards[:-1]]
    assert list(Shards(folder)) == list(examples(folder, "train"))


def test_a_script_reads_its_own_dataset_without_an_allowlist(folder: Path, tmp_path: Path):
    """Nobody else named the folder, and only Airflow's workers have lists."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TENFOLD_")}
    ours["PYTHONPATH"] = str(ROOT)
    script = f"from pipeline.dataset.shards import Shards; print(len(Shards({str(folder)!r})))"
    done = subprocess.run([sys.executable, "-c", script], env=ours, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("8", 0), done.stderr


@pytest.mark.parametrize("number", [8, -9])
def test_a_position_outside_of_the_split_is_refused(folder: Path, number: int):
    with pytest.raises(IndexError, match=rf"train has 8 records, so there is no record {number}"):
        Shards(folder)[number]


def test_an_unknown_split_is_refused(folder: Path):
    with pytest.raises(DatasetError, match="no split 'test': choose one of train, validation"):
        Shards(folder, "test")


def test_only_the_requested_record_is_read(copy: Path):
    """All records of the first shard but the second one are overwritten."""
    wanted, first = Shards(copy)[1], load(copy).splits["train"].shards[0]
    before, record, *_ = map(tfrecord.frame, tfrecord.read_records(copy / first.name))
    damaged = b"?" * len(before) + record
    (copy / first.name).write_bytes(damaged.ljust(first.bytes, b"?"))
    assert Shards(copy)[1] == wanted
    with pytest.raises(DatasetError, match="record at byte 0 has a damaged header"):
        Shards(copy)[0]


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_without_a_sound_index_the_shard_is_scanned(copy: Path, damage: str, caplog: pytest.LogCaptureFixture):
    for path in (copy / "index").iterdir():
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] if damage == "cut" else b"0 20\n")
    assert list(Shards(copy)) == list(examples(copy, "train"))
    assert ("does not match its shard" in caplog.text) is (damage != "missing")


def test_gzip_shards_are_read_too(tmp_path: Path):
    folder, _ = publish_case("gzip", tmp_path)
    truth = list(examples(folder, "train"))
    assert [Shards(folder)[number] for number in range(len(truth))] == truth


@pytest.mark.parametrize("has_index", [True, False])
def test_damage_is_reported_and_not_returned(copy: Path, has_index: bool):
    if not has_index:
        shutil.rmtree(copy / "index")
    path = copy / load(copy).splits["train"].shards[0].name
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{path.name}: the record at byte 0 is damaged"):
        Shards(copy)[0]


def _read(given: tuple[Shards, list[int]]) -> list[dict]:
    shards, numbers = given
    return shards.__getitems__(numbers)


def test_workers_of_a_loader_get_a_small_copy(folder: Path):
    """As PyTorch does with `num_workers`, for processes that are spawned."""
    shards = Shards(folder)
    small = len(pickle.dumps(shards))
    truth = list(shards)
    assert len(pickle.dumps(shards)) == small  # Without the offsets, of which a dataset can have millions.
    with get_context("spawn").Pool(2) as pool:
        assert pool.map(_read, [(shards, [0, 3]), (shards, [7])]) == [[truth[0], truth[3]], [truth[7]]]


def test_tensorflow_is_not_imported(folder: Path):
    code = (
        "import sys; from pipeline.dataset.shards import Shards; Shards(sys.argv[1])[0]; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder)]).returncode == 0


def test_a_bucket_sends_only_the_requested_record(gcs: FakeGcs, folder: Path):
    truth = list(examples(folder, "train"))
    publish(folder.parents[3] / "source", "gs://bucket/w", num_shards=3)
    uri = f"gs://bucket/w/datasets/images/{folder.name}"
    assert list(Shards(uri)) == truth
    before = gcs.requests["download"]
    assert Shards(uri).__getitems__([2, 0, *range(len(truth))]) == [truth[2], truth[0], *truth]
    # One request for each record, for the index of each of three shards, and for `dataset.json`.
    assert gcs.requests["download"] - before == len(truth) + 2 + 3 + 1
    # Now all records of the first shard but the first one are damaged.
    first = load(folder).splits["train"].shards[0]
    record = tfrecord.frame(next(tfrecord.read_records(folder / first.name)))
    gcs.put("bucket", f"w/datasets/images/{folder.name}/{first.name}", record.ljust(first.bytes, b"?"))
    assert Shards(uri)[0] == truth[0]
    (place_of(uri) / index_name(first.name)).unlink()
    with pytest.raises(DatasetError, match="damaged header"):  # The whole shard is scanned.
        Shards(uri)[0]
