"""A dataset whose shards are listed in files beside `dataset.json`, because a split has many of them."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pipeline.dataset.manifest import Dataset, list_shards, load, require_shards, save, to_json
from pipeline.dataset.shard_lists import MAX_LISTED_SHARDS, Shard, write_shard_lists
from pipeline.dataset.verify import verify
from pipeline.errors import ConflictError, DatasetError
from pipeline.sharding import commit as committing
from pipeline.storage import Place
from tests.conftest import MakeImages
from tests.dataset.test_dataset_schema import VALIDATOR
from tests.dataset.test_manifest import change
from tests.published import CASES, files_of, publish, publish_case

LISTS = [f"shards-train-{number:05d}-of-00003.jsonl" for number in range(3)]


def with_lists(folder: Place) -> Dataset:
    """Commit the dataset in `folder` again, with lists of 4 shards each, and return what `load` returned before."""
    dataset = load(folder)
    (folder / "dataset.json").unlink()
    save(folder, list_shards(folder, dataset, max_listed=4), {})
    return dataset


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest, make_images: MakeImages, tmp_path: Path) -> Place:
    """A dataset with 10 training shards, which fill two lists and half of a third one, and one validation shard."""
    if request.param == "bucket":
        request.getfixturevalue("gcs")
    workspace = {"disk": str(tmp_path / "w"), "bucket": "gs://bucket/w"}[request.param]
    return publish(make_images({"a": 12, "b": 12}), workspace, num_shards=10)


def test_a_dataset_with_lists_equals_one_without(folder: Place):
    before = with_lists(folder)
    after = load(folder)
    assert after == before
    content = json.loads((folder / "dataset.json").read_bytes())
    train, validation = content["splits"]["train"], content["splits"]["validation"]
    assert [listed["file"] for listed in train["shard_lists"]] == LISTS
    assert [listed["shards"] for listed in train["shard_lists"]] == [4, 4, 2]
    assert "shards" not in train
    assert "shard_lists" not in validation
    assert [listed["file"] for listed in after.lists][-3:] == LISTS
    assert list(VALIDATOR.iter_errors(content)) == []
    require_shards(folder, after)
    assert verify(folder)["ok"]


@pytest.mark.parametrize("case", CASES)
def test_a_dataset_without_lists_keeps_its_bytes(case: str, tmp_path: Path):
    folder, _ = publish_case(case, tmp_path)
    assert to_json(list_shards(folder, load(folder))) == (folder / "dataset.json").read_bytes()
    assert b"shard_lists" not in (folder / "dataset.json").read_bytes()


@pytest.mark.parametrize("more", [0, 1])
def test_a_split_has_lists_only_above_the_limit(more: int, tmp_path: Path):
    shards = [Shard(f"train-{number:05d}.tfrecord", 1, 1, "00000000", "") for number in range(MAX_LISTED_SHARDS + more)]
    lists = write_shard_lists(tmp_path, "train", shards)
    assert [listed["shards"] for listed in lists] == [MAX_LISTED_SHARDS, 1][: 2 * more]
    assert len(list(tmp_path.iterdir())) == len(lists)


@pytest.mark.parametrize("name", LISTS[::2])
def test_a_missing_list_is_named(folder: Place, name: str):
    with_lists(folder)
    loaded = load(folder)
    (folder / name).unlink()
    for read in (load, verify):
        with pytest.raises(DatasetError, match=rf"{name}, which the dataset needs, is missing: restore"):
            read(folder)
    with pytest.raises(DatasetError, match=rf"{name} .*is missing"):
        require_shards(folder, loaded)


@pytest.mark.parametrize("damage", ["changed", "cut"])
def test_a_damaged_list_is_named(folder: Place, damage: str):
    with_lists(folder)
    loaded = load(folder)
    content = (folder / LISTS[1]).read_bytes()
    (folder / LISTS[1]).unlink()
    # All lines of both are valid JSON.
    cut, changed = content[: content.rindex(b"\n", 0, -1) + 1], content.replace(b'"bytes": ', b'"bytes":1')
    save(folder, loaded, {LISTS[1]: cut if damage == "cut" else changed})
    for read in (load, verify):
        with pytest.raises(DatasetError, match=rf"{LISTS[1]} does not have the CRC32C [0-9a-f]+ "):
            read(folder)
    # On a disk, it compares only sizes.
    if damage == "cut" or not isinstance(folder, Path):
        with pytest.raises(DatasetError, match=rf"{LISTS[1]} .*(should hold|was overwritten)"):
            require_shards(folder, loaded)


def test_a_list_outside_of_the_folder_is_not_read(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    with_lists(folder)
    change(folder, lambda content: content["splits"]["train"]["shard_lists"][0].update(file="../other.jsonl"))
    with pytest.raises(DatasetError, match=re.escape("Tenfold never gives the name '../other.jsonl'")):
        load(folder)


def test_a_shard_outside_of_the_folder_is_refused(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    dataset = load(folder)
    (folder / "dataset.json").unlink()
    train = dataset.splits["train"]
    hostile = tuple(replace(each, name="../x.tfrecord") for each in train.shards)
    changed = {**dataset.splits, "train": type(train)(train.examples, train.bytes, train.classes, hostile)}
    dataset = type(dataset)(**{**vars(dataset), "splits": changed})
    save(folder, list_shards(folder, dataset, max_listed=4), {})
    with pytest.raises(DatasetError, match=re.escape("Tenfold never gives the name '../x.tfrecord'")):
        load(folder)


def test_a_commit_that_was_killed_before_its_end_can_run_again(folder: Place):
    dataset = load(folder)
    list_shards(folder, dataset, max_listed=4)
    assert with_lists(folder) == load(folder)


def test_another_list_is_not_replaced(folder: Place):
    dataset = load(folder)
    save(folder, dataset, {LISTS[2]: b"other\n"})
    with pytest.raises(ConflictError, match=LISTS[2]):
        list_shards(folder, dataset, max_listed=4)
    assert (folder / LISTS[2]).read_bytes() == b"other\n"


def test_a_build_writes_lists_and_the_same_card(
    make_images: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = make_images({"a": 12, "b": 12})
    inline = publish(source, tmp_path / "inline", num_shards=10)
    # More than 10,000 real shards would take minutes.
    monkeypatch.setattr(committing, "list_shards", partial(list_shards, max_listed=4))
    listed = publish(source, tmp_path / "listed", num_shards=10)
    assert load(listed) == load(inline)
    ours, others = files_of(listed), files_of(inline)
    assert sorted(ours.keys() - others.keys()) == LISTS
    differing = [name for name in others if ours[name] != others[name]]
    assert differing == ["dataset.json"]
    # The version is committed. Another build has nothing to do.
    assert publish(source, tmp_path / "listed", num_shards=10) == listed
