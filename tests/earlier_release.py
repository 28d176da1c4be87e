"""Files in `tests/data/earlier_release`, written by the last commit before the modules moved, and their settings.

A dataset is complete. A plan of a second dataset has one of its three shards written. A training was stopped in the
validation of the first of three epochs. Paths in these files begin with `ROOT` instead of a folder.
"""

import shutil
from pathlib import Path

import keras

from pipeline.config import Settings, settings_from
from pipeline.workspace import work_folder

FILES = Path(__file__).parent / "data" / "earlier_release"
COMPLETE, HALF_WRITTEN = "124bd6989cdecd80", "d6c64c5a4e0e191e"
"""Versions of the two datasets."""
RUN, TRAINING = "stopped", "79c4095e0c06"
SETTINGS = {
    "dataset_name": "images",
    "num_shards": 2,
    "validation_fraction": 0.25,
    "image_size": 32,
    "batch_size": 4,
    "epochs": 3,
    "checkpoints_kept": 1,
    "model": "tests.earlier_release:tiny",
    "promote": "never",
}


def tiny(image_size: int, classes: int) -> keras.Model:
    """Return a model whose checkpoint takes a few kilobytes."""
    inputs = keras.Input((image_size, image_size, 3))
    x = keras.layers.Rescaling(1 / 255)(inputs)
    x = keras.layers.Conv2D(2, 3, strides=4)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def restore(folder: Path) -> Settings:
    """Copy the files into a folder, with its paths in them, and return the settings that made them."""
    source, workspace = folder / "source", folder / "workspace"
    shutil.copytree(FILES / "source", source)
    for name in ("datasets", "runs", "work"):
        shutil.copytree(FILES / name, workspace / name)
    settings = settings_from({**SETTINGS, "source_uri": str(source), "workspace": str(workspace)})
    changes = {"ROOT": str(folder)}
    for version in (COMPLETE, HALF_WRITTEN):  # The names of these folders depend on where they are.
        [work] = (workspace / "work" / "images").glob(f"{version}-*")
        changes[work.name] = work_folder(settings, version).name
        work.rename(work_folder(settings, version))
    for path in workspace.rglob("*.json*"):
        if path.name != "dataset.json":  # It has a checksum. Its only path is that of the source.
            path.write_text(_replaced(path.read_text(), changes))
    return settings


def _replaced(text: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        text = text.replace(before, after)
    return text
