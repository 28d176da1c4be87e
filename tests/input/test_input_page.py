"""The code of the page about the input pipeline runs as written, and its numbers are those of NumPy."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from pipeline.dataset.manifest import load
from pipeline.input import BatchOptions, validation_batches
from pipeline.tables.schema import Column
from tests.conftest import jpeg
from tests.made_tables import make_table
from tests.published import SourceImage, make_folders, make_list, publish

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "input.md").read_text("utf-8")
LOOP, FIT, PREDICT, CACHE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OPTIONS = BatchOptions(image_size=32, batch_size=64)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 20 images in two classes."""
    root = tmp_path_factory.mktemp("images")
    folder = make_folders(root / "source", [SourceImage(jpeg(number), ["ab"[number % 2]]) for number in range(20)])
    return publish(folder, root / "workspace", num_shards=2, validation_fraction=0.2)


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 20 images with one or two of three labels."""
    root = tmp_path_factory.mktemp("labeled")
    labels = [["abc"[number % 3], "abc"[number % 3 - 1]][: 1 + number % 2] for number in range(20)]
    source = [SourceImage(jpeg(number), each) for number, each in enumerate(labels)]
    return publish(make_list(root / "source", source), root / "workspace", num_shards=2, validation_fraction=0.2)


def table_of(folder: Path, label: Column, task: Any) -> Path:
    """Publish a table of 20 rows with two features."""
    columns = (Column("width", "int"), Column("share", "float"), label)
    rows = [{"width": n, "share": n / 7, "label": n % 2 if label.type == "int" else n / 3} for n in range(20)]
    return make_table(folder, columns, {"train": rows[:15], "validation": rows[15:], "test": []}, task, shards=2)


def run(folder: Path, *blocks: str, **names: Any) -> dict[str, Any]:
    """Run blocks of the page one after another on a dataset with small images. Return their names."""
    code = "\n".join((LOOP, *blocks)).replace("image_size=224", "image_size=32")
    code, changed = re.subn(r'^folder = ".*"', f"folder = {str(folder)!r}", code, flags=re.MULTILINE)
    assert changed == 1
    exec(compile(code, "docs/explanation/input.md", "exec"), names)
    return names


def model_of(classes: int) -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input((32, 32, 3)), *layers])


def model_of_table(outputs: int) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = {"width": keras.Input((), name="width", dtype="int64"), "share": keras.Input((), name="share")}
    columns = [keras.ops.reshape(keras.ops.cast(each, "float32"), (-1, 1)) for each in inputs.values()]
    return keras.Model(inputs, keras.layers.Dense(outputs)(keras.ops.concatenate(columns, axis=1)))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    normalized = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float(-normalized[np.arange(len(labels)), labels].mean())


def binary_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    return float((np.log1p(np.exp(-np.abs(logits))) + np.maximum(logits, 0) - logits * labels).mean())


def test_the_values_of_a_fit_are_those_of_all_validation_images(images: Path):
    names = run(images, FIT, PREDICT, model=model_of(2))
    logits, labels = names["logits"], names["labels"]
    assert len(logits) == len(labels) == load(images).splits["validation"].examples < 10
    last = {name: values[-1] for name, values in names["model"].history.history.items()}
    expected = cross_entropy(logits, labels)
    assert last["val_cross_entropy"] == pytest.approx(expected, rel=1e-4)
    assert last["val_accuracy"] == pytest.approx((logits.argmax(axis=1) == labels).mean(), rel=1e-4)
    # If this fails, Keras divides by the weights, and the page need not warn any more.
    assert last["val_loss"] == pytest.approx(expected * len(logits) / 64, rel=1e-4)


def test_the_block_about_the_cache_runs_as_written(images: Path, tmp_path: Path):
    names = run(images, CACHE.replace("/scratch/decoded", str(tmp_path)))
    assert names["batches"].cardinality() == 10


ONE = {"cross_entropy": cross_entropy, "accuracy": lambda logits, labels: (logits.argmax(axis=1) == labels).mean()}
SEVERAL = {
    "cross_entropy": binary_cross_entropy,
    "accuracy": lambda logits, labels: ((logits > 0) == labels).mean(),
}
NUMBERS = {
    "mse": lambda values, labels: ((values[:, 0] - labels) ** 2).mean(),
    "mae": lambda values, labels: np.abs(values[:, 0] - labels).mean(),
}


def metrics_of(examples: str) -> tuple[Any, list[Any]]:
    """Return the loss and the weighted metrics that the table of the page has for some examples."""
    [row] = [line for line in PAGE.splitlines() if line.startswith("|") and examples in line]
    loss, metrics = (cell.replace("`", "") for cell in row.strip("|").split("|")[1:])
    return eval(loss, {"keras": keras}), eval(f"[{metrics}]", {"keras": keras})


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        ("images with one label", ONE),
        ("rows with a class", ONE),
        ("images with several labels", SEVERAL),
        ("rows of a regression", NUMBERS),
    ],
)
@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match")
def test_the_metrics_of_the_page_are_those_of_numpy(
    examples: str,
    expected: dict[str, Callable[[np.ndarray, np.ndarray], float]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
):
    if examples.startswith("images"):
        folder = request.getfixturevalue("images" if "one" in examples else "labeled")
        model = model_of(2 if "one" in examples else 3)
    elif "class" in examples:
        folder = table_of(tmp_path / "table", Column("label", "int", role="label"), "classification")
        model = model_of_table(2)
    else:
        folder = table_of(tmp_path / "table", Column("label", "float", role="label"), "regression")
        model = model_of_table(1)
    loss, metrics = metrics_of(examples)
    model.compile("adam", loss, weighted_metrics=metrics)
    names = run(folder, PREDICT, model=model)
    found = model.evaluate(validation_batches(folder, OPTIONS), return_dict=True, verbose=0)
    assert set(found) == {"loss", *expected}
    for name, of_numpy in expected.items():
        assert found[name] == pytest.approx(of_numpy(names["logits"], names["labels"]), rel=1e-4), name
