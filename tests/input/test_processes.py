"""Tests in separate processes: TensorFlow configures devices at its start, and memory use is that of a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from pipeline.stages.build import build
from tests.conftest import jpeg

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 50 images of one color each in 4 training shards."""
    root = tmp_path_factory.mktemp("published")
    for number in range(50):
        path = root / "source" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, (60, 50)))
    settings = {"source_uri": str(root / "source"), "workspace": str(root / "w"), "num_shards": 4}
    return Path(build(settings_from(settings))["dataset"])


def output_of(program: str, *arguments: object) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


TWO_REPLICAS = """
import sys
import tensorflow as tf
from pipeline.input import BatchOptions, training_batches

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])

def seen(batches):
    found = []
    for batch in batches:
        for images, labels, weights in zip(*(strategy.experimental_local_results(part) for part in batch)):
            found += [int(images[n, 0, 0, 0]) * int(weights[n]) for n in range(len(weights))]
    return sorted(found)

def options(size):
    return BatchOptions(image_size=32, batch_size=size, crop="whole", flip=False)

alone = sorted(
    int(image[0, 0, 0]) * int(weight)
    for images, _, weights in training_batches(sys.argv[1], options(8))
    for image, weight in zip(images, weights)
)
split = seen(strategy.experimental_distribute_dataset(training_batches(sys.argv[1], options(8))))
print(split == alone)
"""


@pytest.mark.long
def test_two_replicas_see_the_same_images_as_one(published: Path):
    assert output_of(TWO_REPLICAS, published) == "True\n"


MEMORY = """
import sys
from itertools import islice
import psutil
from pipeline.input import BatchOptions, training_batches

options = BatchOptions(image_size=96, batch_size=8, crop=sys.argv[2], cache=sys.argv[3])
batches = iter(training_batches(sys.argv[1], options, epochs=400))
for _ in range(4):
    for _ in islice(batches, 5 * 100):
        pass
    print(psutil.Process().memory_info().rss)
"""


@pytest.mark.long
@pytest.mark.parametrize(("crop", "cache"), [("random_resized", "off"), ("random", "memory")])
def test_memory_does_not_grow_with_the_epochs(published: Path, crop: str, cache: str):
    """Allocators settle in the first hundred epochs. Three hundred more follow, with 5 MB of pixels each."""
    first, *_, last = map(int, output_of(MEMORY, published, crop, cache).split())
    assert last - first < 30_000_000
