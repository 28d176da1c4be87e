"""What TensorFlow Datasets wants beside the shards, so that `tfds.builder_from_directory(FOLDER)` reads them.

The files are those of `tfds.folder_dataset.write_metadata` (TFDS 4.9), written without importing it. Ours is
`dataset.json`; nothing here reads these.
"""

import json
from pathlib import Path
from typing import Any

from pipeline.dataset import Dataset
from pipeline.storage import write_whole

_FEATURES = "tensorflow_datasets.core.features"
_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"

Json = dict[str, Any]


def write_tfds_metadata(folder: Path, dataset: Dataset) -> None:
    """Write TFDS's files into a data set's folder; none where the shards are compressed, which TFDS does not read."""
    if dataset.records.compression != "none":
        return
    _write(folder / "features.json", json.dumps(_features(dataset), indent=1))
    if _has_class_label(dataset):
        name = f"{dataset.records.keys.label.replace('/', '-')}.labels.txt"
        _write(folder / name, "".join(f"{label}\n" for label in dataset.labels))
    _write(folder / "dataset_info.json", json.dumps(_info(dataset), indent=1))


def _write(path: Path, text: str) -> None:
    with write_whole(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def _info(dataset: Dataset) -> Json:
    return {
        "name": dataset.name,
        "version": "1.0.0",  # its own notion, of three numbers
        "description": f"Version {dataset.version}",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "filepathTemplate": _TEMPLATE,
                "name": name,
                "numBytes": str(split.bytes),
                "shardLengths": [str(shard.examples) for shard in split.shards],
            }
            for name, split in dataset.splits.items()
        ],
    }


def _features(dataset: Dataset) -> Json:
    tree: Json = {}
    for name, kind in dataset.features.items():
        *folders, leaf = name.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = _feature(name, kind, dataset)
    return _dict_feature(tree)


def _dict_feature(tree: Json) -> Json:
    features = {name: each if "pythonClassName" in each else _dict_feature(each) for name, each in tree.items()}
    return {"pythonClassName": f"{_FEATURES}.features_dict.FeaturesDict", "featuresDict": {"features": features}}


def _feature(name: str, kind: str, dataset: Dataset) -> Json:
    keys = dataset.records.keys
    if name == keys.encoded and dataset.records.pixels == "encoded":
        image = {"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", "3"]}}
        return {"pythonClassName": f"{_FEATURES}.image_feature.Image", "image": image}
    if name == keys.label and _has_class_label(dataset):
        label = {"numClasses": str(len(dataset.labels))}
        return {"pythonClassName": f"{_FEATURES}.class_label_feature.ClassLabel", "classLabel": label}
    if kind.endswith(" list"):
        sequence = {"feature": _plain_feature(kind.removesuffix(" list")), "length": "-1"}
        return {"pythonClassName": f"{_FEATURES}.sequence_feature.Sequence", "sequence": sequence}
    return _plain_feature(kind)


def _plain_feature(kind: str) -> Json:
    if kind == "bytes":
        return {"pythonClassName": f"{_FEATURES}.text_feature.Text", "text": {}}
    dtype = {"int64": "int64", "float": "float32"}[kind]
    tensor = {"dtype": dtype, "encoding": "none", "shape": {}}
    return {"pythonClassName": f"{_FEATURES}.tensor_feature.Tensor", "tensor": tensor}


def _has_class_label(dataset: Dataset) -> bool:
    """TFDS knows classes from 0 alone, one an example, with a name a line."""
    simple = dataset.records.label_offset == 0 and not dataset.records.multi_label
    return simple and not any("\n" in label for label in dataset.labels)
