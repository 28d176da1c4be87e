"""A record that no training can read is named by its shard, its number and its key, by every reader of a dataset."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.__main__ import main
from pipeline.config.settings import settings_from
from pipeline.dataset.keys import find_images
from pipeline.dataset.manifest import images_at, load, readable_at, sample_images
from pipeline.dataset.shards import Shards
from pipeline.dataset.verify import verify
from pipeline.errors import DatasetError
from pipeline.input import BatchOptions, Server, damage_named, one_ahead, training_batches, validation_batches
from pipeline.input.raw_files import raw_files_of
from pipeline.input.read_whole import read_whole
from pipeline.input.shuffle_quality import shuffle_quality
from pipeline.input.tables import raw_batches
from pipeline.records import example, tfrecord
from pipeline.records.format import PLAIN
from pipeline.tables.read import read_row
from pipeline.tables.schema import Column, Schema
from pipeline.training.inputs import stacked
from pipeline.training.show import show, show_found
from tests.conftest import jpeg
from tests.made_tables import make_table
from tests.published import SourceImage, make_folders, make_list, png, publish, replace_record

OPTIONS = BatchOptions(image_size=16, batch_size=4, shuffle_bytes=2000)
FORMS: Mapping[str, Mapping[str, Any]] = {
    "keep": {},
    "header": {"check": "header"},
    "resize": {"prepare": "resize", "prepare_size": 16},
    "raw": {"prepare": "raw"},
    "gzip": {"prepare": "raw", "compression": "gzip", "feature_keys": "plain", "label_offset": 1},
    "several": {},
}
UNDECODED = "TensorFlow cannot read it (jpeg::Uncompress failed. Invalid JPEG data or crop window.)"
NOISE = np.random.default_rng(0).bytes(700)
Features = dict[str, list[Any]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the dataset of a form: 60 images, JPEG and PNG, in 4 training shards. Tests must not change it."""
    datasets: dict[str, Path] = {}

    def publish_once(form: str) -> Path:
        if form not in datasets:
            root = tmp_path_factory.mktemp(form)
            images = [
                SourceImage(jpeg(number, (48, 32)) if number % 4 else png(number, (48, 32)), ["abc"[number % 3]])
                for number in range(60)
            ]
            several = [SourceImage(jpeg(number), ["abc"[number % 3], "abc"[number % 3 - 1]]) for number in range(60)]
            source = make_list(root / "source", several) if form == "several" else make_folders(root / "source", images)
            datasets[form] = publish(source, root / "workspace", num_shards=4, **FORMS[form])
        return datasets[form]

    return publish_once


class Broken:
    """A copy of a dataset in which one record was changed, with right checksums: record 5 of shard 3."""

    def __init__(self, dataset: Path, folder: Path, change: Callable[[Features], bytes], split: str = "train") -> None:
        self.folder = folder
        shutil.copytree(dataset, folder)
        shards = load(folder).splits[split].shards
        self.position = sum(shard.examples for shard in shards[:3]) + 5 if split == "train" else 0
        number, shard = (5, shards[3]) if split == "train" else (0, next(each for each in shards if each.examples))
        features = example.decode(list(tfrecord.read_records(folder / shard.name))[number])
        self.key = features.get("image/filename", features.get("filename", features.get("row id", [b""])))[0].decode()
        replace_record(folder, shard.name, number, change(features))
        self.place = f"{folder / shard.name}: record {number} (from 0)"

    @property
    def named(self) -> str:
        """The place of the record with its key."""
        return f"{self.place}, key {self.key!r}: "


def feature_of(features: Features, name: str) -> str:
    """Return the name of a feature in these records, from its name with `feature_keys: plain`."""
    return name if name in features else f"image/{ {'image': 'encoded', 'class': 'class/label'}.get(name, name) }"


def with_image(content: bytes) -> Callable[[Features], bytes]:
    return lambda features: example.encode({**features, feature_of(features, PLAIN.encoded): content})


def without_image(features: Features) -> bytes:
    del features[feature_of(features, PLAIN.encoded)]
    return example.encode(features)


def with_label(label: int) -> Callable[[Features], bytes]:
    return lambda features: example.encode({**features, feature_of(features, PLAIN.label): [label]})


def cut(features: Features) -> bytes:
    name = feature_of(features, PLAIN.encoded)
    return example.encode({**features, name: features[name][0][:-40]})


def higher(features: Features) -> bytes:
    name = feature_of(features, PLAIN.height)
    return example.encode({**features, name: features[name][0] + 9})


def noise(_: Features) -> bytes:
    return NOISE


TIFF = b"II*\0" + bytes(100)


def read(batches: Any) -> int:
    return sum(1 for _ in batches)


def refusal(broken: Broken, work: Callable[[], Any]) -> str:
    """Return the message of the DatasetError that `work` raises within `damage_named`."""
    with pytest.raises(DatasetError) as caught, damage_named(broken.folder):
        work()
    return str(caught.value)


# --- in the batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "change", "reason"),
    [
        ("keep", with_image(NOISE), "does not hold a "),
        ("resize", with_image(NOISE), "does not hold a JPEG file, but begins with b'"),
        ("raw", with_image(NOISE), "holds 700 bytes, not 32 x 48 x 3 pixels"),
        ("gzip", with_image(NOISE), "holds 700 bytes, not 32 x 48 x 3 pixels"),
        ("several", with_image(NOISE), "does not hold a JPEG file"),
        ("resize", with_image(TIFF), r"does not hold a JPEG file, but begins with b'II*\x00"),
        ("resize", cut, UNDECODED),
        ("keep", without_image, "lacks image/encoded"),
        ("gzip", without_image, "lacks image"),
        ("keep", with_label(99), "has label 99, outside 0 to 2"),
        ("gzip", with_label(0), "has label 0, outside 1 to 3"),
        ("several", with_label(3), "has label 3, outside 0 to 2"),
    ],
)
def test_a_training_names_the_record(
    built: Callable[[str], Path], tmp_path: Path, form: str, change: Callable[[Features], bytes], reason: str
):
    broken = Broken(built(form), tmp_path / "copy", change)
    message = refusal(broken, lambda: read(training_batches(broken.folder, OPTIONS)))
    assert message.startswith(broken.named + reason)
    assert message.endswith(
        f". `python -m pipeline verify --decode {broken.folder}` lists all records that cannot be read. Remove that "
        "folder, and build the dataset again"
    )


def test_a_record_without_a_key_is_named_by_shard_and_number(built: Callable[[str], Path], tmp_path: Path):
    broken = Broken(built("keep"), tmp_path / "copy", noise)
    message = refusal(broken, lambda: read(training_batches(broken.folder, OPTIONS)))
    assert message.startswith(f"{broken.place}: not a tf.train.Example: ")


@pytest.mark.parametrize("change", [with_image(NOISE), noise], ids=["no image", "no example"])
def test_a_fit_of_keras_names_the_record(
    built: Callable[[str], Path], tmp_path: Path, change: Callable[[Features], bytes]
):
    broken = Broken(built("resize"), tmp_path / "copy", change)
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = training_batches(broken.folder, OPTIONS)
    assert refusal(broken, lambda: model.fit(batches, shuffle=False, verbose=0)).startswith(broken.place)


def test_a_build_that_decoded_nothing_is_told_to_decode(built: Callable[[str], Path], tmp_path: Path):
    broken = Broken(built("header"), tmp_path / "copy", cut)
    message = refusal(broken, lambda: read(training_batches(broken.folder, OPTIONS)))
    assert message.endswith("build the dataset again with check=strict")


WAYS: Mapping[str, Callable[[Path, Path], Any]] = {
    "memory": lambda folder, _: training_batches(folder, replace(OPTIONS, cache="memory"), epochs=2),
    "disk": lambda folder, local: training_batches(folder, replace(OPTIONS, cache=str(local / "images")), epochs=2),
    "whole": lambda folder, _: training_batches(folder, replace(OPTIONS, crop="whole")),
    "random_resized": lambda folder, _: training_batches(folder, replace(OPTIONS, crop="random_resized")),
    "balanced": lambda folder, _: training_batches(folder, replace(OPTIONS, balanced=True)),
    "numbered": lambda folder, _: training_batches(folder, OPTIONS, numbered=True),
    "stacked": lambda folder, _: stacked(training_batches(folder, OPTIONS, numbered=True))[0],
    "one ahead": lambda folder, _: one_ahead(training_batches(folder, OPTIONS)),
    "second server": lambda folder, _: training_batches(folder, OPTIONS, server=Server(1, 2)),
    "strategy": lambda folder, _: tf.distribute.MirroredStrategy(["/cpu:0"]).experimental_distribute_dataset(
        training_batches(folder, OPTIONS)
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_read_training_batches_names_the_record(built: Callable[[str], Path], tmp_path: Path, way: str):
    broken = Broken(built("resize"), tmp_path / "copy", with_image(NOISE))
    message = refusal(broken, lambda: read(WAYS[way](broken.folder, tmp_path)))
    assert message.startswith(broken.named)


@pytest.mark.parametrize("cache", ["off", "memory"])
def test_a_validation_names_the_record(built: Callable[[str], Path], tmp_path: Path, cache: Any):
    broken = Broken(built("resize"), tmp_path / "copy", with_image(NOISE), "validation")
    message = refusal(broken, lambda: read(validation_batches(broken.folder, replace(OPTIONS, cache=cache))))
    assert message.startswith(broken.named)


def test_the_search_calls_the_heartbeat_after_each_record(built: Callable[[str], Path], tmp_path: Path):
    broken = Broken(built("resize"), tmp_path / "copy", with_image(NOISE))
    beats: list[None] = []
    with pytest.raises(DatasetError), damage_named(broken.folder, lambda: beats.append(None)):
        read(training_batches(broken.folder, OPTIONS))
    assert len(beats) == broken.position


# --- rows of a table --------------------------------------------------------------------------------------------------


COLUMNS = (
    Column("width", "int"),
    Column("share", "float", missing=20),
    Column("words", "string", is_list=True),
    Column("vector", "float", is_list=True, length=3),
    Column("tiles", "int", is_list=True, length=2, missing=20),
    Column("row id", "string", role="key"),
    Column("label", "int", role="label"),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 60 rows in 4 training shards. Tests must not change it."""
    rows = [
        {
            "width": number,
            "share": number / 7 if number % 3 else None,
            "words": ["a"] * (number % 3),
            "vector": [number / 3, 1.0, -number / 7],
            "tiles": [number, number * number] if number % 3 else None,
            "row id": f"r{number}",
            "label": number % 2,
        }
        for number in range(60)
    ]
    splits = {"train": rows[:48], "validation": rows[48:], "test": []}
    return make_table(tmp_path_factory.mktemp("table") / "published", COLUMNS, splits, "classification")


def without(name: str) -> Callable[[Features], bytes]:
    return lambda features: example.encode({key: value for key, value in features.items() if key != name})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without("width"), "lacks column 'width'"),
        (without("label"), "lacks column 'label'"),
        (lambda features: example.encode({**features, "label": 7}), "has the unknown label '7'"),
        (lambda features: example.encode({**features, "width": b"wide"}), "does not hold values of type int in "),
        (lambda features: example.encode({**features, "share": [3]}), "does not hold values of type float in "),
        (without("vector"), "lacks column 'vector'"),
        (lambda features: example.encode({**features, "vector": [1.5, 2.5]}), "holds 2 values in column 'vector' in"),
        (lambda features: example.encode({**features, "tiles": [1, 2, 3]}), "holds 3 values in column 'tiles' instead"),
        (lambda features: example.encode({**features, "tiles": [1]}), "holds 1 values in column 'tiles' instead of 2"),
    ],
)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_training_on_a_table_names_the_record(
    table: Path, tmp_path: Path, change: Callable[[Features], bytes], reason: str, split: str
):
    broken = Broken(table, tmp_path / "copy", change, split)
    batches = training_batches if split == "train" else validation_batches
    message = refusal(broken, lambda: read(batches(broken.folder, OPTIONS)))
    assert message.startswith(broken.named + reason)


def test_a_row_of_broken_bytes_is_named_by_shard_and_number(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    broken = Broken(table, tmp_path / "copy", noise, "validation")
    for batches in (validation_batches(broken.folder, OPTIONS), raw_batches(broken.folder, 4)):
        message = refusal(broken, lambda batches=batches: read(batches))
        assert message.startswith(f"{broken.place}: not a tf.train.Example: ")
    dataset = load(broken.folder)
    schema = Schema.from_json(dataset.table)
    found = readable_at(broken.folder, dataset, "validation", [0, 1], lambda record: read_row(record, schema))
    assert found.keys() == {1}
    assert f"an example cannot be read: {broken.place}: not a tf.train.Example: " in caplog.text


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [form for form in FORMS if form != "header"])
def test_a_sound_dataset_has_no_problem(built: Callable[[str], Path], form: str):
    folder = built(form)
    assert verify(folder, read_whole(load(folder))) == {"ok": True, "records": 60, "problems": []}


def test_a_sound_table_has_no_problem(table: Path):
    problems = verify(table, read_whole(load(table)))["problems"]
    assert [each for each in problems if "`index` writes it again" not in each] == []  # `make_table` writes no index.


@pytest.mark.parametrize(
    ("form", "change", "reason"),
    [
        ("resize", with_image(NOISE), "does not hold a JPEG file, but begins with b'"),
        ("raw", with_image(NOISE), "holds 700 bytes, not 32 x 48 x 3 pixels"),
        ("resize", higher, "states 25 x 24 pixels, but its image has 16 x 24"),
        ("keep", without_image, "lacks image/encoded"),
        ("keep", with_label(-1), "has label -1, outside 0 to 2"),
        (
            "keep",
            lambda features: example.encode({**features, "image/encoded": 3}),
            "does not hold values of type bytes in 'image/encoded'",
        ),
        ("keep", lambda features: example.encode({**features, "image/format": b"GIF"}), "has the unknown format 'GIF'"),
    ],
)
def test_verify_names_the_record(
    built: Callable[[str], Path], tmp_path: Path, form: str, change: Callable[[Features], bytes], reason: str
):
    broken = Broken(built(form), tmp_path / "copy", change)
    for found in (verify(broken.folder), verify(broken.folder, read_whole(load(broken.folder)))):
        assert len(found["problems"]) == 1
        assert found["problems"][0].startswith(broken.named + reason)


def test_only_decoding_finds_a_cut_image(
    built: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    broken = Broken(built("resize"), tmp_path / "copy", cut)
    arguments = ["verify", str(broken.folder), "--json"]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main([*arguments, "--decode"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert len(found["problems"]) == 1
    assert found["problems"][0].startswith(
        f"{broken.named}TensorFlow cannot read it (jpeg::Uncompress failed. Invalid JPEG data"
    )
    assert found["records"] == 60 - load(broken.folder).splits["train"].shards[3].examples


def test_records_before_a_damaged_one_are_counted_and_decoded(built: Callable[[str], Path], tmp_path: Path):
    broken = Broken(built("resize"), tmp_path / "copy", cut)
    path = broken.folder / load(broken.folder).splits["train"].shards[3].name
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # in the last record
    path.write_bytes(content)
    [_, unreadable, damaged, counted, *_] = verify(broken.folder, read_whole(load(broken.folder)))["problems"]
    assert unreadable.startswith(broken.named)
    assert "is damaged" in damaged
    examples = load(broken.folder).splits["train"].shards[3].examples
    assert counted == f"{path} holds {examples - 1} readable records, but {examples} were committed"


# --- other readers ----------------------------------------------------------------------------------------------------


OTHERS: Mapping[str, Callable[[Path, int, Path], Any]] = {
    "Shards": lambda folder, position, _: Shards(folder)[position],
    "images_at": lambda folder, position, _: images_at(folder, load(folder), "train", [position]),
    "sample_images": lambda folder, *_: sample_images(folder, load(folder), 10**6),
    "find_images": lambda folder, *_: find_images(folder, load(folder), ["no such key"]),
    "shuffle_quality": lambda folder, *_: shuffle_quality(folder, settings_from({"batch_size": 4})),
    "raw_files_of": lambda folder, *_: raw_files_of(folder, load(folder), "/source"),
    "show": lambda folder, _, local: show(
        settings_from({"image_size": 32, "batch_size": 4}), folder, local / "a.png", augmented=True, count=256
    ),
}


@pytest.mark.parametrize("reader", OTHERS)
def test_each_other_reader_names_the_record(built: Callable[[str], Path], tmp_path: Path, reader: str):
    broken = Broken(built("keep"), tmp_path / "copy", noise)
    with pytest.raises(DatasetError) as caught:
        OTHERS[reader](broken.folder, broken.position, tmp_path)
    assert str(caught.value).startswith(f"{broken.place}: not a tf.train.Example: ")


def test_an_image_that_is_shown_by_its_key_is_named(built: Callable[[str], Path], tmp_path: Path):
    broken = Broken(built("resize"), tmp_path / "copy", cut)
    found = find_images(broken.folder, load(broken.folder), [broken.key])
    with pytest.raises(DatasetError) as caught:
        show_found(settings_from({"image_size": 32, "crop": "whole"}), broken.folder, found, tmp_path / "a.png")
    assert str(caught.value).startswith(
        f"{broken.named}TensorFlow cannot read it (jpeg::Uncompress failed. Invalid JPEG data"
    )
