"""The stages of the input, one by one: each cut does the work up to its stage, and no more."""

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


def failing(dataset: Dataset, sample: costs.Sample, folder: Path, damage: int = 0) -> list[str]:
    """Return the cuts that cannot read all examples. `damage` is the place of a byte of the last file to change."""
    examples, failed = len(sample.records), []
    split = costs.split_of(dataset, folder, costs.write_block(folder, dataset, iter(sample.records), examples), OPTIONS)
    for stage, cut in batch_kind_of(dataset).stages(split).items():
        costs.write_block(folder, dataset, iter(sample.records), examples)
        if damage:
            path = folder / f"{costs.FILES - 1}{dataset.records.ending}"
            content = bytearray(path.read_bytes())
            content[damage] ^= 1
            path.write_bytes(content)
        with costs.Input(split, cut) as opened:
            try:
                opened.take_block()
            except tf.errors.OpError:
                failed.append(stage)
    return failed


def with_record(sample: costs.Sample, record: bytes) -> costs.Sample:
    """Return the sample with another record in place of the last one."""
    return sample._replace(records=[*sample.records[:-1], record])


def test_each_cut_of_images_does_the_work_of_its_stage(images: Path, tmp_path: Path) -> None:
    dataset, sample = sampled(images)
    assert failing(dataset, sample, tmp_path) == []
    assert failing(dataset, sample, tmp_path, damage=-20) == ["read", "parse", "decode", "resize"]
    assert failing(dataset, with_record(sample, b"no example"), tmp_path) == ["parse", "decode", "resize"]
    features = {**example.decode(sample.records[-1]), dataset.records.keys.encoded: [b"no image"]}
    assert failing(dataset, with_record(sample, example.encode(features)), tmp_path) == ["decode", "resize"]


def test_each_cut_of_rows_does_the_work_of_its_stage(rows: Path, tmp_path: Path) -> None:
    dataset, sample = sampled(rows)
    assert failing(dataset, sample, tmp_path) == []
    assert failing(dataset, sample, tmp_path, damage=-20) == ["read", "parse"]
    assert failing(dataset, with_record(sample, b"no example"), tmp_path) == ["parse"]


def test_batches_of_rows_that_are_not_read_hold_whole_records(rows: Path, tmp_path: Path) -> None:
    """A batch copies its records. Copies of empty texts would cost nothing, and reading would seem to cost more."""
    dataset, sample = sampled(rows)
    split = costs.split_of(dataset, tmp_path, costs.write_block(tmp_path, dataset, iter(sample.records), 21), OPTIONS)
    cut = batch_kind_of(dataset).stages(split)["batch"]
    _, record = next(iter(cut.epoch(tf.constant(0, tf.int64), tf.range(costs.FILES, dtype=tf.int64))))
    assert record.numpy() in sample.records


def test_a_block_is_read_only_when_it_is_taken(images: Path, tmp_path: Path) -> None:
    dataset, sample = sampled(images)
    split = costs.split_of(dataset, tmp_path, costs.write_block(tmp_path, dataset, iter(sample.records), 21), OPTIONS)
    whole = batch_kind_of(dataset).stages(split)["resize"]
    with costs.Input(split, whole) as opened:
        opened.take_block()
        for path in tmp_path.iterdir():
            path.write_bytes(b"")
        with pytest.raises(tf.errors.OpError):
            opened.take_block()


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
    found = [{*costs.sample_of(images, dataset, Server(index, 2)).records} for index in range(2)]
    assert not found[0] & found[1]
    assert len(found[0] | found[1]) == dataset.splits["train"].examples
