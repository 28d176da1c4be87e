import numpy as np
import pytest

from pipeline.plan import assign as plan
from pipeline.plan.range_plan import ShardSpec, describe_range
from pipeline.snapshot.part import hash_texts, sizes_and_crc32cs


@pytest.mark.parametrize(
    ("images", "train_shards", "servers", "expected"),
    [
        ({"train": 800, "validation": 200}, 10, 1, {"train": 10, "validation": 3}),
        ({"train": 800, "validation": 200, "test": 80}, 10, 1, {"train": 10, "validation": 3, "test": 1}),
        ({"train": 800, "validation": 8}, 80, 8, {"train": 80, "validation": 8}),  # at least one per server
        ({"train": 5, "validation": 2}, 10, 1, {"train": 10, "validation": 2}),  # no empty shard without need
        ({"train": 5, "validation": 0}, 10, 1, {"train": 10}),
    ],
)
def test_shard_counts(images: dict, train_shards: int, servers: int, expected: dict):
    assert plan.shard_counts(images, train_shards, servers) == expected


def test_shards_differ_by_at_most_one_image():
    specs = plan.shard_specs({"train": 11, "validation": 3}, {"train": 4, "validation": 2}, ".tfrecord")
    assert specs == [
        ShardSpec("train-00000-of-00004.tfrecord", "train", 2),
        ShardSpec("train-00001-of-00004.tfrecord", "train", 3),
        ShardSpec("train-00002-of-00004.tfrecord", "train", 3),
        ShardSpec("train-00003-of-00004.tfrecord", "train", 3),
        ShardSpec("validation-00000-of-00002.tfrecord", "validation", 1),
        ShardSpec("validation-00001-of-00002.tfrecord", "validation", 2),
    ]


@pytest.mark.parametrize("shards", [99_999, 100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_names_of_many_shards_are_those_that_tfds_expects(shards: int):
    from tensorflow_datasets.core import naming  # It takes seconds, and only this test needs it.

    names = [spec.name for spec in plan.shard_specs({"train": 0}, {"train": shards}, ".tfrecord")]
    assert names == sorted(names)
    template = naming.ShardedFileTemplate(
        data_dir="/", template="{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}", split="train", filetype_suffix="tfrecord"
    )
    for index in (0, shards // 3, shards - 1):
        assert names[index] == template.relative_filepath(shard_index=index, num_shards=shards)


@pytest.mark.parametrize(("images", "shards"), [(0, 10), (3, 10), (10, 10), (1_281_167, 1024)])
def test_shards_hold_all_images(images: int, shards: int):
    counts = [spec.examples for spec in plan.shard_specs({"train": images}, {"train": shards}, ".tfrecord")]
    assert sum(counts) == images
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("shards", "per_task", "sizes"),
    [(10, 5, [5, 5]), (13, 5, [5, 5, 3]), (3, 5, [3]), (2500, 1, [3] * 833 + [1])],
)
def test_ranges_never_exceed_airflows_map_limit(shards: int, per_task: int, sizes: list[int]):
    specs = plan.shard_specs({"train": 0}, {"train": shards}, ".tfrecord")
    ranges = plan.shard_ranges(specs, per_task)
    assert [len(each) for each in ranges] == sizes
    assert [spec for each in ranges for spec in each] == specs
    assert len(ranges) <= 1000


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (0, 4, "train 0 to 3 of 10"),
        (9, 10, "train 9 of 10"),
        (8, 12, "train 8 of 10 to validation 1 of 3"),
        (10, 13, "validation 0 to 2 of 3"),
    ],
)
@pytest.mark.parametrize("ending", [".tfrecord", ".tfrecord.gz"])
def test_describe_range(start: int, end: int, text: str, ending: str):
    specs = plan.shard_specs({"train": 100, "validation": 30}, {"train": 10, "validation": 3}, ending)
    assert describe_range(specs[start:end]) == text


@pytest.mark.parametrize(
    ("total_bytes", "shards", "advice"),
    [
        (30_000_000_000, 80, ""),  # 30 GB on 8 servers: 375 MB each
        (30_000_000_000, 10, "10 training shards of 3 GB are too large to cache: set num_shards=200"),
        (200_000_000, 80, "80 training shards of 2.5 MB are too small to read fast: set num_shards=10"),
        (36_000_000, 10, ""),  # could not fill ten shards of 10 MB
        (100_000_000, 11, "11 training shards of 9.09 MB are too small to read fast: set num_shards=10"),
        (1_000_000_000, 1, ""),
    ],
)
def test_size_advice(total_bytes: int, shards: int, advice: str):
    assert plan.size_advice(total_bytes, shards) == advice


@pytest.mark.parametrize(
    ("examples", "shards", "advice"),
    [(10, 10, ""), (4, 10, "4 training examples leave 6 of 10 shards empty: set num_shards=4")],
)
def test_empty_shards_advice(examples: int, shards: int, advice: str):
    assert plan.empty_shards_advice(examples, shards) == advice


@pytest.mark.parametrize(("images", "gigabytes"), [(10_000_000, ""), (40_000_000, "12 GB of memory")])
def test_near_duplicates_advice(images: int, gigabytes: str):
    advice = plan.near_duplicates_advice(images)
    assert gigabytes in advice
    assert bool(advice) == bool(gigabytes)


def test_hashes_are_pinned():
    """The split and the order of every published dataset depend on these numbers."""
    assert hash_texts(["cats/000.jpg"]).tolist() == [8008755064667147167]
    equal = sizes_and_crc32cs(np.array([4711]), np.array([0x8A9136AA], np.uint32))
    assert equal.tolist() == [4711 << 32 | 0x8A9136AA]
    hashes = np.array([1, 2, 2**64 - 1], np.uint64)
    assert plan.salted(hashes, "order", 0).tolist() == [8808932717680844683, 11795949676296621916, 17195899584938286578]


@pytest.mark.parametrize(("purpose", "seed"), [("order", 1), ("split", 0)])
def test_another_purpose_or_seed_gives_other_hashes(purpose: str, seed: int):
    hashes = np.arange(1000, dtype=np.uint64)
    first, second = plan.salted(hashes, "order", 0), plan.salted(hashes, purpose, seed)
    assert len(set(first.tolist()) | set(second.tolist())) == 2000
    assert abs(np.corrcoef(first.astype(float), second.astype(float))[0, 1]) < 0.1
