"""`docs/reference/dataset.schema.json` describes exactly the fields of `dataset.json`."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pipeline.config.settings import settings_from
from pipeline.stages.build import build
from pipeline.tables.samples import write_sample_table
from tests.conftest import jpeg
from tests.published import CASES, IN_FOLDERS, make_folders, publish, publish_case
from tests.sources.examples import imagenet

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "dataset.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
Place = tuple[str | int, ...]


def described(folder: Path) -> Any:
    return json.loads((folder / "dataset.json").read_bytes())


def problems(document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A second version that fills every field: it has test, rejected, equal and misnamed images, and drift."""
    folder = tmp_path_factory.mktemp("full")
    source, workspace = make_folders(folder / "source" / "train", IN_FOLDERS).parent, folder / "workspace"
    for split in ("validation", "test"):
        make_folders(source / split, IN_FOLDERS[:3])
    publish(source, workspace, max_leaked_fraction=1, prepare="resize")
    (source / "train" / "red rose" / "broken.jpg").write_bytes(jpeg(5)[:60])
    (source / "train" / "red rose" / "notes.txt").write_bytes(b"notes")
    return described(publish(source, workspace, max_leaked_fraction=1, near_duplicates=True, prepare="resize"))


def test_the_schema_is_valid():
    Draft202012Validator.check_schema(SCHEMA)


def test_every_field_is_described():
    missing = [name for name, field in fields(SCHEMA) if not field.get("description")]
    assert missing == []


def fields(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield every property below a schema."""
    if isinstance(schema, dict):
        if isinstance(properties := schema.get("properties"), dict):
            yield from properties.items()
        schema = list(schema.values())
    for each in schema if isinstance(schema, list) else ():
        yield from fields(each)


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_dataset_matches_the_schema(name: str, tmp_path: Path):
    assert problems(described(publish_case(name, tmp_path)[0])) == []


def test_a_dataset_with_codes_as_labels_matches_the_schema(tmp_path: Path):
    found = described(publish(imagenet(tmp_path / "source"), tmp_path / "workspace", max_leaked_fraction=1))
    assert found["texts"] == {"n01440764": "tench, Tinca tinca"}
    assert problems(found) == []


def test_a_dataset_with_every_field_matches_the_schema(full: Any):
    assert problems(full) == []
    assert full["rejected"]["count"] == full["quality"]["rejected"] == 1
    assert full["source"]["skipped"]
    assert full["quality"]["drift"].keys() > {"against", "classes"}
    assert full["quality"]["near_duplicates"]["leaks"]["names"]
    assert full["splits"].keys() == {"train", "validation", "test"}
    assert "classes_without_test" in full["quality"]


@pytest.mark.parametrize("kind", ["images", "table"])
def test_a_dataset_with_a_test_fraction_matches_the_schema(tmp_path: Path, kind: str):
    values = {"workspace": str(tmp_path / "workspace"), "test_fraction": 0.3}
    if kind == "table":
        write_sample_table(tmp_path / "t.csv", 100)
        values |= {"example_kind": "table", "source_uri": str(tmp_path / "t.csv"), "label_column": "churn"}
    else:
        values |= {"source_uri": str(make_folders(tmp_path / "source", IN_FOLDERS))}
    found = described(Path(build(settings_from(values))["dataset"]))
    assert problems(found) == []
    assert found["settings"]["test_fraction"] == 0.3


@pytest.mark.long
def test_datasets_of_tables_match_the_schema(tmp_path: Path):
    source = tmp_path / "t.csv"
    values = {"example_kind": "table", "source_uri": str(source), "workspace": str(tmp_path / "workspace")}
    of_income = {"dataset_name": "r", "max_rejected_fraction": 0.1}  # A label may be missing.
    for task, label, more in (("classification", "churn", {}), ("regression", "income", of_income)):
        for rows in (200, 300):  # The second version differs from the first.
            write_sample_table(source, rows)
            found = described(Path(build(settings_from({**values, "label_column": label, **more}))["dataset"]))
            assert problems(found) == []
        assert found["table"]["task"] == task
        assert found["quality"]["table_changes"]["means"]
        wrong = deepcopy(found)
        wrong["table"]["columns"][0]["surprise"] = 1
        assert problems(wrong)


def places(document: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of each object with fixed fields. Maps by label, reason or feature have arbitrary keys."""
    if isinstance(document, dict) and place[-1:] not in [
        ("classes",),
        ("skipped",),
        ("features",),
        ("texts",),
        ("suffixes",),
    ]:
        yield place
        for name, value in document.items():
            yield from places(value, (*place, name))
    if isinstance(document, list) and document:
        yield from places(document[0], (*place, 0))


def at(document: Any, place: Place) -> Any:
    for part in place:
        document = document[part]
    return document


def test_an_unknown_field_is_refused_everywhere(full: Any):
    found = [place for place in places(full) if place != ("software",)]
    assert len(found) > 20
    for place in found:
        more = deepcopy(full)
        at(more, place)["surprise"] = 1
        assert problems(more), place


def test_a_missing_field_is_refused_unless_it_is_optional(full: Any):
    optional = {("splits", "test"), ("settings", "prepare_size"), ("hashes",), ("files",)}
    optional |= {("quality", "classes_without_test"), ("quality", "leaks", "only_by_group")}
    of_shard = ("index_bytes", "index_crc32c")
    optional |= {("splits", split, "shards", 0, name) for split in full["splits"] for name in of_shard}
    of_drift = {("quality", "drift", name) for name in ("sizes", "aspect", "brightness", "classes")}
    for place in (place for place in places(full) if place != ("software",)):
        for name in at(full, place):
            less = deepcopy(full)
            del at(less, place)[name]
            assert bool(problems(less)) is ((*place, name) not in optional | of_drift), (*place, name)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format",), "other"),
        (("schema_version",), 3),
        (("name",), "../images"),
        (("version",), "latest"),
        (("labels",), []),
        (("labels",), ["a", "a"]),
        (("records", "feature_keys"), "tfds"),
        (("records", "label_offset"), 2),
        (("records", "boxes"), "yes"),
        (("features", "image/encoded"), "string"),
        (("splits", "train", "examples"), -1),
        (("splits", "train", "classes", "red rose"), 0.5),
        (("splits", "train", "shards"), []),
        (("splits", "train", "shards", 0, "name"), "train-0.tfrecord"),
        (("splits", "train", "shards", 0, "crc32c"), "0xeee01e56"),
        (("rejected", "file"), "/etc/passwd"),
        (("quality", "drift"), 0.1),
        (("quality", "leaks", "names"), [["one"]]),
        (("quality", "statistics", "height", "min"), 0.5),
        (("settings", "validation_fraction"), 1),
        (("settings", "prepare"), "shrink"),
        (("software", "pillow"), None),
        (("checksum",), "0xeee01e56"),
    ],
)
def test_a_wrong_value_is_refused(full: Any, place: Place, value: Any):
    wrong = deepcopy(full)
    at(wrong, place[:-1])[place[-1]] = value
    assert [problem for problem in problems(wrong) if ".".join(map(str, place[:1])) in problem]
