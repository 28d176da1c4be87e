"""Each version stores a hash of the bytes of every example."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import xxhash

from pipeline.config.settings import settings_from
from pipeline.dataset import lists
from pipeline.dataset.content_hashes import HASH_BYTES
from pipeline.dataset.groups import groups_of_split
from pipeline.dataset.lists import read_listed
from pipeline.dataset.manifest import load, require_shards
from pipeline.dataset.verify import verify
from pipeline.errors import DatasetError, FileSystemError, SourceError
from pipeline.plan.plan import load_plan
from pipeline.plan.results import hashes_path, results_folder
from pipeline.records import tfrecord
from pipeline.records.format import read_image
from pipeline.sharding.publish import copy_range
from pipeline.sharding.write import write_range
from pipeline.stages.build import build
from pipeline.stages.shard import plan_shards
from pipeline.storage import Place, place_of
from tests.conftest import MakeImages, jpeg
from tests.published import commit, newest_dataset, publish_case, rows_of_plan
from tests.snapshots import take_snapshot
from tests.table_rows import rows_at
from tests.writes import writes


def of_records(folder: Path) -> bytes:
    """Return the hashes of a dataset without groups, computed from all of its records."""
    dataset = load(folder)
    return b"".join(
        xxhash.xxh3_128_digest(read_image(record, dataset.records).encoded) + bytes(8)
        for split in dataset.splits.values()
        for shard in split.shards
        for record in tfrecord.read_records(folder / shard.name)
    )


@pytest.mark.parametrize("name", ["keep", "raw", "gzip", "boxes"])
def test_every_example_has_its_hash_in_the_order_of_the_shards(name: str, tmp_path: Path):
    folder = publish_case(name, tmp_path / "a")[0]
    dataset = load(folder)
    assert (folder / dataset.hashes["file"]).read_bytes() == of_records(folder)
    assert read_listed(folder, dataset.hashes) == of_records(folder)
    assert len(set(dataset.splits)) >= 2


def test_a_part_of_a_file_is_read_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "letters").write_bytes(b"abcdefghij")
    monkeypatch.setattr(lists, "CHUNK_BYTES", 4)
    listed = lists.file_facts("letters", b"abcdefghij")
    found = [read_listed(tmp_path, listed, begin, begin + 5) for begin in range(8)]
    assert found == [b"abcde", b"bcdef", b"cdefg", b"defgh", b"efghi", b"fghij", b"ghij", b"hij"]


@pytest.mark.parametrize("damage", ["missing", "another"])
def test_a_missing_or_damaged_hash_file_is_named(tmp_path: Path, damage: str):
    folder = publish_case("keep", tmp_path)[0]
    path = folder / "content_hashes.bin"
    content = path.read_bytes()
    path.unlink()
    if damage == "another":
        path.write_bytes(content[HASH_BYTES:] + content[:HASH_BYTES])
    with pytest.raises(DatasetError, match=r"content_hashes\.bin.* (missing|does not have the CRC32C)"):
        read_listed(folder, load(folder).hashes)
    [problem] = verify(folder)["problems"]
    assert "content_hashes.bin" in problem
    path.write_bytes(content[:-HASH_BYTES])
    with pytest.raises(DatasetError, match=rf"content_hashes\.bin should hold {len(content)} bytes"):
        require_shards(folder, load(folder))


def test_hashes_of_finished_shards_survive_a_failure(make_images: MakeImages, tmp_path: Path):
    source = make_images({"a": 12, "b": 12})
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "w"), "num_shards": 4})
    plan_path = plan_shards(settings, take_snapshot(settings))
    [range_path, *others] = map(place_of, load_plan(plan_path).ranges)
    third = rows_of_plan(range_path)[6 * 2].key  # the first image of the third shard
    (source / third).write_bytes(jpeg(1))
    paths = [hashes_path(range_path, f"train-{number:05d}-of-00004.tfrecord") for number in range(4)]
    original = jpeg(1000 * ord(third[0]) + int(third[2:5]))
    with pytest.raises(SourceError):
        write_range(range_path, lambda *_: None)
    assert [path.exists() for path in paths] == [True, True, False, False]
    before = writes(results_folder(range_path).iterdir())
    (source / third).write_bytes(original)
    for path in (range_path, *others):
        write_range(path, lambda *_: None)
        copy_range(path, lambda *_: None)
    assert before.items() <= writes(results_folder(range_path).iterdir()).items()
    commit(plan_path, settings)
    folder = Path(load_plan(plan_path).dataset)
    assert (folder / "content_hashes.bin").read_bytes() == of_records(folder)


@pytest.mark.parametrize("kept_bytes", [None, 0, 8])
def test_a_shard_without_all_its_hashes_is_written_again(
    make_images: MakeImages, tmp_path: Path, kept_bytes: int | None
):
    settings = settings_from({"source_uri": str(make_images({"a": 8, "b": 8})), "workspace": str(tmp_path / "w")})
    plan_path = plan_shards(settings, take_snapshot(settings))
    ranges = list(map(place_of, load_plan(plan_path).ranges))
    for path in ranges:
        write_range(path, lambda *_: None)
    lost = hashes_path(ranges[0], "train-00000-of-00010.tfrecord")
    hashes = lost.read_bytes()
    lost.unlink()
    if kept_bytes is not None:
        lost.write_bytes(hashes[:kept_bytes])
    with pytest.raises(
        FileSystemError, match=r"train-00000-of-00010\.tfrecord was not written, or .*run the shard stage"
    ):
        commit(plan_path, settings)
    write_range(ranges[0], lambda *_: None)
    assert lost.read_bytes() == hashes
    commit(plan_path, settings)


# --- groups -----------------------------------------------------------------------------------------------------------


def assert_grouped(numbers: Sequence[int], groups: Sequence[str]) -> None:
    """Assert that examples have the same number if they have the same group. An empty group stands for none."""
    assert len({*numbers}) > 1
    assert len({*zip(numbers, groups, strict=True)}) == len({*numbers})
    assert len({*numbers}) == len({*groups} - {""}) + list(groups).count("")


def test_images_have_the_group_of_their_pattern(make_images: MakeImages, tmp_path: Path):
    source, pattern = make_images({"a": 30, "b": 30}), r"^\d\d[0-5]"
    settings = {"source_uri": str(source), "workspace": str(tmp_path / "w"), "group_pattern": r"^(\d\d)[0-5]"}
    folder = Path(build(settings_from({**settings, "validation_fraction": 0.5}))["dataset"])
    dataset = load(folder)
    names = [
        read_image(record, dataset.records).filename.decode().rpartition("/")[2]
        for shard in dataset.splits["validation"].shards
        for record in tfrecord.read_records(folder / shard.name)
    ]
    groups = [name[:2] if re.match(pattern, name) else "" for name in names]
    assert_grouped(groups_of_split(folder, dataset, "validation").tolist(), groups)


def test_images_without_groups_have_no_numbers(make_images: MakeImages, tmp_path: Path):
    settings = settings_from({"source_uri": str(make_images({"a": 8, "b": 8})), "workspace": str(tmp_path / "w")})
    folder = Path(build(settings)["dataset"])
    assert groups_of_split(folder, load(folder), "validation").tolist() == []


def customers_of(folder: Place) -> list[str]:
    dataset = load(folder)
    count = dataset.splits["validation"].examples
    return [row["customer"][0] for row in rows_at(folder, dataset, "validation", range(count))]


def test_rows_have_the_group_of_their_column_also_in_a_window(tmp_path: Path):
    settings = {"example_kind": "table", "key_column": "id", "group_column": "customer", "label_column": "label"}
    settings |= {"source_uri": str(tmp_path / "sales" / "{date}.csv"), "workspace": str(tmp_path / "w"), "window": 2}
    settings |= {"validation_fraction": 0.3}
    (tmp_path / "sales").mkdir()
    for day, first in (("2026-01-01", 0), ("2026-01-02", 118)):  # One customer has rows on both dates.
        rows = [f"r{n},c{n // 4},{n % 7},{'yn'[n % 2]}" for n in range(first, first + 120)]
        (tmp_path / "sales" / f"{day}.csv").write_text("\n".join(["id,customer,x,label", *rows]))
        folder = Path(build(settings_from({**settings, "data_date": day}).dated())["dataset"])
        numbers = groups_of_split(folder, load(folder), "validation").tolist()
        assert_grouped(numbers, customers_of(folder))
    window = newest_dataset(settings_from(settings))
    numbers = groups_of_split(window, load(window), "validation").tolist()
    assert_grouped(numbers, customers_of(window))
