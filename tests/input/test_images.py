"""The batches of a published dataset. Each image has a single color, which is its number."""

import multiprocessing
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import DatasetError
from pipeline.input import BatchOptions, Server, damage_named, steps_per_epoch, training_batches, validation_batches
from pipeline.input.shard_pieces import buffered_bytes
from pipeline.stages.build import build

OPTIONS = BatchOptions(image_size=32, batch_size=7, shuffle_bytes=2000)


def published_of(root: Path, images: int, **settings: Any) -> Path:
    for number in range(images):
        path = root / "source" / f"class{number % 3}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + number % 5, 41), (number, 255 - number, 0)).save(path)
    values = {"source_uri": str(root / "source"), "workspace": str(root / "workspace"), "num_shards": 4, **settings}
    return Path(build(settings_from(values))["dataset"])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images in 4 training shards."""
    return published_of(tmp_path_factory.mktemp("published"), 60)


def numbers(batches: Iterable[tuple[tf.Tensor, ...]], weight: float = 1.0) -> list[int]:
    """Return the numbers of the images with that weight."""
    return [
        int(image[16, 16, 0])
        for images, _, weights in batches
        for image, each in zip(images.numpy(), weights.numpy(), strict=True)
        if each == weight
    ]


def held_back(published: Path) -> set[int]:
    return set(numbers(validation_batches(published, OPTIONS)))


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("shuffle_bytes", [1, 10**6])
@pytest.mark.parametrize(
    "crop", ["random", *(pytest.param(crop, marks=pytest.mark.long) for crop in ("random_resized", "whole"))]
)
def test_an_epoch_shows_every_example_once(published: Path, batch_size: int, shuffle_bytes: int, crop: Any):
    options = BatchOptions(image_size=32, batch_size=batch_size, shuffle_bytes=shuffle_bytes, crop=crop)
    trained = numbers(training_batches(published, options))
    validated = numbers(validation_batches(published, options))
    assert Counter(trained + validated) == Counter(range(60))
    assert len(validated) == load(published).splits["validation"].examples


@pytest.mark.parametrize("servers", [1, 2, 3, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("shards", "batch_size"),
    [(10, 5), *(pytest.param(*case, marks=pytest.mark.long) for case in ((10, 4), (33, 4), (33, 5), (80, 4), (80, 5)))],
)
def test_all_servers_together_show_every_example_once(
    tmp_path_factory: pytest.TempPathFactory, servers: int, shards: int, batch_size: int
):
    folder = uneven(tmp_path_factory, shards)
    options = replace(OPTIONS, batch_size=batch_size)
    steps = steps_per_epoch(load(folder), batch_size, servers)
    held = steps_per_epoch(load(folder), batch_size, servers, "validation")
    shown: Counter[int] = Counter()
    for index in range(servers):
        server = Server(index, servers)
        both = (
            [*training_batches(folder, options, server=server)],
            [*validation_batches(folder, options, server=server)],
        )
        assert [len(each) for each in both] == [steps, held]
        shown.update(numbers(both[0] + both[1]))
    assert shown == Counter(range(97))


def uneven(factory: pytest.TempPathFactory, shards: int) -> Path:
    """Return a dataset of 97 images in `shards` shards, built once for all tests."""
    root = factory.getbasetemp() / f"uneven-{shards}"
    found = [*root.glob("workspace/datasets/images/*/dataset.json")]
    return found[0].parent if found else published_of(root, 97, num_shards=shards)


def test_the_order_of_one_small_case_is_pinned(published: Path):
    """If it changed, every checkpoint would resume at other examples."""
    assert buffered_bytes(load(published)) == 695
    options = replace(OPTIONS, shuffle_bytes=ELEMENTS * buffered_bytes(load(published)))
    first, second = (
        numbers(islice(training_batches(published, options, epochs=2), *part)) for part in ((0, 7), (7, 14))
    )
    assert first == PINNED[0]
    assert second == PINNED[1]


ELEMENTS = 5
"""The shuffle buffer of the pinned order holds this many images."""
PINNED = (
    [
        *(57, 31, 54, 37, 35, 18, 1, 7, 41, 45, 19, 5, 42, 22, 3, 34, 9, 30, 56, 47, 13, 50, 24, 43, 52, 48, 17, 32),
        *(0, 59, 12, 16, 11, 33, 28, 53, 21, 40, 4, 8, 36, 38, 15, 6, 39),
    ],
    [
        *(18, 1, 35, 31, 7, 37, 41, 56, 22, 54, 42, 19, 45, 9, 5, 13, 57, 43, 3, 24, 47, 32, 12, 34, 50, 16, 59, 0),
        *(17, 30, 33, 52, 48, 36, 28, 4, 53, 38, 6, 15, 39, 21, 8, 11, 40),
    ],
)


def test_the_order_depends_only_on_seed_and_epoch(published: Path):
    first = numbers(training_batches(published, replace(OPTIONS, seed=3)))
    tf.random.set_seed(11)  # The model uses this seed.
    again = numbers(training_batches(published, replace(OPTIONS, seed=3), epochs=2))
    assert (again[: len(first)], sorted(again[len(first) :])) == (first, sorted(first))
    assert again[len(first) :] != first
    assert numbers(training_batches(published, replace(OPTIONS, seed=4))) != first


@pytest.mark.parametrize("server", [pytest.param(Server(0, 1), marks=pytest.mark.long), Server(1, 3)])
def test_training_resumes_exactly_at_its_position(published: Path, server: Server):
    steps = steps_per_epoch(load(published), OPTIONS.batch_size, server.count)
    whole = [*training_batches(published, OPTIONS, epochs=3, server=server)]
    assert len(whole) == 3 * steps
    edges = {0, 1, steps - 1, steps, steps + 1, 2 * steps, 3 * steps - 1, 3 * steps}
    for start in sorted({*edges, *random.Random(0).sample(range(len(whole)), k=2)}):
        rest = [*training_batches(published, OPTIONS, epochs=3, start=start, server=server)]
        assert_equal(rest, whole[start:])


def assert_equal(batches: list[tuple[tf.Tensor, ...]], others: list[tuple[tf.Tensor, ...]]) -> None:
    for one, other in zip(batches, others, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def arrays_from(folder: Path, start: int) -> list[tuple[np.ndarray, ...]]:
    """Return the rest of the batches. Another process can import this function."""
    return [tuple(map(np.array, batch)) for batch in training_batches(folder, OPTIONS, epochs=2, start=start)]


@pytest.mark.long
def test_another_process_resumes_with_the_same_batches(published: Path):
    whole = [*training_batches(published, OPTIONS, epochs=2)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert_equal(pool.apply(arrays_from, (published, 5)), whole[5:])


def test_skipped_examples_are_not_decoded(published: Path, monkeypatch: pytest.MonkeyPatch):
    from pipeline.input import decode

    decoded: list[int] = []
    monkeypatch.setattr(decode, "flipped", lambda image, _: counting(image, decoded))
    assert len([*training_batches(published, OPTIONS, start=5)]) == 2
    assert len(decoded) == 14


def counting(image: tf.Tensor, seen: list[int]) -> tf.Tensor:
    return tf.ensure_shape(
        tf.numpy_function(lambda each: (seen.append(1), each)[1], [image], tf.uint8), [None, None, 3]
    )


def test_labels_belong_to_their_images(published: Path):
    for images, labels, _ in training_batches(published, OPTIONS):
        assert [int(image[0, 0, 0]) % 3 for image in images.numpy()] == labels.numpy().tolist()


def test_all_batches_have_one_shape(published: Path):
    batches = [*training_batches(published, OPTIONS), *validation_batches(published, OPTIONS)]
    for images, labels, weights in batches:
        assert (images.shape, images.dtype) == ((7, 32, 32, 3), tf.uint8)
        assert (labels.shape, labels.dtype) == ((7,), tf.int32)
        assert (weights.shape, weights.dtype) == ((7,), tf.float32)
    assert training_batches(published, OPTIONS).element_spec[0].shape == (7, 32, 32, 3)


def test_padding_repeats_examples_with_weight_zero(published: Path):
    batches = [*training_batches(published, OPTIONS)]
    assert numbers(batches[:-1], weight=0.0) == []
    padding = numbers(batches[-1:], weight=0.0)
    assert len(padding) == -len(numbers(batches)) % 7
    assert set(padding) <= set(numbers(batches))


def test_validation_keeps_the_order_of_the_shards(published: Path):
    assert numbers(validation_batches(published, replace(OPTIONS, batch_size=1))) == numbers(
        validation_batches(published, replace(OPTIONS, batch_size=5, seed=8))
    )


def test_half_of_the_images_are_mirrored_and_crops_differ(tmp_path: Path):
    """The left half of each image is bright. A mirrored image is bright on the right."""
    for number in range(200):
        path = tmp_path / "source" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (64, 64), (0, 0, number))
        image.paste((255, 255, number), (0, 0, 32, 64))
        image.save(path)
    folder = Path(build(settings_from({"source_uri": str(tmp_path / "source"), "workspace": str(tmp_path)}))["dataset"])
    options = BatchOptions(image_size=32, batch_size=20, crop="random_resized")
    images = np.concatenate([images for images, _, _ in training_batches(folder, options)]).astype(int)
    mirrored = (images[:, :, :4, 0].mean((1, 2)) < images[:, :, -4:, 0].mean((1, 2))).mean()
    assert 0.35 < mirrored < 0.65
    assert len({int(image[:, :, 0].sum()) for image in images}) > 100
    plain = np.concatenate([images for images, _, _ in training_batches(folder, replace(options, flip=False))])
    assert (plain[:, :, 0, 0].mean(1) >= plain[:, :, -1, 0].mean(1)).all()


def test_balanced_classes_occur_equally_often(tmp_path: Path):
    for label, count in {"rare": 4, "some": 20, "many": 100}.items():
        for number in range(count):
            path = tmp_path / "source" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (33, 33), (number, 2 * number, len(label))).save(path)
    settings = settings_from({"source_uri": str(tmp_path / "source"), "workspace": str(tmp_path), "max_imbalance": 1e6})
    folder = Path(build(settings)["dataset"])
    dataset = load(folder)
    options = replace(OPTIONS, balanced=True)
    batches = [*training_batches(folder, options, epochs=3)]
    assert len(batches) == 3 * steps_per_epoch(dataset, 7)
    labels_seen = [
        int(label) for _, labels, weights in batches for label, weight in zip(labels, weights, strict=True) if weight
    ]
    counts = Counter(labels_seen)
    wanted = dataset.splits["train"].examples
    assert sum(counts.values()) == 3 * wanted
    assert all(abs(count - wanted) <= 3 for count in counts.values()), counts
    apart = [Counter(numbers(batches[n : n + len(batches) // 3])) for n in (0, len(batches) // 3)]
    assert apart[0] != apart[1]  # Each epoch has other examples of the frequent class.


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy", [lambda: tf.distribute.OneDeviceStrategy("/cpu:0"), lambda: tf.distribute.MirroredStrategy(["/cpu:0"])]
)
def test_a_strategy_does_not_change_the_batches(published: Path, strategy: Any):
    batches = strategy().experimental_distribute_dataset(training_batches(published, OPTIONS))
    assert_equal([*batches], [*training_batches(published, OPTIONS)])


def test_servers_of_a_strategy_read_their_share(published: Path):
    options = replace(OPTIONS, batch_size=4)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    batches = strategy.distribute_datasets_from_function(
        lambda context: training_batches(
            published, options, server=Server(context.input_pipeline_id, context.num_input_pipelines)
        )
    )
    assert sorted(numbers(batches)) == sorted(set(range(60)) - held_back(published))


def test_a_damaged_record_stops_the_epoch(published: Path, tmp_path: Path):
    copy(published, tmp_path)
    for shard in load(published).splits["train"].shards:
        content = bytearray((tmp_path / shard.name).read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / shard.name).write_bytes(content)
    with pytest.raises(tf.errors.DataLossError):
        numbers(training_batches(tmp_path, OPTIONS))
    with (
        pytest.raises(DatasetError, match=rf"{tmp_path}/train-00000-\S+: the record at byte \d+ is damaged"),
        damage_named(tmp_path),
    ):
        numbers(training_batches(tmp_path, OPTIONS))


def test_a_shard_cut_between_records_stops_the_epoch(published: Path, tmp_path: Path):
    """TensorFlow alone would read a shorter shard and leave out examples without an error."""
    copy(published, tmp_path)
    shard = load(published).splits["train"].shards[1].name
    content = (tmp_path / shard).read_bytes()
    length = int.from_bytes(content[:8], "little")
    batches = training_batches(tmp_path, OPTIONS)
    (tmp_path / shard).write_bytes(content[: length + 16])
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain"):
        numbers(batches)
    with (
        pytest.raises(DatasetError, match=rf"{shard} holds 1 records, but \d+ were committed"),
        damage_named(str(tmp_path)),
    ):
        numbers(batches)
    with pytest.raises(DatasetError, match=rf"{shard} should hold \d+ bytes, but holds {length + 16}"):
        training_batches(tmp_path, OPTIONS)


@pytest.mark.parametrize("reason", ["OOM when allocating tensor", "CUBLAS_STATUS_ALLOC_FAILED: out of memory"])
def test_no_shard_is_searched_for_damage_if_memory_is_used_up(
    published: Path, reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.input.damage.first_damage", lambda *_: pytest.fail("all shards are read"))
    with pytest.raises(tf.errors.InternalError), damage_named(published):
        raise tf.errors.InternalError(None, None, reason)


def test_no_record_is_searched_for_after_an_error_of_a_training_step(published: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.input.damage.first_unreadable", lambda *_: pytest.fail("all records are read"))
    step = tf.function(lambda labels: tf.gather(tf.range(1), labels))

    def train() -> None:
        for _, labels, _ in training_batches(published, OPTIONS):
            step(labels)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 1\)"), damage_named(published):
        train()


def test_a_shard_or_dataset_removed_while_it_is_read_is_named(published: Path, tmp_path: Path):
    copy(published, tmp_path / "copy")
    batches = training_batches(tmp_path / "copy", OPTIONS)
    shard = tmp_path / "copy" / load(published).splits["train"].shards[1].name
    shard.unlink()
    with (
        pytest.raises(DatasetError, match=rf"{shard} is missing: remove .* and build the dataset again"),
        damage_named(tmp_path / "copy"),
    ):
        numbers(batches)
    shutil.rmtree(tmp_path / "copy")
    with (
        pytest.raises(DatasetError, match="removed or damaged while the training read it"),
        damage_named(tmp_path / "copy"),
    ):
        numbers(batches)


def copy(folder: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())


def test_a_missing_dataset_is_reported(tmp_path: Path):
    with pytest.raises(DatasetError, match="contains no dataset"):
        training_batches(str(tmp_path), OPTIONS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_size": 0}, "image_size must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"shuffle_bytes": 0}, "shuffle_bytes must be at least 1, got 0"),
        ({"min_crop_area": 0.0}, "min_crop_area must be over 0 and at most 1, got 0.0"),
        ({"crop": "middle"}, "crop must be one of random, random_resized, whole, got 'middle'"),
        ({"cache": "disk"}, "cache must be off, memory or an absolute path, got 'disk': `open_cache`"),
        ({"cache": "memory", "crop": "random_resized"}, "cache must be off with crop=random_resized"),
        ({"cache": "memory", "balanced": True}, "cache must be off with balanced"),
    ],
)
def test_invalid_options_are_refused(values: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        BatchOptions(**{"image_size": 32, "batch_size": 8, **values})
