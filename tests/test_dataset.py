"""Images of a data set by their positions."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.dataset import images_at, load, sample_images
from pipeline.records import as_file, read_image
from pipeline.tfrecord import read_records
from tests.published import CHRYSANTHEMUM, DAISY, ROSE, publish_case


@pytest.mark.parametrize("case", ["keep", "gzip"])  # encoded, and pixels
def test_images_are_found_by_their_positions_through_the_shards(case: str, tmp_path: Path):
    folder, _ = publish_case(case, tmp_path)
    dataset = load(folder)
    shards = dataset.splits["train"].shards
    assert sum(bool(shard.examples) for shard in shards) > 1
    stored = [read_image(record, dataset.records) for s in shards for record in read_records(folder / s.name)]
    in_order = [(image.filename.decode(), as_file(image)) for image in stored]
    positions = [len(in_order) - 1, 0, 2]
    assert images_at(folder, dataset, "train", positions) == [in_order[position] for position in positions]
    assert images_at(folder, dataset, "train", []) == []
    assert {encoded for _, encoded in sample_images(folder, dataset, 100)} == {encoded for _, encoded in in_order}


def test_classes_have_the_names_that_people_give_them(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    dataset = replace(load(folder), texts={DAISY: "a flower"})
    assert dataset.names == [CHRYSANTHEMUM, "a flower", ROSE]
