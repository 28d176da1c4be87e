"""A small example of each kind of source, with the layout of the real source."""

import io
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.io import savemat

from pipeline.sources import SourceOptions
from tests.conftest import jpeg

Annotated = tuple[int, int, int, int, int, str]
"""bbox_x1, bbox_y1, bbox_x2, bbox_y2, class, fname"""
_COPIES = tempfile.TemporaryDirectory(prefix="tenfold-test-")
"""It is removed at the end of the process."""
CARS = ("AM General Hummer SUV 2000", "Ram C/V Cargo Van Minivan 2012")


def write_images(root: Path, *names: str) -> None:
    """Write a different JPEG under each name."""
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))


def write_annotations(path: Path, rows: Sequence[Annotated]) -> None:
    """Write a struct array `annotations`, of shape (1, images), as in the devkit."""
    fields = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    annotations = np.empty((1, len(rows)), dtype=[(field, object) for field in fields])
    for index, row in enumerate(rows):
        annotations[0, index] = row
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"annotations": annotations})


def write_meta(path: Path, names: Sequence[str] = CARS) -> None:
    """Write a cell array `class_names`, of shape (1, classes)."""
    cells = np.empty((1, len(names)), dtype=object)
    cells[0, :] = names
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"class_names": cells})


def folder(root: Path) -> Path:
    write_images(root, "train/cats/b.jpg", "train/cats-2/a.jpg", "train/ä/c.png", "val/cats/d.jpg", "train/notes.txt")
    return root


def listing(root: Path) -> Path:
    write_images(root, "images/b.jpg", "images-2/a.jpg", "images/ä.jpg")
    rows = "path,label,split,group\nimages/b.jpg,cat|dog,train,\nimages/ä.jpg,dog,val,g1\nimages-2/a.jpg,cat,,\n"
    (root / "list.csv").write_text(rows + "images/gone.jpg,cat,,\nimages/b.jpg,cat|dog,train,\n", encoding="utf-8")
    return root / "list.csv"


def stanford_cars(root: Path) -> Path:
    write_images(root, "cars_train/00002.jpg", "cars_train/00001.jpg", "cars_train/x.jpg", "cars_test/00001.jpg")
    write_meta(root / "devkit/cars_meta.mat")
    rows = [(39, 116, 569, 375, 2, "00001.jpg"), (1, 1, 24, 16, 1, "00002.jpg"), (1, 1, 24, 16, 1, "00003.jpg")]
    write_annotations(root / "devkit/cars_train_annos.mat", rows)
    return root


def imagenet(root: Path) -> Path:
    write_images(root, "train/n01443537/n01443537_2.JPEG", "train/n01440764/n01440764_1.JPEG", "train/a.tar")
    write_images(root, "val/ILSVRC2012_val_00000002.JPEG", "val/ILSVRC2012_val_00000001.JPEG", "test/a.JPEG")
    (root / "imagenet_2012_validation_synset_labels.txt").write_text("n01440764\nn01443537\n")
    (root / "imagenet_metadata.txt").write_text("n01440764\ttench, Tinca tinca\nn00001740\tentity\n")
    return root


def containers(root: Path) -> Path:
    """Write a zip file with folders of splits, a tar file with labels beside its images, and another file."""
    with zipfile.ZipFile(root / "a.zip", "w") as archive:
        for number, name in enumerate(["train/cats/b.jpg", "train/cats-2/a.jpg", "train/ä/c.png", "val/cats/d.jpg"]):
            archive.writestr(name, jpeg(number))
        archive.writestr("train/notes.txt", "")
    with tarfile.open(root / "b.tar", "w") as archive_of_labels:
        for name, content in (("train/dogs/0.jpg", jpeg(5)), ("train/dogs/0.cls", b"dogs"), ("train/dogs/1.jpg", b"")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive_of_labels.addfile(info, io.BytesIO(content))
    (root / "notes.txt").write_text("")
    return root


def options_of(kind: str = "auto") -> SourceOptions:
    """Return options with an empty folder for what listings keep."""
    return SourceOptions(kind=kind, copies=tempfile.mkdtemp(dir=_COPIES.name))


EXAMPLES: dict[str, Callable[[Path], Path]] = {
    "containers": containers,
    "folder": folder,
    "imagenet": imagenet,
    "listing": listing,
    "stanford_cars": stanford_cars,
}
"""The function of each kind that makes an example in an empty folder and returns its place."""
