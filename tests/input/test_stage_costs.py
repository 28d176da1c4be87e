"""The stages of the input, one by one: each cut does the work up to its stage, and no more."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.dataset.manifest import Dataset, load
from pipeline.input import BatchOptions, Server
from pipeline.input import stage_costs as costs
from pipeline.input.batch_kind import batch_kind_of
from pipeline.records import example
from tests.input.test_images import published_of
from tests.input.test_tables import made

OPTIONS = BatchOptions(image_size=32, batch_size=7, shuffle_bytes=2000)
IMAGE_STAGES, ROW_STAGES = ["read", "parse", "decode", "resize", "batch"], ["read", "parse", "batch"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published_of(tmp_path_factory.mktemp("images"), 60)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("rows") / "published", 46, 14)


def sampled(folder: Path) -> tuple[Dataset, costs.Sample]:
    dataset = load(folder)
    return dataset, costs.sample_of(folder, dataset)


def failing(dataset: Dataset, sample: costs.Sample, damage: Mapping[int, int] | None = None) -> list[str]:
    """Return the cuts that cannot read all examples. `damage` changes bytes of the last file, by their places."""
    failed = []
    with costs._written(dataset, sample) as (folder, shards):
        if damage:
            content = bytearray((folder / shards[-1].name).read_bytes())
            for place, value in damage.items():
                content[place] ^= value
            (folder / shards[-1].name).write_bytes(content)
        split = costs._split_of(dataset, folder, shards, OPTIONS)
        for stage, cut in batch_kind_of(dataset).stages(split).items():
            try:
                for _ in costs.batches_of(split, cut).take(split.share.steps):
                    pass
            except tf.errors.OpError:
                failed.append(stage)
    return failed


def with_record(sample: costs.Sample, record: bytes) -> costs.Sample:
    """Return the sample with another record in place of the last one."""
    *shards, (*others, _) = sample.records
    return sample._replace(records=[*shards, [*others, record]])


def test_each_cut_of_images_does_the_work_of_its_stage(images: Path) -> None:
    dataset, sample = sampled(images)
    assert failing(dataset, sample) == []
    assert failing(dataset, sample, damage={-20: 1}) == ["read", "parse", "decode", "resize"]
    assert failing(dataset, with_record(sample, b"no example")) == ["parse", "decode", "resize"]
    features = {**example.decode(sample.records[-1][-1]), dataset.records.keys.encoded: [b"no image"]}
    assert failing(dataset, with_record(sample, example.encode(features))) == ["decode", "resize"]


def test_each_cut_of_rows_does_the_work_of_its_stage(rows: Path) -> None:
    dataset, sample = sampled(rows)
    assert failing(dataset, sample) == []
    assert failing(dataset, sample, damage={-20: 1}) == ["read", "parse"]
    assert failing(dataset, with_record(sample, b"no example")) == ["parse"]


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_all_cuts_have_batches_of_one_form(kind: str, request: pytest.FixtureRequest) -> None:
    dataset, sample = sampled(request.getfixturevalue(kind))
    with costs._written(dataset, sample) as (folder, shards):
        split = costs._split_of(dataset, folder, shards, OPTIONS)
        cuts = batch_kind_of(dataset).stages(split).values()
        batches = [next(iter(costs.batches_of(split, cut))) for cut in cuts]
    first, *others = [tf.nest.map_structure(lambda value: value.dtype, batch) for batch in batches]
    assert all(each == first for each in others)


@pytest.mark.parametrize(("kind", "stages"), [("images", IMAGE_STAGES), ("rows", ROW_STAGES)])
def test_a_round_has_all_stages_in_their_order(kind: str, stages: list[str], request: pytest.FixtureRequest) -> None:
    dataset, sample = sampled(request.getfixturevalue(kind))
    for found in islice(costs.rounds(dataset, sample, OPTIONS), 2):
        assert list(found.stages) == stages
        assert found.examples % OPTIONS.batch_size == 0
        assert found.bytes_per_example == pytest.approx(
            dataset.splits["train"].bytes / dataset.splits["train"].examples, rel=0.2
        )


def test_a_training_that_is_not_worth_it_has_no_rounds(images: Path) -> None:
    seen: list[float] = []
    assert not list(costs.rounds(*sampled(images), OPTIONS, lambda us: bool(seen.append(us))))
    assert seen[0] > 0


def test_a_sample_is_of_the_shards_of_its_server(images: Path) -> None:
    dataset = load(images)
    of_servers = [costs.sample_of(images, dataset, Server(index, 2)).records for index in range(2)]
    found = [{record for shard in records for record in shard} for records in of_servers]
    assert [len(records) for records in of_servers] == [2, 2]
    assert not found[0] & found[1]
    assert len(found[0] | found[1]) == dataset.splits["train"].examples
