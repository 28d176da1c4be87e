"""The same images in each form: a folder of files, and containers of each format."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from pipeline.records.example import encode
from pipeline.records.tfrecord import frame
from pipeline.sources import Classes, Listed, Skipped, SourceOptions
from pipeline.sources.detection import images_of
from tests.conftest import jpeg

Images = Mapping[str, bytes]
"""Bytes by key. The first folder of a key is the class."""
Write = Callable[[Path, Images], Path]
"""Writes images as one or more containers into an empty folder, and returns the place of the source."""


class Found:
    """What a source lists."""

    def __init__(self, place: Path, copies: str, **options: Any) -> None:
        self.items = list(images_of(place, SourceOptions(copies=copies, **options)))
        self.images = {item.key: item for item in self.items if isinstance(item, Listed)}
        self.labels = {key: item.labels for key, item in self.images.items()}
        self.splits = {key: item.split for key, item in self.images.items()}
        self.skipped = {item.key: item.reason for item in self.items if isinstance(item, Skipped)}
        self.classes = next((item.names for item in self.items if isinstance(item, Classes)), None)

    def content(self, root: Path, key: str) -> bytes:
        extent = self.images[key].extent
        assert extent
        content = (root / extent.file).read_bytes()
        return content[extent.offset :][: self.images[key].size]


def drawn(classes: Sequence[str] = ("cats", "dogs", "eels"), count: int = 8) -> dict[str, bytes]:
    """Return images of some classes. One is broken, one is empty, and two are equal."""
    images = {
        f"{name}/{number:03d}.jpg": jpeg(1000 * place + number)
        for place, name in enumerate(classes)
        for number in range(count)
    }
    first = f"{classes[0]}/000.jpg"
    return images | {
        f"{classes[0]}/again.jpg": images[first],
        f"{classes[0]}/broken.jpg": b"no image",
        f"{classes[0]}/empty.jpg": b"",
    }


def photographs(count: int = 8) -> dict[str, bytes]:
    """Return images of about 60 kB, the size of photographs."""
    images = {}
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (160, 240, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
        images[f"{('cats', 'dogs')[number % 2]}/{number:03d}.jpg"] = buffer.getvalue()
    return images


def folder(root: Path, images: Images) -> Path:
    for key, content in images.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_zip(path: Path, files: Images, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, files: Images, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def beside(images: Images, suffix: str, content: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return images whose labels are in files beside them."""
    files: dict[str, bytes] = {}
    for key, image in images.items():
        files[key] = image
        files[f"{key.rpartition('.')[0]}{suffix}"] = content(class_of(key))
    return files


def class_of(key: str) -> str:
    return key.split("/")[0]


def halves(images: Images) -> list[dict[str, bytes]]:
    items = list(images.items())
    return [dict(items[::2]), dict(items[1::2])]


def shuffled(images: Images) -> dict[str, bytes]:
    return dict(sorted(images.items(), key=lambda item: item[0][::-1]))


def hub_metadata(names: Sequence[str], label: str = "label", several: bool = False) -> dict[str, str]:
    """Return the metadata with which the Hub's library describes an image and its classes."""
    of_class: dict[str, Any] = {"names": list(names), "_type": "ClassLabel"}
    features = {
        "image": {"_type": "Image"},
        label: {"feature": of_class, "_type": "Sequence"} if several else of_class,
    }
    return {"huggingface": json.dumps({"info": {"features": features}})}


def write_hub(path: Path, images: Images, names: Sequence[str]) -> Path:
    """Write a Parquet file as the Hub has it, in small row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": content, "path": key} for key, content in images.items()]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {
        "image": pa.array(rows, kind),
        "label": pa.array([names.index(class_of(key)) for key in images], pa.int64()),
    }
    table = pa.table(columns).replace_schema_metadata(hub_metadata(names))
    parquet.write_table(table, path, row_group_size=5)
    return path


def hub(root: Path, images: Images) -> Path:
    names = sorted(set(map(class_of, images)))
    for number, part in enumerate(halves(images)):
        write_hub(root / "data" / f"part-{number:05d}-of-00002.parquet", part, names)
    (root / "README.md").write_text("---\nlicense: cc0\n---\n")
    return root


def binary_column(root: Path, images: Images) -> Path:
    rows = {"filename": list(images), "img": list(images.values()), "class": list(map(class_of, images))}
    parquet.write_table(pa.table(rows), root / "images.parquet", row_group_size=7, compression="zstd")
    return root / "images.parquet"


def records(images: Images) -> bytes:
    features = (
        {
            "image/encoded": content,
            "image/filename": key.encode(),
            "image/class/text": class_of(key).encode(),
            "image/class/label": 1 + sorted(set(map(class_of, images))).index(class_of(key)),
        }
        for key, content in images.items()
    )
    return b"".join(frame(encode(each)) for each in features)


def tfrecords(root: Path, images: Images) -> Path:
    for number, part in enumerate(halves(images)):
        (root / f"flowers.tfrecord-{number:05d}-of-00002").write_bytes(records(part))
    return root


def tfrecord_with_label_file(root: Path, images: Images) -> Path:
    names = sorted(set(map(class_of, images)))
    features = (
        {"image": content, "filename": key.encode(), "label": names.index(class_of(key))}
        for key, content in images.items()
    )
    (root / "records.tfrecord").write_bytes(b"".join(frame(encode(each)) for each in features))
    (root / "label.labels.txt").write_text("\n".join(names) + "\n")
    return root / "records.tfrecord"


def compressed_tfrecord(root: Path, images: Images) -> Path:
    (root / "records.tfrecord.gz").write_bytes(gzip.compress(records(images)))
    return root / "records.tfrecord.gz"


def two_zips(root: Path, images: Images) -> Path:
    for name, part in zip(("a", "b"), halves(images), strict=True):
        write_zip(root / f"{name}.zip", part)
    return root


FORMS: dict[str, Write] = {
    "zip": lambda root, images: write_zip(root / "flowers.zip", shuffled(images)),
    "zip, compressed": lambda root, images: write_zip(root / "flowers.zip", images, zipfile.ZIP_DEFLATED),
    "zip of a packed folder": lambda root, images: write_zip(
        root / "flowers.zip", {f"all/flowers/{key}": content for key, content in images.items()}
    ),
    "zip files": two_zips,
    "tar": lambda root, images: write_tar(root / "flowers.tar", shuffled(images)),
    "tar, names with a dot": lambda root, images: write_tar(
        root / "flowers.tar", {f"./{key}": content for key, content in images.items()}
    ),
    "tar.gz": lambda root, images: write_tar(root / "flowers.tar.gz", images, "w:gz"),
    "tar, with .cls": lambda root, images: write_tar(root / "a.tar", beside(images, ".cls", str.encode)),
    "tar, with .txt": lambda root, images: write_tar(
        root / "a.tar", beside(images, ".txt", lambda x: f"{x}\n".encode())
    ),
    "tar, with .json": lambda root, images: write_tar(
        root / "a.tar", beside(images, ".json", lambda name: json.dumps({"label": [name], "width": 3}).encode())
    ),
    "parquet of the hub": hub,
    "parquet with a column of bytes": binary_column,
    "tfrecord": tfrecords,
    "tfrecord with a file of labels": tfrecord_with_label_file,
    "tfrecord, compressed": compressed_tfrecord,
}
"""Forms in which images come. Each must give the dataset that the folder of the same images gives."""
