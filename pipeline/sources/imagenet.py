"""ImageNet (ILSVRC2012): train/ with a folder a synset (n01440764), val/ likewise or flat beside a list of its labels.

The same layout in ILSVRC/Data/CLS-LOC/, as from Kaggle, is also recognized. Ids follow the sorted synsets, as in
imagenet_to_gcs.py of the Model Garden. If train/ has only some of the synsets, images of the others are left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import PurePosixPath
from typing import NamedTuple

from pipeline.config.allowed import may_read
from pipeline.errors import SourceError
from pipeline.sources import Box, Classes, Found, Listed, Skipped, SourceOptions, is_source_file, measure
from pipeline.sources.folder import HIDDEN, boundaries_below, walk, why_no_image
from pipeline.sources.key_range import KeyRange
from pipeline.sources.split_names import split_of_word
from pipeline.storage import Place, folders
from pipeline.system.os_errors import retried

FOLDERS = ("test", "train", "val", "validation")
"""train/ and the folders beside it, in the order of their bytes."""
KAGGLE = "ILSVRC/Data/CLS-LOC/"
LABEL_LISTS = ("imagenet_2012_validation_synset_labels.txt", "synset_labels.txt", "val.txt", "val_annotations.txt")
"""Files with one synset per line (line 1 is ILSVRC2012_val_00000001), or a file name and its synset."""
SOLUTIONS = ("LOC_train_solution.csv", "LOC_val_solution.csv")
"""Files with one image per line, with one or more pairs of a synset and a box.

For example: `ILSVRC2012_val_00048981,n03995372 85 1 499 272`.
"""
HUMAN_NAMES = ("imagenet_metadata.txt", "LOC_synset_mapping.txt", "words.txt")
"""Files with a synset and its words per line: `n01440764 tench, Tinca tinca`."""
NO_LABEL = {
    "train": "not in a synset folder",
    "validation": f"has no label: it must be in {', '.join(LABEL_LISTS)} or LOC_val_solution.csv, beside train/",
    "test": "has no label: for prediction, not for validation",
}
"""Why an image is skipped, by its split."""

_SYNSET = re.compile(r"n\d{8}")


class Lists(NamedTuple):
    """The content of the files beside the images. `synsets` and `solutions` are by file name without suffix."""

    classes: frozenset[str]
    synsets: Mapping[str, str]
    solutions: Mapping[str, str]


def recognizes(place: Place) -> bool:
    """Whether train/ has folders, and each has the name of a synset."""
    train = place / _prefix(place) / "train"
    if not (may_read(train) and train.is_dir()):
        return False
    # Hidden folders, which tools and systems create, do not make train/ another layout.
    names = [folder.name for folder in folders(train) if why_no_image(folder.name) != HIDDEN]
    return bool(names) and all(map(_SYNSET.fullmatch, names))


def list_range(place: Place, options: SourceOptions, keys: KeyRange) -> Iterator[Found]:
    """Yield the sorted synsets of train/, with their words if a file has them, and the images with keys in a range.

    `list_encoding` is the encoding of the words. No other option is used. Raises SourceError if a list beside the
    images cannot be parsed.
    """
    prefix = _prefix(place)
    lists = _read_lists(place, prefix)
    texts = _human_names(place, prefix, options.list_encoding)
    yield Classes(tuple(sorted(lists.classes)), {name: texts[name] for name in lists.classes & texts.keys()})
    for folder in _image_folders(place, prefix):
        for item in walk(place / folder, folder, keys):
            yield _classify(item, prefix, lists) if isinstance(item, Listed) else item


def boundaries(place: Place, options: SourceOptions, most: int, min_images: int) -> Sequence[str]:
    """Return keys that divide the images into ranges of about equal size."""
    return boundaries_below(place, _image_folders(place, _prefix(place)), most, min_images)


def _image_folders(place: Place, prefix: str) -> list[str]:
    return [f"{prefix}{name}/" for name in FOLDERS if (place / prefix / name).is_dir()]


def layout(place: Place, options: SourceOptions) -> str:
    """Return size and generation of each file beside the images, because their content decides the labels."""
    prefix = _prefix(place)
    files = (
        _first_file(place, prefix, names) for names in (LABEL_LISTS, *((name,) for name in SOLUTIONS), HUMAN_NAMES)
    )
    return f"{prefix or 'train/ and val/'} with {[measure(file)[:2] for file in files if file]}"


def _classify(image: Listed, prefix: str, lists: Lists) -> Listed | Skipped:
    if reason := why_no_image(image.key.removeprefix(prefix)):
        return Skipped(image.key, reason)
    folder, *between, name = image.key.removeprefix(prefix).split("/")
    split, stem = split_of_word(folder), PurePosixPath(name).stem
    assert split  # FOLDERS has only names of splits.
    solution = lists.solutions.get(stem, "")
    synset = between[0] if between and _SYNSET.fullmatch(between[0]) else ""
    if not synset:
        # A flat val/ has no folders. The lists beside the images name the synset of each file.
        synset = lists.synsets.get(stem) or solution.partition(" ")[0]
    if not synset:
        return Skipped(image.key, NO_LABEL[split])
    if synset not in lists.classes:
        return Skipped(image.key, "of a synset that train/ does not have")
    return image._replace(labels=(synset,), split=split, boxes=_boxes(solution, stem))


def _prefix(place: Place) -> str:
    return KAGGLE if (place / KAGGLE / "train").is_dir() else ""


def _read_lists(place: Place, prefix: str) -> Lists:
    label_list = _first_file(place, prefix, LABEL_LISTS)
    solutions = [path for name in SOLUTIONS if (path := _first_file(place, prefix, (name,)))]
    return Lists(
        frozenset(folder.name for folder in folders(place / prefix / "train") if _SYNSET.fullmatch(folder.name)),
        _read_synsets(label_list) if label_list else {},
        dict(chain.from_iterable(map(_read_solutions, solutions))),
    )


def _first_file(place: Place, prefix: str, names: Sequence[str]) -> Place | None:
    places = list(filter(may_read, (place, *(place / prefix / below for below in ("", "val", "validation")))))
    return next((folder / name for name in names for folder in places if is_source_file(folder / name)), None)


def _read_synsets(path: Place) -> dict[str, str]:
    """Return the synset of each validation image, by its name or by the number of its line."""
    synsets = {}
    # Empty lines count too: in a list without names, the number of the line is the number of the image.
    for number, line in enumerate(_lines(path), 1):
        if not line:
            continue
        name, *rest = line.split()
        synset = rest[0] if rest else name
        if not _SYNSET.fullmatch(synset):
            raise SourceError(
                f"line {number} of {path} is {line!r}: it must be a synset such as n01440764, "
                "or the name of a file and its synset"
            )
        synsets[PurePosixPath(name).stem if rest else f"ILSVRC2012_val_{number:08d}"] = synset
    return synsets


def _read_solutions(path: Place) -> Iterator[tuple[str, str]]:
    for line in _lines(path):
        image, _, solution = line.partition(",")
        if image != "ImageId":  # That is the header.
            yield image, solution


def _boxes(solution: str, stem: str) -> tuple[Box, ...]:
    fields = solution.split()
    try:
        return tuple(_box(*fields[start : start + 5]) for start in range(0, len(fields), 5))
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"{' and '.join(SOLUTIONS)} must have a synset and four numbers for each box, got {solution!r} for {stem}"
        ) from error


def _box(synset: str, xmin: str, ymin: str, xmax: str, ymax: str) -> Box:
    return Box(float(xmin), float(ymin), float(xmax), float(ymax), synset)


def _human_names(place: Place, prefix: str, encoding: str) -> dict[str, str]:
    path = _first_file(place, prefix, HUMAN_NAMES)
    if path is None:
        return {}
    pairs = (_decoded(line, path, encoding).split(maxsplit=1) for line in _lines(path))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _decoded(line: str, path: Place, encoding: str) -> str:
    """Decode a line with the encoding of the list. Its words are stored, and shown to people."""
    try:
        return line.encode("utf-8", "surrogateescape").decode(encoding)
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} holds {error.object!r}, which is not {encoding}: save it as UTF-8, or name its encoding in "
            "list_encoding (latin-1, cp1252, ...)"
        ) from error


def _lines(path: Place) -> Iterator[str]:
    try:
        content = retried(path.read_bytes, path)
        yield from (line.decode("utf-8", "surrogateescape").strip() for line in content.splitlines())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
