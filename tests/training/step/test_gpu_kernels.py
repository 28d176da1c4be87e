"""Each operation of a step has a kernel for GPUs. Otherwise, TensorFlow moves the batch to the host in silence."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from pipeline.config.automatic import training_settings
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.input import training_batches
from pipeline.input.augmentation import flipped
from pipeline.input.options import batch_options
from pipeline.stages.build import build
from pipeline.tables.schema import Column, Task
from pipeline.training.model.tensor_kind import build_model_of
from pipeline.training.step.optimizer import build_optimizer, optimizer_options
from pipeline.training.step.phases import build_steps, step_options
from tests.conftest import jpeg
from tests.gpu_kernels import on_host, without_gpu_kernel
from tests.made_tables import Row, make_table

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="this TensorFlow has no kernels for GPUs")

OPTIONS: dict[str, Any] = {"batch_size": 6, "image_size": 32}
AUGMENTED = {"flip": True, "color_jitter": 0.2}
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


def traced(settings: Settings, folder: Path) -> Iterator[Any]:
    """Yield the training steps and the evaluation step of a training on a GPU, which need no GPU until they run."""
    strategy, dataset = tf.distribute.OneDeviceStrategy("/gpu:0"), load(folder)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build_model_of(settings, dataset)
        optimizer = build_optimizer(optimizer_options(settings, 2), model)
        optimizer.build(model.trainable_variables)
    steps = build_steps(strategy, model, optimizer, step_options(settings, dataset, 2, settings.micro_batches))
    *batch, _ = training_batches(folder, batch_options(settings), numbered=True).element_spec
    should_stop = tf.TensorSpec([], tf.float32)
    yield steps.train.get_concrete_function(*batch, should_stop)
    yield steps.evaluate.get_concrete_function(*batch[:3], should_stop)
    if steps.train_several and all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(batch)):
        stack = tf.nest.map_structure(lambda spec: tf.TensorSpec([2, *spec.shape], spec.dtype), batch)
        number = tf.TensorSpec([], tf.int32)
        yield steps.train_several.get_concrete_function(stack, number, number, should_stop)


def assert_all_on_gpu(settings: Settings, folder: Path) -> None:
    for step in traced(settings, folder):
        assert without_gpu_kernel(step) == set()
        assert on_host(step, settings.batch_size) == set()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of images, some of which have two labels."""
    root = tmp_path_factory.mktemp("several")
    for number in range(12):
        (root / f"{number}.jpg").write_bytes(jpeg(number))
    rows = [json.dumps({"path": f"{number}.jpg", "labels": ["a", "b"][: 1 + number % 2]}) for number in range(12)]
    (root / "list.jsonl").write_text("\n".join(rows))
    return Path(build(settings_from({"source_uri": str(root / "list.jsonl"), "workspace": str(root / "w")}))["dataset"])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns a dataset of a table with columns of all types, for a label."""
    columns = [
        Column("number", "int", missing=5),
        Column("share", "float"),
        Column("good", "bool"),
        Column("moment", "time"),
        Column("job", "string", missing=5),
        Column("words", "string", is_list=True),
        Column("sizes", "int", is_list=True),
    ]
    labels = {"classes": Column("label", "string", role="label"), "values": Column("number of it", "int", role="label")}

    @cache
    def made(name: str) -> Path:
        rows = [row_of(number) for number in range(24)]
        task: Task = "classification" if name == "classes" else "regression"
        splits = {"train": rows, "validation": rows, "test": []}
        return make_table(tmp_path_factory.mktemp("table") / name, [*columns, labels[name]], splits, task)

    return made


def row_of(number: int) -> Row:
    return {
        "number": number if number % 5 else None,
        "share": number / 7,
        "good": number % 2,
        "moment": 1_700_000_000_123_456 + number,
        "job": "ab"[number % 2] if number % 5 else None,
        "words": ["x", "y"][: number % 3],
        "sizes": [number] * (number % 3),
        "label": "abc"[number % 3],
        "number of it": number,
    }


def test_the_registry_lists_what_a_gpu_cannot_do():
    """`gather` of uint8 is why a GPU mirrors images in another way than a CPU."""
    images, mirrored = tf.TensorSpec([4, 8, 8, 3], tf.uint8), tf.TensorSpec([4], tf.bool)
    on_cpu = tf.function(flipped).get_concrete_function(images, mirrored)
    assert without_gpu_kernel(on_cpu) == {"GatherV2(Taxis=int32, Tindices=int32, Tparams=uint8)"}


def test_a_step_of_augmented_images_stays_on_the_gpu(published: Path):
    assert_all_on_gpu(training_settings({**OPTIONS, **AUGMENTED}), published)


@pytest.mark.long
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("others", [AUGMENTED, {"flip": False}, {**AUGMENTED, "micro_batches": 2}])
@pytest.mark.parametrize("name", ["published", "several"])
def test_each_step_of_images_stays_on_the_gpu(
    name: str, others: dict[str, Any], precision: str, request: pytest.FixtureRequest
):
    settings = training_settings({**OPTIONS, **others, "precision": precision})
    assert_all_on_gpu(settings, request.getfixturevalue(name))


def test_a_step_of_a_table_stays_on_the_gpu(table: Callable[[str], Path]):
    assert_all_on_gpu(training_settings({**OPTIONS, "model": "mlp"}), table("classes"))


@pytest.mark.long
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("name", ["classes", "values"])
def test_each_step_of_a_table_stays_on_the_gpu(
    name: str, micro_batches: int, precision: str, table: Callable[[str], Path]
):
    others = {"model": "mlp", "micro_batches": micro_batches, "precision": precision}
    assert_all_on_gpu(training_settings({**OPTIONS, **others}), table(name))
