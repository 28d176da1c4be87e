import fcntl
import logging
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.dataset.manifest import Dataset, load
from pipeline.errors import BadInput, CacheDamaged
from pipeline.input import BatchOptions, Server, damage_named, training_batches, validation_batches
from pipeline.input.cache import cached_bytes, open_cache
from tests.published import publish

ROOT = Path(__file__).resolve().parents[2]
SIDE = 8
BATCH = 8
TRAIN, VALIDATION = 56, 16
"""Both numbers fill whole batches. Padding would be read from the shards, which some tests hide."""
OPTIONS = BatchOptions(image_size=SIDE, batch_size=BATCH, seed=5, crop="random", shuffle_bytes=2000)
STEPS = TRAIN // BATCH
MANY = 10**12
"""More examples than any memory or disk holds."""

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One-colored images in three classes and six shards. The red of an image is its number."""
    root = tmp_path_factory.mktemp("published")
    for number in range(TRAIN + VALIDATION):
        split = "train" if number < TRAIN else "val"
        path = root / "source" / split / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIDE + number % 5, SIDE + 3), (number, 0, 0)).save(path)
    return Path(str(publish(root / "source", root / "workspace", num_shards=6, max_leaked_fraction=1)))


@pytest.fixture(scope="module")
def dataset(published: Path) -> Dataset:
    found = load(published)
    assert [found.splits[name].examples for name in ("train", "validation")] == [TRAIN, VALIDATION]
    return found


def with_examples(dataset: Dataset, train: int) -> Dataset:
    return replace(dataset, splits={**dataset.splits, "train": replace(dataset.splits["train"], examples=train)})


# --- the choice of a cache --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("crop", "servers", "expected"),
    [
        # `whole` stores the size of the model's input. `random` assumes 4:3 photographs, a seventh larger per side.
        ("whole", 1, 100 * 300 + 20 * 300),
        ("random", 1, 100 * 522 + 20 * 300),
        ("random", 2, (100 * 522 + 20 * 300) // 2),
    ],
)
def test_cached_bytes_of_the_images(dataset: Dataset, crop: Any, servers: int, expected: int):
    splits = {
        name: replace(dataset.splits[name], examples=examples)
        for name, examples in {"train": 100, "validation": 20}.items()
    }
    options = BatchOptions(image_size=10, batch_size=1, crop=crop)
    assert cached_bytes(replace(dataset, splits=splits), options, servers) == expected


CHOICES = {
    # choice, other options, epochs, training examples -> where the images are cached
    "they fit": ("auto", {}, 2, TRAIN, "memory"),
    "squeezed, they fit": ("auto", {"crop": "whole"}, 2, TRAIN, "memory"),
    "they do not fit": ("auto", {}, 2, MANY, "off"),
    "nothing comes again": ("auto", {}, 1, TRAIN, "off"),
    "read whole each time": ("auto", {"crop": "random_resized"}, 2, TRAIN, "off"),
    "others in each epoch": ("auto", {"balanced": True}, 2, TRAIN, "off"),
    "requested": ("memory", {}, 1, TRAIN, "memory"),
    "not wanted": ("off", {}, 2, TRAIN, "off"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_chosen_cache(dataset: Dataset, tmp_path: Path, name: str):
    choice, values, epochs, train, where = CHOICES[name]
    options = replace(OPTIONS, **values)
    with open_cache(choice, tmp_path / "images", with_examples(dataset, train), options, Server(), epochs) as found:
        assert found == replace(options, cache=where)
    assert not (tmp_path / "images").exists()


MESSAGES = {
    "memory": ("auto", TRAIN, r"decoded images are kept in memory: they need about [0-9.]+ [kM]B of [0-9.]+ [GT]B"),
    "too many": (
        "auto",
        MANY,
        r"decoded images need about [0-9.]+ [GTP]B, but only [0-9.]+ [GTP]B of memory can be used for them: images are "
        r"decoded again in every epoch; cache=disk would keep them",
    ),
    "off": ("off", TRAIN, ""),
    "disk": ("disk", TRAIN, r"decoded images are kept in .*/images/[0-9a-f]{16}: they need about [0-9.]+ [kM]B more"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_chosen_cache_is_logged(dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str):
    choice, train, message = MESSAGES[name]
    caplog.set_level(logging.INFO)
    with open_cache(choice, tmp_path / "images", with_examples(dataset, train), OPTIONS, Server(), 2):
        pass
    logged = "".join(record.getMessage() for record in caplog.records)
    assert re.fullmatch(message, logged)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            "memory",
            r"^decoded images need about [0-9.]+ [GTP]B, but only [0-9.]+ [GTP]B of memory can be used for them: set "
            r"cache=disk or cache=off$",
        ),
        (
            "disk",
            r"^decoded images need about [0-9.]+ [GTP]B, but only [0-9.]+ [GTP]B of disk below .*/images can be used "
            r"for them: set local_folder or cache=off$",
        ),
    ],
)
def test_a_requested_cache_that_does_not_fit_is_refused(dataset: Dataset, tmp_path: Path, choice: Any, message: str):
    with (
        pytest.raises(BadInput, match=message),
        open_cache(choice, tmp_path / "images", with_examples(dataset, MANY), OPTIONS, Server(), 2),
    ):
        pass


# --- the batches of a cache -------------------------------------------------------------------------------------------


@contextmanager
def disk(folder: Path, dataset: Dataset, options: BatchOptions = OPTIONS) -> Iterator[BatchOptions]:
    with open_cache("disk", folder, dataset, options, Server(), 3) as found:
        yield found


def trained(published: Path, options: BatchOptions, *, epochs: int = 3, start: int = 0) -> list[Arrays]:
    return list(training_batches(published, options, epochs=epochs, start=start).as_numpy_iterator())


def validated(published: Path, options: BatchOptions) -> list[Arrays]:
    return list(validation_batches(published, options).as_numpy_iterator())


def assert_equal(one: list[Arrays], other: list[Arrays]) -> None:
    for ours, theirs in zip(one, other, strict=True):
        for mine, yours in zip(ours, theirs, strict=True):
            assert np.array_equal(mine, yours)


def reds(batches: list[Arrays]) -> list[int]:
    return [int(image[SIDE // 2, SIDE // 2, 0]) for images, _, _ in batches for image in images]


@contextmanager
def without_shards(published: Path) -> Iterator[None]:
    """Hide all shards, so that nothing can be decoded."""
    hidden = [(path, path.with_name(f"hidden-{path.name}")) for path in published.glob("*.tfrecord")]
    for path, name in hidden:
        path.rename(name)
    try:
        yield
    finally:
        for path, name in hidden:
            name.rename(path)


@pytest.fixture(scope="module")
def in_memory(published: Path) -> list[Arrays]:
    """The batches of three epochs, with a cache in memory."""
    return trained(published, replace(OPTIONS, cache="memory"))


@pytest.fixture(scope="module")
def on_disk(published: Path, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> list[Arrays]:
    """The batches of three epochs, with a cache on the disk."""
    with disk(tmp_path_factory.mktemp("on_disk"), dataset) as options:
        return trained(published, options)


@pytest.fixture(params=["memory", "disk"])
def choice(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def cached(choice: str, in_memory: list[Arrays], on_disk: list[Arrays]) -> list[Arrays]:
    """The batches of three epochs, with the chosen cache."""
    return in_memory if choice == "memory" else on_disk


def test_each_epoch_has_every_image_once_in_its_own_order(cached: list[Arrays]):
    orders = [reds(cached[STEPS * epoch : STEPS * (epoch + 1)]) for epoch in range(3)]
    assert [Counter(order) for order in orders] == [Counter(range(TRAIN))] * 3
    assert len({tuple(order) for order in orders}) == 3


def test_labels_stay_with_their_images(cached: list[Arrays]):
    labels = [int(label) for _, labels, _ in cached for label in labels]
    assert labels == [red % 3 for red in reds(cached)]


def test_the_first_epoch_has_the_same_order_without_a_cache(published: Path, cached: list[Arrays]):
    assert reds(trained(published, OPTIONS, epochs=1)) == reds(cached[:STEPS])


def test_memory_and_disk_give_the_same_first_epoch_and_validation(
    published: Path, dataset: Dataset, tmp_path: Path, in_memory: list[Arrays], on_disk: list[Arrays]
):
    assert_equal(on_disk[:STEPS], in_memory[:STEPS])
    kept_in_memory = validated(published, replace(OPTIONS, cache="memory"))
    with disk(tmp_path, dataset) as options:
        assert_equal(validated(published, options), kept_in_memory)
    assert_equal(validated(published, OPTIONS), kept_in_memory)


def test_the_second_use_of_a_disk_cache_decodes_nothing(
    published: Path, dataset: Dataset, tmp_path: Path, on_disk: list[Arrays]
):
    with disk(tmp_path, dataset) as options:
        trained(published, options, epochs=1)
        validation = validated(published, options)
    with disk(tmp_path, dataset) as options:
        # They are opened first, because a dataset without its shards is refused.
        batches = training_batches(published, options, epochs=3), validation_batches(published, options)
        with without_shards(published):
            assert_equal(list(batches[0].as_numpy_iterator()), on_disk)
            assert_equal(list(batches[1].as_numpy_iterator()), validation)


def test_the_second_epoch_decodes_nothing(
    published: Path, dataset: Dataset, tmp_path: Path, cached: list[Arrays], choice: Any
):
    with open_cache(choice, tmp_path, dataset, OPTIONS, Server(), 3) as options:
        batches = training_batches(published, options, epochs=3).as_numpy_iterator()
        first = [next(batches) for _ in range(STEPS)]
        with without_shards(published):
            assert_equal([*first, *batches], cached)


@pytest.mark.parametrize("start", [3, *(pytest.param(start, marks=pytest.mark.long) for start in (STEPS, STEPS + 3))])
def test_a_training_resumes_at_its_position(
    published: Path, dataset: Dataset, tmp_path: Path, cached: list[Arrays], choice: Any, start: int
):
    """In the second epoch, too, although there are no cached images of the first one."""
    with open_cache(choice, tmp_path, dataset, OPTIONS, Server(), 3) as options:
        assert_equal(trained(published, options, start=start), cached[start:])


def test_a_disk_cache_is_not_read_before_its_images_are_needed(
    published: Path, dataset: Dataset, tmp_path: Path, on_disk: list[Arrays]
):
    """A damaged image that comes last does not stop the batches before it. The next attempt decodes it again."""
    last = reds(on_disk)[2 * STEPS * BATCH - 1]
    with disk(tmp_path, dataset) as options:
        trained(published, options, epochs=1)
    path = cache_file(tmp_path, "images-train.data*")
    content = path.read_bytes()
    pixels = bytes((last, 0, 0)) * SIDE * SIDE
    assert pixels in content
    path.write_bytes(content.replace(pixels, bytes(len(pixels)), 1))
    read: list[Arrays] = []
    with pytest.raises(CacheDamaged), disk(tmp_path, dataset) as options:
        read.extend(training_batches(published, options, epochs=2, start=STEPS).as_numpy_iterator())
    assert_equal(read, on_disk[STEPS : 2 * STEPS - 1])
    with disk(tmp_path, dataset) as options:
        assert_equal(trained(published, options, start=STEPS), on_disk[STEPS:])


BREAK_OFF = """
import os, sys
from pathlib import Path
from tests.input.test_cache import OPTIONS, disk, load, training_batches, validation_batches

published, folder, split = sys.argv[1:]
with disk(Path(folder), load(Path(published))) as options:
    batches = (training_batches if split == "train" else validation_batches)(published, options).as_numpy_iterator()
    next(batches)
    os._exit(9)
"""


@pytest.mark.long
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_killed_first_pass_starts_again(
    published: Path, dataset: Dataset, tmp_path: Path, on_disk: list[Arrays], split: str
):
    killed = subprocess.run([sys.executable, "-c", BREAK_OFF, str(published), str(tmp_path), split], cwd=ROOT)
    assert killed.returncode == 9
    # TensorFlow itself would refuse to continue with these files.
    assert list(tmp_path.glob(f"*/images-{split}*.lockfile"))
    assert not list(tmp_path.glob(f"*/images-{split}.index"))
    with disk(tmp_path, dataset) as options:
        assert_equal(trained(published, options), on_disk)
        assert_equal(validated(published, options), validated(published, OPTIONS))
    assert not list(tmp_path.glob("*/*.lockfile"))


def cache_file(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(f"*/{pattern}")
    return found


DAMAGE = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "a bit": lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
}


@pytest.mark.core
@pytest.mark.parametrize(
    ("damage", "file"),
    [("cut", "train.data*"), ("a bit", "train.data*"), ("empty", "train.index"), ("zeros", "validation.data*")],
)
def test_a_damaged_cache_is_removed_and_written_again(
    published: Path, dataset: Dataset, tmp_path: Path, on_disk: list[Arrays], damage: str, file: str
):
    with disk(tmp_path, dataset) as options:
        trained(published, options, epochs=1)
        validation = validated(published, options)
    path = cache_file(tmp_path, f"images-{file}")
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    split = file.partition(".")[0]
    read = trained if split == "train" else validated
    message = "the decoded images in .* were damaged .* and have been removed: the next attempt decodes them again"
    with pytest.raises(CacheDamaged, match=message), disk(tmp_path, dataset) as options, damage_named(published):
        read(published, options)
    assert not list(tmp_path.glob(f"*/images-{split}*"))
    with disk(tmp_path, dataset) as options:
        assert_equal(trained(published, options), on_disk)
        assert_equal(validated(published, options), validation)


def test_another_error_does_not_remove_the_cache(published: Path, dataset: Dataset, tmp_path: Path):
    with disk(tmp_path, dataset) as options:
        trained(published, options, epochs=1)
    with pytest.raises(tf.errors.DataLossError), disk(tmp_path, dataset):
        raise tf.errors.DataLossError(None, None, "of something else")
    assert cache_file(tmp_path, "images-train.index").exists()


# --- the owner of a cache ---------------------------------------------------------------------------------------------

HOLD = (
    "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); input()"
)


@contextmanager
def held_by_another_process(folder: Path) -> Iterator[None]:
    command = [sys.executable, "-c", HOLD, str(folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.communicate(b"\n")


def folder_of(options: BatchOptions) -> Path:
    return Path(options.cache).parent


def test_a_cache_that_another_process_holds_is_refused(dataset: Dataset, tmp_path: Path):
    with disk(tmp_path, dataset) as options:
        own = folder_of(options)
    with held_by_another_process(own):
        with (
            pytest.raises(
                BadInput, match=f"^another training keeps the same decoded images in {own}: set cache=off for one"
            ),
            disk(tmp_path, dataset),
        ):
            pass
        assert own.exists()
    with disk(tmp_path, dataset):
        pass


def test_caches_of_other_trainings_are_swept_unless_they_run(dataset: Dataset, tmp_path: Path):
    running, ended = (tmp_path / name for name in ("running", "ended"))
    for left in (running, ended):
        left.mkdir()
        for name in (".lock", "images-train.index", "images-train.data-00000-of-00001"):
            (left / name).touch()
    with held_by_another_process(running), disk(tmp_path, dataset) as options:
        assert {*tmp_path.iterdir()} == {tmp_path / ".lock", running, folder_of(options)}
        assert (running / "images-train.index").exists()
    with disk(tmp_path, dataset) as options:
        assert {*tmp_path.iterdir()} == {tmp_path / ".lock", folder_of(options)}


def test_trainings_that_start_together_do_not_sweep_each_other(dataset: Dataset, tmp_path: Path):
    """Threads can stand for processes, because a lock belongs to its descriptor."""
    together = threading.Barrier(4, timeout=300)

    def train(number: int) -> None:
        for begun in range(20):
            together.wait()
            with disk(tmp_path, dataset, replace(OPTIONS, seed=100 * begun + number)) as options:
                together.wait()
                assert is_held(folder_of(options))
                together.wait()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(train, range(4))) == [None] * 4


def is_held(folder: Path) -> bool:
    descriptor = os.open(folder / ".lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


OTHERS = {
    "seed": {"seed": 6},
    "size": {"image_size": 9},
    "crop": {"crop": "whole"},
    "buffer": {"shuffle_bytes": 2001},
    "batches": {"batch_size": 7},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_options_use_another_cache_folder(dataset: Dataset, tmp_path: Path, name: str):
    with disk(tmp_path, dataset) as options, disk(tmp_path, dataset, replace(OPTIONS, **OTHERS[name])) as others:
        assert folder_of(options) != folder_of(others)


def test_another_version_or_server_uses_another_cache_folder(dataset: Dataset, tmp_path: Path):
    version = replace(dataset, version="another")
    with (
        disk(tmp_path, dataset) as options,
        disk(tmp_path, version) as of_version,
        open_cache("disk", tmp_path, dataset, OPTIONS, Server(1, 2), 3) as of_server,
    ):
        assert len({folder_of(each) for each in (options, of_version, of_server)}) == 3
