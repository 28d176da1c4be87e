"""Images of a dataset by their positions, and the names that `dataset.json` can contain."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.dataset.manifest import checksum, images_at, load, sample_images
from pipeline.errors import DatasetError
from pipeline.records.format import as_file, read_image
from pipeline.records.tfrecord import read_records
from pipeline.tables.schema import Column
from tests.dataset.test_dataset_schema import VALIDATOR
from tests.made_tables import make_table
from tests.published import CHRYSANTHEMUM, DAISY, ROSE, publish_case


@pytest.mark.parametrize("case", ["keep", "gzip"])  # encoded, and pixels
def test_images_are_returned_by_their_positions_across_shards(case: str, tmp_path: Path):
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


def test_class_names_use_the_texts_of_labels(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    dataset = replace(load(folder), texts={DAISY: "a flower"})
    assert dataset.names == [CHRYSANTHEMUM, "a flower", ROSE]


@pytest.mark.parametrize("name", ["train-99999-of-99999.tfrecord", "train-0999999-of-1000000.tfrecord.gz"])
@pytest.mark.parametrize("version", ["", "../../0123456789abcdef/"])
def test_a_dataset_may_have_a_million_shards(name: str, version: str, tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    change(folder, lambda content: content["splits"]["train"]["shards"][0].update(name=version + name))
    assert load(folder).splits["train"].shards[0].name == version + name
    assert [error.message for error in VALIDATOR.iter_errors(json.loads((folder / "dataset.json").read_bytes()))] == []


def change(folder: Path, damage: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of `dataset.json`, and give it the checksum of the new content."""
    content = json.loads((folder / "dataset.json").read_bytes())
    del content["checksum"]
    damage(content)
    (folder / "dataset.json").write_text(json.dumps({**content, "checksum": checksum(content)}))


def test_a_dataset_without_its_checksum_is_refused(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    content = json.loads((folder / "dataset.json").read_bytes())
    del content["checksum"]
    (folder / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(DatasetError, match="its content does not match its checksum"):
        load(folder)


HOSTILE = "../../elsewhere"


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda c: c.update(version=HOSTILE), HOSTILE),
        (lambda c: c.update(version=".."), ".."),
        (lambda c: c.update(name=HOSTILE), HOSTILE),
        (lambda c: c["splits"]["train"]["shards"][0].update(name="/etc/passwd"), "/etc/passwd"),
        (lambda c: c["splits"]["train"]["shards"][0].update(name="../x.tfrecord"), "../x.tfrecord"),
        (lambda c: c["splits"]["train"]["shards"][0].update(name="../../../x/y.tfrecord"), "../../../x/y.tfrecord"),
        (lambda c: c["splits"]["train"]["shards"][0].update(name=".hidden"), ".hidden"),
        (lambda c: c["splits"]["train"]["shards"][0].update(crc32c="../../x"), "../../x"),
        (lambda c: c["rejected"].update(file="../rejected.jsonl"), "../rejected.jsonl"),
        (lambda c: c.update(window={"2026-01-01": HOSTILE}), HOSTILE),
    ],
)
def test_a_dataset_with_unsafe_names_is_refused(damage: Callable[[dict[str, Any]], object], named: str, tmp_path: Path):
    """The names become folder names, for copies on a worker and for the champion in the workspace."""
    folder, _ = publish_case("keep", tmp_path)
    change(folder, damage)
    with pytest.raises(DatasetError, match=re.escape(f"Tenfold never gives the name {named!r}")):
        load(folder)


def test_a_dataset_that_does_not_say_its_kind_is_of_images_without_a_table(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    expected = load(folder)
    change(folder, lambda content: content.pop("kind"))
    assert load(folder) == expected
    assert load(folder).kind == "images"


def test_a_table_that_does_not_say_its_kind_is_a_table(tmp_path: Path):
    columns = (Column("x", "float"), Column("y", "string", role="label"))
    rows = [{"x": 1.0, "y": "a"}, {"x": 2.0, "y": "b"}]
    folder = make_table(tmp_path / "table", columns, {"train": rows, "validation": rows}, "classification")
    change(folder, lambda content: content.pop("kind"))
    assert load(folder).kind == "table"


def test_an_unknown_kind_of_examples_is_refused(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    change(folder, lambda content: content.update(kind="sounds"))
    with pytest.raises(DatasetError, match="its kind of examples is 'sounds' instead of images or table"):
        load(folder)
