"""Stanford Cars: cars_train/ beside cars_train_annos.mat and cars_meta.mat, which may be in devkit/.

The labels of the test images are only in cars_test_annos_withlabels.mat, a separate download. If this file is present,
the test images become the validation split, as usual for this dataset. Otherwise, they are only for prediction.
Source of the layout: the README.txt of the devkit.
"""

import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.errors import SourceError, TenfoldError
from pipeline.sources import Box, Classes, Found, Listed, Skipped, SourceOptions, is_source_file, measure
from pipeline.sources.folder import walk, why_no_image
from pipeline.sources.key_range import bytes_of
from pipeline.storage import Place
from pipeline.system.os_errors import retried

META = "cars_meta.mat"
TRAIN_LABELS = "cars_train_annos.mat"
TEST_LABELS = "cars_test_annos_withlabels.mat"
_DEVKITS = ("devkit", "car_devkit/devkit", "")


class Annotation(NamedTuple):
    """The annotation of one image: its class and the box of the car."""

    label: str
    box: Box


def recognizes(place: Place) -> bool:
    """Whether the training images and the two files with their classes exist."""
    return (place / "cars_train").is_dir() and all(_annotations_file(place, name) for name in (META, TRAIN_LABELS))


def list_images(place: Place, options: SourceOptions) -> Iterator[Found]:
    """Yield the classes in the order of cars_meta.mat (class 1 of the annotations has id 0), then every image.

    If the test images have no labels, training images have no split, so that a share of them is held back. No option
    changes the result. Raises SourceError if a .mat file is not as described in the devkit.
    """
    names = tuple(str(name) for name in _variable(_require(place, META), "class_names"))
    yield Classes(names, {})
    # cars_test/ comes before cars_train/, because keys must be in the order of their bytes.
    test_labels = _annotations_file(place, TEST_LABELS) if (place / "cars_test").is_dir() else None
    if test_labels:
        yield from _split(place, "cars_test", _annotations(test_labels, names), "validation")
    else:
        yield from _without_labels(place)
    annotations = _annotations(_require(place, TRAIN_LABELS), names)
    yield from _split(place, "cars_train", annotations, "train" if test_labels else "")


def _split(place: Place, name: str, annotations: Mapping[str, Annotation], split: str) -> Iterator[Found]:
    """Yield the images of a folder and of its annotations, even if they are in only one of the two."""
    prefix = _prefix(place, name)
    items = {item.key: item for item in walk(place / prefix, prefix)}
    for key in sorted(items.keys() | {prefix + file for file in annotations}, key=bytes_of):
        annotation = annotations.get(key.removeprefix(prefix))
        yield _annotated(place, key, item=items.get(key), annotation=annotation, split=split)


def _annotated(place: Place, key: str, *, item: Found | None, annotation: Annotation | None, split: str) -> Found:
    if isinstance(item, Skipped):
        return item
    if annotation is None:
        return Skipped(key, why_no_image(key) or "not in the annotations")
    # A listed image is measured already. In a bucket, measuring it again would take a request.
    image = item if isinstance(item, Listed) else Listed(key, (), "", *measure(place / key))
    return image._replace(labels=(annotation.label,), split=split, boxes=(annotation.box,))


def _without_labels(place: Place) -> Iterator[Found]:
    prefix = _prefix(place, "cars_test")
    for item in walk(place / prefix, prefix) if (place / prefix).is_dir() else ():
        reason = why_no_image(item.key) or f"has no label: for prediction, not for validation ({TEST_LABELS} has them)"
        yield Skipped(item.key, reason) if isinstance(item, Listed) else item


def _prefix(place: Place, name: str) -> str:
    """Return the folder of the images, with a slash at its end. In some copies, it is in a folder of the same name."""
    return f"{name}/{name}/" if (place / name / name).is_dir() else f"{name}/"


def _annotations(path: Place, names: tuple[str, ...]) -> dict[str, Annotation]:
    """Return the annotation of each image, by file name."""
    try:
        rows = [(str(row["fname"]), _annotation(row, names)) for row in _variable(path, "annotations")]
    except (IndexError, TypeError, ValueError) as error:
        raise SourceError(
            f"{path} does not have the format of the devkit ({error}): each annotation has fname, class (1 to "
            f"{len(names)}, a line of cars_meta.mat) and bbox_x1 to bbox_y2. Download the file again"
        ) from error
    annotations: dict[str, Annotation] = {}
    for name, annotation in rows:
        if annotations.setdefault(name, annotation) != annotation:
            raise SourceError(f"{path} lists {name!r} twice, with different annotations: remove one of them")
    return annotations


def _annotation(row: Any, names: tuple[str, ...]) -> Annotation:
    number = int(row["class"])
    if not 1 <= number <= len(names):  # 0 would silently become the last class.
        raise IndexError(f"class {number}")
    label = names[number - 1]
    # MATLAB counts pixels from 1, and both ends belong to the box.
    xmin, ymin, xmax, ymax = (float(int(row[f"bbox_{name}"])) for name in ("x1", "y1", "x2", "y2"))
    box = Box(xmin - 1, ymin - 1, xmax, ymax, label)
    return Annotation(label, box)


def _variable(path: Place, name: str) -> Any:
    """Return a variable of a .mat file as an array of one dimension."""
    import numpy as np
    from scipy.io import loadmat

    try:
        content = retried(path.read_bytes, path)
        return np.atleast_1d(loadmat(io.BytesIO(content), squeeze_me=True)[name])
    except TenfoldError:
        raise
    except Exception as error:  # For foreign bytes, the reader of SciPy may raise anything.
        reason = f"it has no {name}" if isinstance(error, KeyError) else str(error)
        raise SourceError(f"{path} cannot be read ({reason}): download it again") from error


def _annotations_file(place: Place, name: str) -> Place | None:
    candidates = (place / folder / name for folder in _DEVKITS)
    return next((path for path in candidates if is_source_file(path)), None)


def _require(place: Place, name: str) -> Place:
    path = _annotations_file(place, name)
    if path is None:
        raise SourceError(f"source_uri {place} has no {name}, neither in devkit/ nor beside cars_train/")
    return path
