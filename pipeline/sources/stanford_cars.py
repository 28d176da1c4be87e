"""Stanford Cars: cars_train/ beside cars_train_annos.mat and cars_meta.mat, which may lie in devkit/.

Labels of the test images are in cars_test_annos_withlabels.mat only, which comes apart from the rest. With it the
test images are for validation, as is customary with this data set; without it they can be predicted, no more.
Source of the layout: the README.txt of the devkit.
"""

import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.config import Settings
from pipeline.errors import SourceError, TenfoldError
from pipeline.sources import Box, Classes, Found, Listed, Skipped, is_source_file, measure
from pipeline.sources.folder import walk, why_no_image
from pipeline.storage import Place
from pipeline.system.os_errors import retried

META = "cars_meta.mat"
TRAIN_LABELS = "cars_train_annos.mat"
TEST_LABELS = "cars_test_annos_withlabels.mat"
_DEVKITS = ("devkit", "car_devkit/devkit", "")


class Annotation(NamedTuple):
    """What is said of one image: its class and the box of the car."""

    label: str
    box: Box


def recognises(place: Place) -> bool:
    """Whether the training images are there, and the two files that say what they are."""
    return (place / "cars_train").is_dir() and all(_annotations_file(place, name) for name in (META, TRAIN_LABELS))


def list_images(place: Place, settings: Settings) -> Iterator[Found]:
    """The classes in the order of cars_meta.mat (class 1 of the annotations has id 0), then every image.

    Training images have no split where the test images have no labels, so that a share of them is held back. No
    setting changes what is found. Raises SourceError where a .mat file cannot be read as described in the devkit.
    """
    names = _class_names(_require(place, META))
    yield Classes(names, {})
    test_labels = _annotations_file(place, TEST_LABELS) if (place / "cars_test").is_dir() else None
    if test_labels:
        yield from _split(place, "cars_test", _annotations(test_labels, names), "validation")
    else:
        yield from _without_labels(place, "cars_test")
    annotations = _annotations(_require(place, TRAIN_LABELS), names)
    yield from _split(place, "cars_train", annotations, "train" if test_labels else "")


def _split(place: Place, name: str, annotations: Mapping[str, Annotation], split: str) -> Iterator[Found]:
    """The images of a folder and of its annotations, of which either may lack some."""
    prefix = _prefix(place, name)
    found = {item.key: item for item in walk(place / prefix, prefix)}
    for key in sorted(found.keys() | {prefix + file for file in annotations}, key=_bytes_of):
        yield _labelled(place, key, found.get(key), annotations.get(key.removeprefix(prefix)), split)


def _labelled(place: Place, key: str, found: Found | None, annotation: Annotation | None, split: str) -> Found:
    if isinstance(found, Skipped):
        return found
    if annotation is None:
        return Skipped(key, why_no_image(key) or "not in the annotations")
    # What was found is measured already: in a bucket, each would take a request.
    image = found if isinstance(found, Listed) else Listed(key, (), "", *measure(place / key))
    return image._replace(labels=(annotation.label,), split=split, boxes=(annotation.box,))


def _without_labels(place: Place, name: str) -> Iterator[Found]:
    prefix = _prefix(place, name)
    for item in walk(place / prefix, prefix) if (place / prefix).is_dir() else ():
        reason = why_no_image(item.key) or f"has no label: for prediction, not for validation ({TEST_LABELS} has them)"
        yield Skipped(item.key, reason) if isinstance(item, Listed) else item


def _prefix(place: Place, name: str) -> str:
    """The folder of the images, with its slash: some copies have it within itself."""
    return f"{name}/{name}/" if (place / name / name).is_dir() else f"{name}/"


def _class_names(path: Place) -> tuple[str, ...]:
    return tuple(str(name) for name in _variable(path, "class_names"))


def _annotations(path: Place, names: tuple[str, ...]) -> dict[str, Annotation]:
    """What is said of each image, by its file's name."""
    try:
        rows = [(str(row["fname"]), _annotation(row, names)) for row in _variable(path, "annotations")]
    except (IndexError, TypeError, ValueError) as error:
        raise SourceError(
            f"{path} is not as the devkit describes it ({error}): each annotation has fname, class (1 to {len(names)}, "
            "a line of cars_meta.mat) and bbox_x1 to bbox_y2; fetch it again"
        ) from error
    annotations: dict[str, Annotation] = {}
    for name, annotation in rows:
        if annotations.setdefault(name, annotation) != annotation:
            raise SourceError(f"{path} lists {name!r} twice, with different annotations: remove one of them")
    return annotations


def _annotation(row: Any, names: tuple[str, ...]) -> Annotation:
    number = int(row["class"])
    if not 1 <= number <= len(names):  # 0 would silently be the last one
        raise IndexError(f"class {number}")
    label = names[number - 1]
    # MATLAB counts pixels from 1, and both ends belong to the box.
    box = Box(int(row["bbox_x1"]) - 1, int(row["bbox_y1"]) - 1, int(row["bbox_x2"]), int(row["bbox_y2"]), label)
    return Annotation(label, box)


def _variable(path: Place, name: str) -> Any:
    """A variable of a .mat file, of one dimension."""
    import numpy as np
    from scipy.io import loadmat

    try:
        content = retried(path.read_bytes, path)
        return np.atleast_1d(loadmat(io.BytesIO(content), squeeze_me=True)[name])
    except TenfoldError:
        raise
    except Exception as error:  # SciPy's reader raises anything at foreign bytes, and exceptions of its own
        reason = f"it has no {name}" if isinstance(error, KeyError) else str(error)
        raise SourceError(f"{path} cannot be read ({reason}): fetch it again") from error


def _annotations_file(place: Place, name: str) -> Place | None:
    candidates = (place / folder / name for folder in _DEVKITS)
    return next((path for path in candidates if is_source_file(path)), None)


def _require(place: Place, name: str) -> Place:
    path = _annotations_file(place, name)
    if path is None:
        raise SourceError(f"source_uri {place} has no {name}, neither in devkit/ nor beside cars_train/")
    return path


def _bytes_of(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
