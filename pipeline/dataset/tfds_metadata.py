"""Files beside the shards with which `tfds.builder_from_directory(FOLDER)` of TensorFlow Datasets reads them.

The files are those of `tfds.folder_dataset.write_metadata` (TFDS 4.9), written without importing it. Tenfold itself
reads only `dataset.json`.
"""

import json
import re
from typing import Any

from pipeline.config.example_kinds import IMAGES
from pipeline.dataset.manifest import Dataset

_FEATURES = "tensorflow_datasets.core.features"
_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"
_NO_CLASS = "background"
"""The label files of ImageNet give this name to id 0 if the ids of the classes begin at 1."""
_ESCAPED = re.compile(r"\A\s+|\s+\Z|[\r\n\ud800-\udfff]")
"""A line of a names file would lose these characters: TFDS strips it, ends it at any line end, and reads UTF-8."""

Json = dict[str, Any]


def tfds_files(dataset: Dataset) -> dict[str, bytes]:
    """Return the files for TFDS by name. Empty if the shards are compressed, because TFDS cannot read them.

    Also empty for tables, because TFDS has no missing values.
    """
    if dataset.records.compression != "none" or dataset.kind != IMAGES:
        return {}
    names = class_names(dataset)
    lines = "".join(f"{name}\n" for name in names)
    texts = {
        "features.json": json.dumps(_features(dataset), indent=1),
        **{f"{key.replace('/', '-')}.labels.txt": lines for key in _class_keys(dataset) if names},
        "dataset_info.json": json.dumps(_info(dataset), indent=1),
    }
    return {name: text.encode("utf-8") for name, text in texts.items()}


def class_names(dataset: Dataset) -> list[str]:
    """Return the name of each id in the records as TFDS reads it from a line: the label, escaped where necessary.

    Empty if two names would be the same. TFDS would then find fewer names than classes, hide the error, and give most
    ids the name of another class. Without a names file, it uses numbers.
    """
    names = [_NO_CLASS] * dataset.records.label_offset + [_ESCAPED.sub(_escape, label) for label in dataset.labels]
    return names if len(set(names)) == len(names) else []


def _escape(match: re.Match[str]) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in match[0])


def _info(dataset: Dataset) -> Json:
    return {
        "name": dataset.name,
        "version": "1.0.0",  # TFDS requires three numbers.
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
    one = _one_value(name, kind.removesuffix(" list"), dataset)
    if not kind.endswith(" list"):
        return one
    sequence = {"feature": one, "length": "-1"}
    return {"pythonClassName": f"{_FEATURES}.sequence_feature.Sequence", "sequence": sequence}


def _one_value(name: str, kind: str, dataset: Dataset) -> Json:
    if name == dataset.records.keys.encoded and dataset.records.pixels == "encoded":
        image = {"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", "3"]}}
        return {"pythonClassName": f"{_FEATURES}.image_feature.Image", "image": image}
    if name in _class_keys(dataset):
        label = {"numClasses": str(len(dataset.labels) + dataset.records.label_offset)}
        return {"pythonClassName": f"{_FEATURES}.class_label_feature.ClassLabel", "classLabel": label}
    if kind == "bytes":
        return {"pythonClassName": f"{_FEATURES}.text_feature.Text", "text": {}}
    dtype = {"int64": "int64", "float": "float32"}[kind]
    tensor = {"dtype": dtype, "encoding": "none", "shape": {}}
    return {"pythonClassName": f"{_FEATURES}.tensor_feature.Tensor", "tensor": tensor}


def _class_keys(dataset: Dataset) -> list[str]:
    """Return the features that hold ids of classes: that of the image, and that of its boxes if there are any."""
    keys = dataset.records.keys
    return [key for key in (keys.label, keys.box_label) if key in dataset.features]
